"""Whole groups: what enters and leaves one, and when it is none any more."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir
import pytest
from qdq_passes.encode.edit.whole_groups import WholeGroup, whole_groups
from qdq_passes.graph.annotate import FUSED, PART, Fused, write_metadata
from qdq_passes.graph.edit import Namer, make_node, replace_nodes
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.io.models.load import model_of
from qdqtool.io.models.save import serialize
from tests.cases.small_models import model

NORM = """
 [mean] m = ReduceMean<axes: ints = [-1]>(x) [center] d = Sub(x, m) [square] s = Mul(d, d)
 [variance] v = ReduceMean<axes: ints = [-1]>(s) [add] e = Add(v, eps) [root] r = Sqrt(e) [divide] n = Div(d, r)
 [scale] g = Mul(n, gamma) [shift] t = Add(g, beta)"""
HEADER = '<ir_version: 8, opset_import: ["" : 13]>'


def norm(
    body: str = "[relu] y = Relu(t)", outputs: str = "float[3,2] y", beta: str = "float[2] beta = {3, 4}"
) -> ir.Model:
    text = f"{HEADER} g (float[3,2] x) => ({outputs}) <float[2] gamma = {{1, 2}}, {beta}, float eps = {{1}}> {{ {NORM} {body} }}"
    graph = model(text)
    run_pipeline(graph, "fuse-layer-norm")
    return graph


def read(group: WholeGroup) -> list[tuple[str | None, str, str | None, int]]:
    return [(e.value.name, e.role, e.node.name, e.index) for e in group.entering]


def test_a_group() -> None:
    (group,) = whole_groups(norm())
    assert (group.name, group.operator) == ("mean", "LayerNormalization")
    assert [node.name for node in group.nodes] == [
        "mean",
        "center",
        "square",
        "variance",
        "add",
        "root",
        "divide",
        "scale",
        "shift",
    ]
    assert read(group) == [
        ("x", "activation", "mean", 0), ("x", "activation", "center", 0), ("gamma", "weight", "scale", 1), ("beta", "bias", "shift", 1),
    ]  # fmt: skip
    assert [value.name for value in group.leaving] == ["t"]


def test_a_group_at_a_graph_output() -> None:
    (group,) = whole_groups(norm("", "float[3,2] t"))
    assert [value.name for value in group.leaving] == ["t"]


def test_one_initializer_as_weight_and_bias() -> None:
    graph = model(
        f"{HEADER} g (float[3,2] x) => (float[3,2] t) <float[2] gamma = {{1, 2}}, float eps = {{1}}> {{ {NORM.replace('beta', 'gamma')} }}"
    )
    run_pipeline(graph, "fuse-layer-norm")
    (group,) = whole_groups(graph)
    assert [entry[:2] for entry in read(group)[2:]] == [("gamma", "weight"), ("gamma", "bias")]


def test_two_groups_in_the_order_of_the_graph() -> None:
    graph = norm("[s2] q = Sigmoid(t) [m2] y = Mul(q, t)")
    run_pipeline(graph, "fuse-silu")
    assert [(group.name, group.operator) for group in whole_groups(graph)] == [
        ("mean", "LayerNormalization"), ("s2", "Swish"),
    ]  # fmt: skip


def test_groups_survive_a_file() -> None:
    graph = norm()
    write_metadata(graph)
    again = model_of(serialize(graph))
    assert [read(group) for group in whole_groups(again)] == [read(group) for group in whole_groups(graph)]


def node_of(graph: ir.Model, name: str) -> ir.Node:
    return next(node for node in graph.graph if node.name == name)


def replace_root(graph: ir.Model) -> None:
    old, namer = node_of(graph, "root"), Namer(graph)
    new = make_node("Abs", [old.inputs[0]], name="new", output="new_out", like=old.outputs[0], stands_for=[old])
    replace_nodes([old], [new], namer, "test")


def read_inside(graph: ir.Model) -> None:
    node_of(graph, "relu").replace_input_with(0, node_of(graph, "divide").outputs[0])


def clear_a_value(graph: ir.Model) -> None:
    FUSED.clear(node_of(graph, "square").outputs[0])


def mark_otherwise(graph: ir.Model) -> None:
    FUSED.set(node_of(graph, "square").outputs[0], Fused("mean"))


def clear_a_node(graph: ir.Model) -> None:
    PART.clear(node_of(graph, "square"))


@pytest.mark.parametrize("change", [replace_root, read_inside, clear_a_value, mark_otherwise, clear_a_node])
def test_a_group_that_was_changed_is_none(change: object) -> None:
    graph = norm()
    assert callable(change)
    change(graph)
    assert whole_groups(graph) == []


def test_a_shape_does_not_look_inside() -> None:
    graph = norm("[relu] y = Relu(t) [shape] z = Shape(d)", "float[3,2] y, int64[2] z")
    (group,) = whole_groups(graph)
    assert [value.name for value in group.leaving] == ["t"]


def test_without_groups() -> None:
    assert whole_groups(model("g (float[2] x) => (float[2] y) { y = Relu(x) }")) == []


@dataclass(frozen=True)
class Observed:
    low: float = -2.0
    high: float = 2.0


def test_pairs_stand_at_the_edges_of_a_group() -> None:
    """x, γ, β and the output have a pair; ε and what is inside have none, though Add, Sub, Mul, Div and ReduceMean are quantized."""
    graph = norm()
    ranges = {name: Observed() for name in ("x", "t", "y")}
    run_pipeline(graph, "annotate-encodings{encodings=@ranges},insert-qdq", inputs={"ranges": ranges})
    quantized = {node.inputs[0].name for node in graph.graph if node.op_type == "QuantizeLinear" and node.inputs[0]}
    assert quantized == {"x", "gamma", "beta", "t", "y_QuantizeLinear_Input"}
    (group,) = whole_groups(graph)
    assert len(group.nodes) == 9
    sources = {producer.op_type for e in group.entering if (producer := e.value.producer()) is not None}
    assert sources == {"DequantizeLinear"}

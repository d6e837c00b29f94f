"""Safe surgery: names of outputs stay, initializers that others read are not rewritten, a removed node is not edited."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from qdq_passes.errors import QdqError
from qdq_passes.graph import edit
from qdq_passes.graph.annotate import ENCODING, FUSED, ORIGIN, Fused, Origin
from qdq_passes.graph.dump import dump
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.uses import all_nodes, all_values
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.verification.rules import verify

from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal

CHAIN = """g (float[2] x) => (float[2] y) <float[2] w = {1,2}>
{ [relu] a = Relu(x) [exp] b = Exp(a) [add] c = Add(b, w) [mul] y = Mul(c, w) }"""


def node(graph: ir.Model, name: str) -> ir.Node:
    return next(n for n in all_nodes(graph) if n.name == name)


def value(graph: ir.Model, name: str) -> ir.Value:
    return next(v for v in all_values(graph) if v.name == name)


def lines(graph: ir.Model) -> list[str]:
    """The nodes of the dump, without types and annotations."""
    text = dump(graph).split(" {\n", 1)[1]
    return [line.strip().split(" ; ")[0] for line in text.splitlines() if "@" in line]


def no_errors(graph: ir.Model) -> bool:
    return not verify(graph, minimum="error")


def test_bypass() -> None:
    graph = model(CHAIN)
    change = edit.bypass(node(graph, "exp"), Namer(graph), "not needed")
    assert str(change) == "remove exp: not needed"
    assert lines(graph)[1] == "%c: ? = Add(%a, %w) @add"
    assert no_errors(graph)


def test_bypass_with_another_source() -> None:
    graph = model(CHAIN)
    edit.bypass(node(graph, "add"), Namer(graph), "x", source=value(graph, "a"))
    assert lines(graph)[-1] == "%y: float[2] = Mul(%a, %w) @mul"


def test_a_graph_output_keeps_its_name() -> None:
    graph = model(CHAIN)
    edit.bypass(node(graph, "mul"), Namer(graph), "not needed")
    assert [v.name for v in graph.graph.outputs] == ["y"]
    assert lines(graph)[-1] == "%y: float[2] = Add(%b, %w) @add"
    assert graph.graph.outputs[0].shape is not None
    assert no_errors(graph)


@pytest.mark.parametrize(
    ("text", "removed", "expected"),
    [
        ("g (float[2] x) => (float[2] y) { [relu] y = Relu(x) }", "relu", "%y: float[2] = Identity(%x) @y_Identity"),
        (
            "g (float[2] x) => (float[2] y, float[2] t) { [exp] t = Exp(x) [relu] y = Relu(t) }",
            "relu",
            "%y: float[2] = Identity(%t) @y_Identity",
        ),
        (
            "g (float[2] x) => (float[2] y) <float[2] w = {1,2}> { [relu] y = Relu(w) }",
            "relu",
            "%y: float[2] = Identity(%w) @y_Identity",
        ),
        (
            "g (bool c, float[2] x) => (float[2] y) { [exp] t = Exp(x) [if] y = If(c) <then_branch = b1 () => (float[2] a)"
            " { [relu] a = Relu(t) }, else_branch = b2 () => (float[2] b) { [id] b = Identity(x) }> }",
            "relu",
            "%a: float[2] = Identity(%t) @a_Identity",
        ),
    ],
    ids=["graph input", "another output", "initializer", "outer value"],
)
def test_an_identity_carries_the_name_where_nothing_else_can(text: str, removed: str, expected: str) -> None:
    graph = model(text)
    edit.bypass(node(graph, removed), Namer(graph), "not needed")
    assert expected in lines(graph)
    assert no_errors(graph)


def test_an_output_listed_twice() -> None:
    graph = model("g (float[2] x) => (float[2] y, float[2] y) { [exp] t = Exp(x) [relu] y = Relu(t) }")
    edit.bypass(node(graph, "relu"), Namer(graph), "not needed")
    assert [v.name for v in graph.graph.outputs] == ["y", "y"]


def test_other_readers_of_a_replaced_output_follow() -> None:
    graph = model("g (float[2] x) => (float[2] y, float[2] z) { [exp] t = Exp(x) [relu] y = Relu(t) [neg] z = Neg(y) }")
    edit.bypass(node(graph, "relu"), Namer(graph), "not needed")
    assert [v.name for v in graph.graph.outputs] == ["y", "z"]
    assert lines(graph)[-1] == "%z: float[2] = Neg(%y) @neg"
    assert no_errors(graph)


def test_removing_twice_is_an_error() -> None:
    graph = model(CHAIN)
    exp = node(graph, "exp")
    edit.bypass(exp, Namer(graph), "once")
    for attempt in (
        lambda: edit.remove(exp, "twice"),
        lambda: edit.bypass(exp, Namer(graph), "twice"),
        lambda: edit.graph_of(exp),
    ):
        with refusal(QdqError):
            attempt()


def test_removing_what_is_read_is_an_error() -> None:
    graph = model(CHAIN)
    before = dump(graph)
    for name in ("exp", "mul"):
        with refusal(QdqError):
            edit.remove(node(graph, name), "why not")
    assert dump(graph) == before


def test_new_nodes_inherit_scope_and_origin() -> None:
    graph = model(CHAIN)
    relu, exp, add = (node(graph, name) for name in ("relu", "exp", "add"))
    relu.metadata_props["qdqtool.scope"] = "model.first"
    exp.metadata_props["qdqtool.scope"] = "model.second"
    exp.metadata_props["unrelated"] = "stays"
    ORIGIN.set(exp, Origin(("one", "two")))
    new = edit.make_node(
        "Gelu", [value(graph, "x")], name="gelu", output="g", like=value(graph, "x"), stands_for=[relu, exp, add]
    )
    assert new.metadata_props == {"qdqtool.scope": "model.first"}
    assert ORIGIN.get(new) == Origin(("relu", "one", "two", "add"))
    assert new.outputs[0].dtype == ir.DataType.FLOAT
    assert new.outputs[0].shape == ir.Shape([2])
    assert new.outputs[0].shape is not value(graph, "x").shape


def test_replace_nodes() -> None:
    graph = model(CHAIN)
    namer = Namer(graph)
    exp, add = node(graph, "exp"), node(graph, "add")
    new = edit.make_node(
        "Sub", [value(graph, "a"), value(graph, "w")], name="sub", output=namer.fresh("s"), stands_for=[exp, add]
    )
    change = edit.replace_nodes([exp, add], [new], namer, "one is enough")
    assert str(change) == "replace add: one is enough"
    assert lines(graph) == ["%a: ? = Relu(%x) @relu", "%c: ? = Sub(%a, %w) @sub", "%y: float[2] = Mul(%c, %w) @mul"]
    assert no_errors(graph)


def test_replace_nodes_before_an_output() -> None:
    graph = model(CHAIN)
    namer = Namer(graph)
    mul = node(graph, "mul")
    new = edit.make_node(
        "Sub", [value(graph, "c"), value(graph, "w")], name="sub", output=namer.fresh("s"), stands_for=[mul]
    )
    edit.replace_nodes([mul], [new], namer, "other")
    assert lines(graph)[-1] == "%y: float[2] = Sub(%c, %w) @sub"
    assert no_errors(graph)


def test_annotations_move_along() -> None:
    graph = model(CHAIN)
    encoding = Encoding.per_tensor(ir.DataType.INT8, 0.5)
    ENCODING.set(graph.graph.outputs[0], encoding)
    FUSED.set(graph.graph.outputs[0], Fused("mul"))
    FUSED.set(value(graph, "c"), Fused("own"))
    edit.bypass(node(graph, "mul"), Namer(graph), "not needed")
    output = graph.graph.outputs[0]
    assert ENCODING.get(output) == encoding
    assert FUSED.get(output) == Fused("own")


def test_annotations_do_not_move_to_another_value_with_other_readers() -> None:
    """A value in the middle keeps its own facts: what held for Exp's output does not hold for its input."""
    graph = model(CHAIN)
    ENCODING.set(value(graph, "b"), Encoding.per_tensor(ir.DataType.INT8, 0.5))
    edit.bypass(node(graph, "exp"), Namer(graph), "not needed")
    assert ENCODING.get(value(graph, "a")) is None


def test_insert_after() -> None:
    graph = model(CHAIN)
    for name, place in (("x", 0), ("w", 0), ("a", 3)):
        new = edit.make_node("Neg", [value(graph, name)], name=f"neg_{name}", output=f"n_{name}")
        edit.insert_after(graph, value(graph, name), [new])
        assert [n.name for n in graph.graph].index(f"neg_{name}") == place

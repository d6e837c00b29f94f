"""The adapter to the onnxscript rewriter: a rule acts, declines with a reason, and hands scope and origin on."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import onnx_ir as ir
from qdq_passes.analysis.uses import all_nodes, constant_array
from qdq_passes.core.annotate import ORIGIN, Origin
from qdq_passes.core.dump import dump
from qdq_passes.core.rewrite import Rule, rewrite
from qdq_passes.core.verify import verify

from tests.architecture.places import ROOT
from tests.unit.small_models import model


def double(op: Any, x: Any) -> Any:
    return op.Add(x, x)


def twice(op: Any, x: Any) -> Any:
    return op.Mul(x, op.Constant(value_float=2.0))


ADD_TO_MUL = Rule(root="Add", pattern=double, replacement=twice, because="x + x = 2·x")


def sigmoid_mul(op: Any, x: Any) -> Any:
    return op.Mul(x, op.Sigmoid(x))


def swish(op: Any, x: Any) -> Any:
    return op.Swish(x, _domain="com.acme")


def only_vectors(bound: dict[str, Any]) -> str | None:
    shape = bound["x"].shape
    return None if shape is not None and len(shape) == 1 else "its input is no vector"


SWISH = Rule(root="Mul", pattern=sigmoid_mul, replacement=swish, because="x·σ(x) is Swish", check=only_vectors)


def ops(graph: ir.Model) -> list[str]:
    return [f"{node.domain}::{node.op_type}".removeprefix("::") for node in all_nodes(graph)]


def test_a_rule_acts() -> None:
    graph = model("g (float[2] x) => (float[2] y) { [sig] s = Sigmoid(x) [mul] t = Mul(x, s) [relu] y = Relu(t) }")
    changes = list(rewrite(graph, [SWISH]))
    assert ops(graph) == ["com.acme::Swish", "Relu"]
    assert {(change.kind, change.because) for change in changes} == {
        ("insert", "x·σ(x) is Swish"),
        ("remove", "x·σ(x) is Swish"),
    }
    assert sorted(change.where for change in changes if change.kind == "remove") == ["mul", "sig"]
    assert not verify(graph, minimum="error")


def test_a_rule_declines_with_a_reason() -> None:
    graph = model("g (float[2,2] x) => (float[2,2] y) { [sig] s = Sigmoid(x) [mul] y = Mul(x, s) }")
    before = dump(graph)
    changes = list(rewrite(graph, [SWISH]))
    assert dump(graph) == before
    assert changes
    assert {str(change) for change in changes} == {"skip x: its input is no vector"}


def test_acts_and_declines_in_one_graph() -> None:
    graph = model(
        """g (float[2] x, float[2,2] z) => (float[2] y, float[2,2] v)
        { [sig] s = Sigmoid(x) [mul] y = Mul(x, s) [sig2] s2 = Sigmoid(z) [mul2] v = Mul(z, s2) }"""
    )
    changes = list(rewrite(graph, [SWISH]))
    assert sorted(ops(graph)) == ["Mul", "Sigmoid", "com.acme::Swish"]
    assert "skip z: its input is no vector" in {str(change) for change in changes}
    assert graph.graph.outputs[0].name == "y"
    assert graph.graph.outputs[1].name == "v"


def test_other_readers_keep_the_inside_of_the_pattern() -> None:
    graph = model("g (float[2] x) => (float[2] y, float[2] s) { [sig] s = Sigmoid(x) [mul] y = Mul(x, s) }")
    before = dump(graph)
    list(rewrite(graph, [SWISH]))
    assert dump(graph) == before


def test_scope_and_origin_are_inherited() -> None:
    graph = model("g (float[2] x) => (float[2] y) { [add] t = Add(x, x) [relu] y = Relu(t) }")
    graph.graph[0].metadata_props["qdqtool.scope"] = "model.head"
    list(rewrite(graph, [ADD_TO_MUL]))
    assert sorted(ops(graph)) == ["Constant", "Mul", "Relu"]
    for node in graph.graph:
        if node.op_type != "Relu":
            assert node.metadata_props["qdqtool.scope"] == "model.head", node.op_type
            assert ORIGIN.get(node) == Origin(("add",))
    mul = next(node for node in graph.graph if node.op_type == "Mul")
    assert constant_array(mul.inputs[1]).tolist() == 2.0  # type: ignore[union-attr]


def test_origins_of_two_matches_are_kept_apart() -> None:
    graph = model("g (float[2] x) => (float[2] y) { [first] t = Add(x, x) [exp] e = Exp(t) [second] y = Add(e, e) }")
    first, _, second = graph.graph
    first.metadata_props["qdqtool.scope"], second.metadata_props["qdqtool.scope"] = "model.one", "model.two"
    list(rewrite(graph, [ADD_TO_MUL]))
    scopes = [node.metadata_props.get("qdqtool.scope") for node in graph.graph if node.op_type == "Mul"]
    assert scopes == ["model.one", "model.two"]


def test_new_nodes_have_names_of_their_own() -> None:
    graph = model("g (float[2] x) => (float[2] y) { [first] t = Add(x, x) [second] y = Add(t, t) }")
    list(rewrite(graph, [ADD_TO_MUL]))
    names = [node.name for node in all_nodes(graph)]
    assert all(names)
    assert len(set(names)) == len(names)
    assert not verify(graph, minimum="error")


def test_bodies_and_functions() -> None:
    graph = model(
        """<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
        g (bool c, float[2] x) => (float[2] y)
        {
          [call] t = local.Block(x)
          [if] y = If(c) <
            then_branch = b1 () => (float[2] a) { [inner] a = Add(t, t) },
            else_branch = b2 () => (float[2] b) { [id] b = Identity(t) }
          >
        }
        <domain: "local", opset_import: ["" : 21]>
        Block (p) => (q) { [deep] q = Add(p, p) }"""
    )
    changes = list(rewrite(graph, [ADD_TO_MUL]))
    assert sorted(change.where for change in changes if change.kind == "remove") == ["deep", "inner"]
    assert "Add" not in ops(graph)
    assert ops(graph).count("Mul") == 2
    assert not verify(graph, minimum="error")


def test_several_rules_in_their_order() -> None:
    graph = model("g (float[2] x) => (float[2] y) { [add] t = Add(x, x) [sig] s = Sigmoid(t) [mul] y = Mul(t, s) }")
    changes = list(rewrite(graph, [ADD_TO_MUL, SWISH]))
    assert "com.acme::Swish" in ops(graph) or "Mul" in ops(graph)
    assert "Add" not in ops(graph)
    assert next(change.because for change in changes if change.kind == "insert") == "x + x = 2·x"


def test_without_its_root_operator_nothing_is_imported() -> None:
    code = (
        f"import sys; sys.path[:0] = {[str(ROOT / 'passes'), str(ROOT)]!r}\n"
        "from qdq_passes.core.rewrite import rewrite\n"
        "from tests.unit.test_rewrite import SWISH\n"
        "from tests.unit.small_models import model\n"
        "print(list(rewrite(model('g (float[2] x) => (float[2] y) { y = Relu(x) }'), [SWISH])), 'onnxscript' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] False"


def test_each_match_hands_on_its_own_scope() -> None:
    """The Constant inside a replacement writes no value of the old graph: it belongs to the Mul that reads it."""
    graph = model("g (float[2] x) => (float[2] y) { [first] t = Add(x, x) [last] y = Add(t, t) }")
    for node in graph.graph:
        node.metadata_props["qdqtool.scope"] = f"model.{node.name}"
    list(rewrite(graph, [ADD_TO_MUL]))
    found = [(node.op_type, node.metadata_props["qdqtool.scope"], ORIGIN.get(node)) for node in graph.graph]
    assert found == [
        ("Constant", "model.first", Origin(("first",))),
        ("Mul", "model.first", Origin(("first",))),
        ("Constant", "model.last", Origin(("last",))),
        ("Mul", "model.last", Origin(("last",))),
    ]

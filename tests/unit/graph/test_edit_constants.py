"""Constants and names: nobody rewrites what others read, and every new name is new in the whole model."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.errors import QdqError
from qdq_passes.graph import edit
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.uses import all_nodes

from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal
from tests.unit.graph.test_edit import CHAIN, lines, no_errors, node, value


def test_own_initializer() -> None:
    graph = model(CHAIN)
    mul, add, namer = node(graph, "mul"), node(graph, "add"), Namer(graph)
    value(graph, "w").metadata_props["note"] = "kept"
    own = edit.own_initializer(mul, 1, namer)
    assert own.name == "w_1"
    assert own.metadata_props["note"] == "kept"
    edit.set_constant(own, np.array([5.0, 6.0, 7.0], np.float64))
    assert value(graph, "w").const_value is not None
    assert value(graph, "w").const_value.numpy().tolist() == [1, 2]  # type: ignore[union-attr]
    assert (own.dtype, list(own.shape or [])) == (ir.DataType.DOUBLE, [3])
    assert edit.own_initializer(mul, 1, namer) is own
    assert edit.own_initializer(add, 1, namer) is value(graph, "w")
    with refusal(QdqError):
        edit.own_initializer(mul, 0, namer)


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2] x) => (float[2] y, float[2] w) <float[2] w = {1,2}> { [mul] y = Mul(x, w) }",
        "g (float[2] x, float[2] w = {1,2}) => (float[2] y) { [mul] y = Mul(x, w) }",
    ],
    ids=["output", "input"],
)
def test_an_initializer_of_the_interface_is_never_ones_own(text: str) -> None:
    graph = model(text)
    own = edit.own_initializer(node(graph, "mul"), 1, Namer(graph))
    assert own is not value(graph, "w")
    assert lines(graph) == ["%y: float[2] = Mul(%x, %w_1) @mul"]
    assert no_errors(graph)


def test_names_are_unique_in_the_whole_model() -> None:
    graph = model(
        """<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
        g (bool c, float[2] x) => (float[2] y) <float[2] w = {1,2}>
        {
          [call] t = local.Block(x)
          [if] y = If(c) <
            then_branch = b1 () => (float[2] a) <float[2] inner = {1,2}> { [add] a = Add(t, inner) },
            else_branch = b2 () => (float[2] b) { [id] b = Identity(t) }
          >
        }
        <domain: "local", opset_import: ["" : 21]>
        Block (p) => (q) { [exp] hidden = Exp(p) [relu] q = Relu(hidden) }"""
    )
    namer = Namer(graph)
    for name in ("x", "y", "w", "t", "a", "inner", "call", "add", "exp", "p", "hidden", "q"):
        assert namer.fresh(name) == f"{name}_1", f"{name} is in use"
    assert namer.fresh("new") == "new"
    assert [namer.fresh("new"), namer.fresh("new")] == ["new_1", "new_2"]


def test_drop_unread() -> None:
    graph = model(CHAIN.replace("<float[2] w = {1,2}>", "<float[2] w = {1,2}, float[2] v = {3,4}>"))
    w, v = value(graph, "w"), value(graph, "v")
    changes = edit.drop_unread([w, v, v, None, value(graph, "x")])
    assert [str(change) for change in changes] == ["remove v: initializer is no longer read"]
    assert list(graph.graph.initializers) == ["w"]


def test_new_constants_of_any_type() -> None:
    graph = model(CHAIN)
    namer = Namer(graph)
    made = edit.new_constant(graph.graph, namer, "scalar", np.array(3, np.float32))
    assert (made.dtype, made.shape) == (ir.DataType.FLOAT, ir.Shape([]))
    int4 = ir.tensor(np.array([1, -2], ir.DataType.INT4.numpy()), dtype=ir.DataType.INT4)
    assert edit.new_constant(graph.graph, namer, "four", int4).dtype == ir.DataType.INT4
    assert edit.new_constant(graph.graph, namer, "w", int4).name == "w_1"
    assert list(graph.graph.initializers) == ["w", "scalar", "four", "w_1"]
    assert no_errors(graph)


def test_a_function_has_no_initializers() -> None:
    graph = model(
        """<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
        g (float[2] x) => (float[2] y) { [call] y = local.Block(x) }
        <domain: "local", opset_import: ["" : 21]> Block (p) => (q) { [relu] q = Relu(p) }"""
    )
    relu = node(graph, "relu")
    made = edit.new_constant(edit.graph_of(relu), Namer(graph), "c", np.ones(2, np.float32))
    producer = made.producer()
    assert producer is not None
    assert [n.op_type for n in all_nodes(graph)] == ["Block", "Constant", "Relu"]
    assert no_errors(graph)

"""Selectors over exporters' scopes, bodies of control flow and local functions."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from qdq_passes.select.selectors import Selector, select

from tests.cases.small_models import model

SCOPED = "g (float[2] x) => (float[2] y) { [node_1] a = Relu(x) [node_2] b = Exp(a) [node_3] y = Neg(b) }"


def scoped() -> ir.Model:
    """A model as exporters write it: the module path stands in the metadata, node names tell nothing."""
    result = model(SCOPED)
    a, b, c = result.graph
    a.metadata_props["pkg.torch.onnx.name_scopes"] = (
        "['', 'model', 'model.layers.3', 'model.layers.3.self_attn', 'relu']"
    )
    b.metadata_props["namespace"] = ": Net/model.layers.3: Block/model.layers.3.mlp: MLP/exp: aten.exp"
    c.metadata_props["qdqtool.scope"] = "model.layers.12"
    return result


@pytest.mark.parametrize(
    ("selector", "hit"),
    [
        ("scope:model.layers.*.self_attn", ["node_1"]),
        ("scope:model.layers.3", ["node_1", "node_2"]),
        ("scope:*.mlp", ["node_2"]),
        ("scope:model", ["node_1", "node_2", "node_3"]),
        ("layer:3", ["node_1", "node_2"]),
        ("layer:4..12", ["node_3"]),
        ("scope:model.layers.1", None),
    ],
)
def test_scopes_of_exporters(selector: str, hit: list[str] | None) -> None:
    if hit is None:
        assert select(scoped(), Selector.of(selector), allow_empty=True).nodes == []
    else:
        assert [node.name for node in select(scoped(), Selector.of(selector)).nodes] == hit


def test_scopes_that_are_broken_are_no_scopes() -> None:
    broken = model(SCOPED)
    for node, text in zip(broken.graph, ["-" * 60_000 + "1", "{'a': 1}", "[1, 2]"], strict=True):
        node.metadata_props["pkg.torch.onnx.name_scopes"] = text
    assert select(broken, Selector.of("scope:*"), allow_empty=True).nodes == []


BRANCHES = """
g (bool c, float[2] x) => (float[2] y)
{
  [first] t = Relu(x)
  [second] u = Neg(x)
  [if] z = If(c) <
    then_branch = then () => (float[2] a) { [inner] a = Exp(t) },
    else_branch = else () => (float[2] b) { [other] b = Identity(x) }
  >
  [last] y = Abs(z)
}
"""


@pytest.mark.parametrize(
    ("selector", "hit"),
    [
        ("inner", ["inner"]),
        ("op:Exp", ["inner"]),
        ("after:first", ["if", "last"]),
        ("before:if", ["first"]),
        ("before:last", ["first", "if"]),
        ("path:first..last", ["first", "if", "last"]),
        ("after:second", None),
    ],
)
def test_bodies(selector: str, hit: list[str] | None) -> None:
    """An If reads what its branches capture; nodes inside are found by name and operator."""
    found = select(model(BRANCHES), Selector.of(selector), allow_empty=True).nodes
    assert [node.name for node in found] == (hit or [])


FUNCTION = """
<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
g (float[2] x) => (float[2] y) { [call] y = local.Block(x) }
<domain: "local", opset_import: ["" : 21]>
Block (x) => (y) { [exp] t = Exp(x) [relu] y = Relu(t) }
"""


def test_functions() -> None:
    """Nodes and values of local functions are found like any others."""
    function = model(FUNCTION)
    assert [node.name for node in select(function, Selector.of("op:Exp")).nodes] == ["exp"]
    assert [node.name for node in select(function, Selector.of("op:local::Block")).nodes] == ["call"]
    assert [value.name for value in select(function, Selector.of("tensor:t")).values] == ["t"]

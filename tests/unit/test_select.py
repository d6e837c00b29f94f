"""The selector language: every kind of atom, what it denotes, and what it says when it matches nothing."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from qdq_passes.core.select import ALL, NONE, Selector, select, select_nodes, select_values
from qdq_passes.errors import UnsupportedError, UsageError
from tests.unit.small_models import model

NETWORK = """
<ir_version: 10, opset_import: ["" : 21, "com.acme" : 1]>
g (float[1,2] x) => (float[1,2] y) <float[2,2] w = {1,2,3,4}, float[2] b = {1,2}, float[2,2] v = {1,2,3,4}>
{
  ["/layers.0/attn/q_proj/MatMul"] q = MatMul(x, w)
  ["/layers.0/attn/q_proj/Add"] qb = Add(q, b)
  ["/layers.0/mlp/Relu"] r = Relu(qb)
  ["/layers.1/attn/MatMul"] s = MatMul(r, v)
  ["/layers.10/Softmax"] p = Softmax(s)
  ["odd & name"] t = com.acme.Relu(p)
  ["/head/Add"] y = Add(t, x)
}
"""


def names(selector: str, *more: str, text: str = NETWORK) -> list[str]:
    """Names of the nodes hit, short: the last two parts."""
    found = select(model(text), Selector.of(selector, *more)).nodes
    return ["/".join((node.name or "").split("/")[-2:]) for node in found]


def values(selector: str, *more: str, text: str = NETWORK) -> list[str | None]:
    """Names of the values hit."""
    return [value.name for value in select(model(text), Selector.of(selector, *more)).values]


@pytest.mark.parametrize(
    ("selector", "hit"),
    [
        ("*/attn/*", ["q_proj/MatMul", "q_proj/Add", "attn/MatMul"]),
        ("/layers.0/mlp/Relu", ["mlp/Relu"]),
        ("*RELU", None),
        ("/layers.[01]/*", ["q_proj/MatMul", "q_proj/Add", "mlp/Relu", "attn/MatMul"]),
        ("re:layers\\.\\d+/attn/(MatMul|x)$", ["attn/MatMul"]),
        ("re:mlp|head", ["mlp/Relu", "head/Add"]),
        ("op:MatMul", ["q_proj/MatMul", "attn/MatMul"]),
        ("op:*elu", ["mlp/Relu", "odd & name"]),
        ("op:com.acme::Relu", ["odd & name"]),
        ("op:::Relu", ["mlp/Relu"]),
        ("scope:layers.0", ["q_proj/MatMul", "q_proj/Add", "mlp/Relu"]),
        ("scope:layers.*.attn", ["q_proj/MatMul", "q_proj/Add", "attn/MatMul"]),
        ("scope:layers.1", ["attn/MatMul"]),
        ("layer:0", ["q_proj/MatMul", "q_proj/Add", "mlp/Relu"]),
        ("layer:0..1", ["q_proj/MatMul", "q_proj/Add", "mlp/Relu", "attn/MatMul"]),
        ("layer:2..10", ["layers.10/Softmax"]),
        ("after:*/mlp/Relu", ["attn/MatMul", "layers.10/Softmax", "odd & name", "head/Add"]),
        ("before:*/mlp/Relu", ["q_proj/MatMul", "q_proj/Add"]),
        ("before:tensor:r", ["q_proj/MatMul", "q_proj/Add"]),
        ("path:*/mlp/Relu..*/Softmax", ["mlp/Relu", "attn/MatMul", "layers.10/Softmax"]),
        ("path:op:MatMul..op:Softmax & !op:MatMul", ["q_proj/Add", "mlp/Relu", "layers.10/Softmax"]),
        ("!op:MatMul & layer:0", ["q_proj/Add", "mlp/Relu"]),
        ("! op:MatMul&!op:Add & !*/Softmax", ["mlp/Relu", "odd & name"]),
        ("odd \\& name", ["odd & name"]),
        ("tensor:q*", ["q_proj/MatMul", "q_proj/Add"]),
    ],
)
def test_nodes(selector: str, hit: list[str] | None) -> None:
    if hit is None:
        with pytest.raises(UsageError, match="matches nothing"):
            names(selector)
    else:
        assert names(selector) == hit


@pytest.mark.parametrize(
    ("selector", "hit"),
    [
        ("tensor:q*", ["q", "qb"]),
        ("tensor:[wv]", ["w", "v"]),
        ("/layers.0/attn/q_proj/*", ["w", "b", "q", "qb"]),
        ("op:Softmax", ["p"]),
        ("in:op:Softmax", ["s"]),
        ("in:*/attn/MatMul", ["v", "r"]),
        ("io:op:Softmax", ["s", "p"]),
        ("io:*/attn/MatMul", ["v", "r", "s"]),
        ("tensor:* & op:Relu", ["r", "t"]),
        ("tensor:* & !op:MatMul & !op:Add", ["x", "r", "p", "t"]),
        ("!tensor:*", None),
        ("in:!op:Softmax", None),
    ],
)
def test_values(selector: str, hit: list[str] | None) -> None:
    if hit is None:
        with pytest.raises(UsageError, match="matches nothing"):
            values(selector)
    else:
        assert values(selector) == hit


def test_selectors_unite_and_keep_the_order_of_the_graph() -> None:
    assert names("op:Softmax", "op:MatMul") == ["q_proj/MatMul", "attn/MatMul", "layers.10/Softmax"]
    assert values("tensor:y", "op:Softmax") == ["p", "y"]


def test_all_and_none() -> None:
    network = model(NETWORK)
    assert len(select_nodes(network, ALL)) == 7
    assert {"x", "w", "y"} <= {value.name for value in select_values(network, ALL)}
    assert select(network, NONE).nodes == select(network, NONE).values == []
    assert ALL.is_all
    assert not NONE.is_all


def test_allow_empty() -> None:
    assert select(model(NETWORK), Selector.of("op:Conv", "op:Softmax"), allow_empty=True).nodes[0].op_type == "Softmax"
    with pytest.raises(UsageError, match="selector 'op:Conv' matches nothing"):
        select(model(NETWORK), Selector.of("op:Softmax", "op:Conv"))


@pytest.mark.parametrize(
    ("selector", "nearest"),
    [
        ("op:Sofmax", "nearest: Softmax"),
        ("tensor:qbb", "nearest: qb"),
        ("/head/Ad", "nearest: /head/Add"),
        ("scope:layer.1", "nearest: layers.1"),
        ("after:op:Sofmax", "nearest: Softmax"),
        ("!op:* & op:Softmx", "nearest: Softmax"),
        ("path:op:Sofmax..op:Relu", "nearest: Softmax"),
        ("zzzzzz", "see what there is with `qdqtool match"),
    ],
)
def test_nothing_names_the_nearest(selector: str, nearest: str) -> None:
    with pytest.raises(UsageError, match="matches nothing") as caught:
        names(selector)
    assert nearest in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ("", "empty term"),
        ("op:Conv &", "empty term"),
        ("!", "empty term"),
        ("op:", "nothing after op:"),
        ("path:a", "path needs two nodes"),
        ("layer:x", "no layer range"),
        ("layer:3..", "no layer range"),
        ("re:(", "bad regular expression"),
        ("in:op:", "nothing after op:"),
    ],
)
def test_syntax(selector: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Selector.of(selector)


def test_roles_are_refused_for_now() -> None:
    with pytest.raises(UnsupportedError, match="roles need the attention analysis"):
        Selector.of("role:softmax")


def test_a_colon_in_a_name_is_no_kind() -> None:
    text = 'g (float[2] x) => (float[2] y) { ["model:relu"] y = Relu(x) }'
    assert names("model:relu", text=text) == ["model:relu"]


SCOPED = "g (float[2] x) => (float[2] y) { [node_1] a = Relu(x) [node_2] b = Exp(a) [node_3] y = Neg(b) }"


def scoped() -> ir.Model:
    """A model as exporters write it: the module path stands in the metadata, node names tell nothing."""
    result = model(SCOPED)
    a, b, c = result.graph
    a.metadata_props["pkg.torch.onnx.name_scopes"] = "['', 'model', 'model.layers.3', 'model.layers.3.self_attn', 'relu']"
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
    for node, text in zip(broken.graph, ["['a', ", "{'a': 1}", "[1, 2]"], strict=True):
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
    assert names("op:Exp", text=FUNCTION) == ["exp"]
    assert names("op:local::Block", text=FUNCTION) == ["call"]
    assert values("tensor:t", text=FUNCTION) == ["t"]


QUANTIZED = """
g (float[1,2] x) => (float[1,2] y) <float[2,2] w = {1,2,3,4}, int8[2] b_quantized = {1,2}, float s = {0.5}, int8 z = {0}>
{
  [qw] i = QuantizeLinear(w, s, z)
  [dqw] dw = DequantizeLinear(i, s, z)
  [dqb] db = DequantizeLinear(b_quantized, s, z)
  [dense] y = Gemm(x, dw, db)
}
"""


def test_the_weights_of_a_node_lie_behind_their_pairs() -> None:
    assert values("dense", text=QUANTIZED) == ["dw", "db", "y"]
    assert values("in:dense", text=QUANTIZED) == ["x", "dw", "db"]

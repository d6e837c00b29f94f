"""The selector language: every kind of atom, what it denotes, and what it says when it matches nothing."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from qdq_passes.errors import UsageError
from qdq_passes.roles.roles import ROLES, Roles
from qdq_passes.select.globs import literal, literal_tensor
from qdq_passes.select.selectors import ALL, NONE, Selector, select, select_nodes, select_values

from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal

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
        ("between:*/mlp/Relu..*/Softmax", ["attn/MatMul"]),
        ("path:op:MatMul..op:Softmax & !op:MatMul", ["q_proj/Add", "mlp/Relu", "layers.10/Softmax"]),
        ("!op:MatMul & layer:0", ["q_proj/Add", "mlp/Relu"]),
        ("! op:MatMul&!op:Add & !*/Softmax", ["mlp/Relu", "odd & name"]),
        ("odd \\& name", ["odd & name"]),
        ("tensor:q*", ["q_proj/MatMul", "q_proj/Add"]),
    ],
)
def test_nodes(selector: str, hit: list[str] | None) -> None:
    if hit is None:
        with refusal(UsageError):
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
        with refusal(UsageError):
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
    assert not select(network, NONE).nodes
    assert not select(network, NONE).values
    assert ALL.is_all
    assert not NONE.is_all


def test_allow_empty() -> None:
    assert select(model(NETWORK), Selector.of("op:Conv", "op:Softmax"), allow_empty=True).nodes[0].op_type == "Softmax"
    with refusal(UsageError):
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
    with refusal(UsageError) as caught:
        names(selector)
    assert nearest in (caught.value.hint or "")


@pytest.mark.parametrize(
    "selector",
    [
        "",
        "op:Conv &",
        "!",
        "op:",
        "path:a",
        "between:a",
        "layer:x",
        "layer:3..",
        "in:op:",
    ],
)
def test_syntax(selector: str) -> None:
    with refusal(UsageError):
        Selector.of(selector)


def test_a_regular_expression_that_is_none() -> None:
    """What follows are re's words."""
    with pytest.raises(UsageError, match="bad regular expression"):
        Selector.of("re:(")


ATTENTION = """
g (float[4,8] x) => (float[4,2] y) <float[8,2] w = {1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8}> {
  ["/layers.0/qk"] s = MatMul(x, x)  ["/layers.0/sm"] p = Softmax(s)  ["/layers.0/pv"] z = MatMul(p, x)
  ["/layers.1/qk"] t = MatMul(z, z)  ["/layers.1/sm"] r = Softmax(t)  ["/layers.1/pv"] a = MatMul(r, z)
  ["/head/fc"] c = MatMul(a, w)  ["/head/sm"] y = Softmax(c)
}
"""


@pytest.mark.parametrize(
    ("selector", "hit"),
    [
        ("role:softmax", ["layers.0/sm", "layers.1/sm"]),
        ("role:qk_bmm & layer:1", ["layers.1/qk"]),
        ("!role:softmax & op:Softmax", ["head/sm"]),
        ("op:MatMul & !role:qk_bmm & !role:pv_bmm", ["head/fc"]),
        ("after:role:pv_bmm & role:head", ["head/fc"]),
        ("path:role:softmax..role:pv_bmm & layer:0", ["layers.0/sm", "layers.0/pv"]),
    ],
)
def test_roles(selector: str, hit: list[str]) -> None:
    assert names(selector, text=ATTENTION) == hit


def test_values_of_roles() -> None:
    assert values("role:head", text=ATTENTION) == ["w", "c"]
    assert values("in:role:softmax", text=ATTENTION) == ["s", "t"]


@pytest.mark.parametrize(
    ("selector", "hint"),
    [
        ("role:rope", "no node has the role rope: RotaryEmbedding, or"),
        ("op:MatMul & role:rope", "no node has the role rope: RotaryEmbedding, or"),
        ("in:role:lm_head", "no node has the role lm_head: a last projection"),
        ("path:op:MatMul..role:norm", "no node has the role norm: LayerNormalization"),
        ("role:softmax & layer:7", "role:softmax alone hits 2 of the nodes"),
        ("tensor:role:softmax", "see what there is"),
    ],
)
def test_a_role_that_nothing_has_says_what_was_looked_for(selector: str, hint: str) -> None:
    with refusal(UsageError) as caught:
        names(selector, text=ATTENTION)
    assert hint in (caught.value.hint or "")


def test_an_unknown_role_lists_those_there_are() -> None:
    with refusal(UsageError) as caught:
        Selector.of("op:MatMul & role:sofmax")
    assert caught.value.hint == "roles: " + ", ".join(ROLES)


def test_roles_are_looked_for_only_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def nodes(_: Roles, role: str) -> frozenset[ir.Node]:
        asked.append(role)
        return frozenset()

    monkeypatch.setattr(Roles, "nodes", nodes)
    names("op:MatMul & !layer:0", text=ATTENTION)
    assert not asked
    names("!role:mlp", text=ATTENTION)
    assert asked == ["mlp"]


def test_a_colon_in_a_name_is_no_kind() -> None:
    text = 'g (float[2] x) => (float[2] y) { ["model:relu"] y = Relu(x) }'
    assert names("model:relu", text=text) == ["model:relu"]


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


@pytest.mark.parametrize(
    "name", ["onnx::Conv_298", "x:0", "!x", "-x", "a*[0]?", "b&c", "tab\t", " x", "re:^y$", "op:Conv"]
)
def test_a_literal_is_that_name_alone(name: str) -> None:
    """As a node and as the value that it writes; beside one that a glob or a pattern of it would hit too."""
    graph = model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[1] x) => (float[1] y) { m = Relu(x) y = Relu(m) }'
    )
    first, second = graph.graph
    first.name, first.outputs[0].name, second.name = name, name, "other"
    assert [node.name for node in select(graph, Selector.of(literal(name))).nodes] == [name]
    assert [value.name for value in select(graph, Selector.of(literal_tensor(name))).values] == [name]

"""Roles in the sample models, in float and with pairs on every tensor, and how many calls finding them takes."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import onnx_ir as ir
import pytest
from qdq_passes.graph.uses import all_nodes
from qdq_passes.roles.roles import ROLES, Roles

import qdqtool
from tests.cases.cli_helpers import cli
from tests.cases.small_models import filled, model
from tests.golden_messages.refusal import told

FOLDER = Path(__file__).parents[3] / "sample_models"
#: Nodes per role, in the order of `ROLES`: qk_bmm, softmax, pv_bmm, norm, rope, mlp, lm_head, embedding, kv, head.
COUNTS = {
    "vit_block": (2, 2, 2, 5, 0, 10, 0, 0, 16, 1),
    "tiny_llama": (4, 4, 4, 63, 56, 24, 1, 1, 100, 1),
    "mobilenet_block": (0, 0, 0, 11, 0, 0, 0, 0, 0, 1),
    "detector": (0, 0, 0, 0, 0, 0, 0, 0, 0, 2),
}


def load(name: str) -> ir.Model:
    return qdqtool.load(FOLDER / f"{name}.onnx")


def names(network: ir.Model, role: str) -> list[str]:
    found = Roles(network).nodes(role)
    return [node.name or "" for node in all_nodes(network) if node in found]


def scopes(network: ir.Model, role: str) -> Counter[str]:
    """Module → nodes of ``role`` in it, from the exporter's metadata; the layer's number left out."""
    found = Roles(network).nodes(role)
    modules = (
        node.metadata_props["pkg.torch.onnx.name_scopes"].split("'")[-4] for node in all_nodes(network) if node in found
    )
    return Counter(module.rpartition(".")[2] for module in modules)


@pytest.mark.parametrize("name", COUNTS)
def test_counts(name: str) -> None:
    network = load(name)
    assert tuple(len(names(network, role)) for role in ROLES) == COUNTS[name]


def test_modules_of_a_decoder() -> None:
    network = load("tiny_llama")
    assert scopes(network, "mlp") == {"gate_proj": 4, "up_proj": 4, "down_proj": 4, "act_fn": 8, "mlp": 4}
    assert scopes(network, "norm") == {"input_layernorm": 28, "post_attention_layernorm": 28, "norm": 7}
    assert scopes(network, "lm_head") == {"lm_head": 1}
    assert scopes(network, "embedding") == {"embed_tokens": 1}
    assert scopes(network, "rope") == {"self_attn": 56}
    assert scopes(network, "kv") == {"self_attn": 92, "k_proj": 4, "v_proj": 4}


def test_modules_of_an_encoder() -> None:
    network = load("vit_block")
    assert scopes(network, "mlp") == {"fc1": 4, "act": 2, "fc2": 4}
    assert scopes(network, "norm") == {"norm1": 2, "norm2": 2, "norm": 1}
    assert scopes(network, "kv") == {"k": 4, "v": 4, "attn": 8}
    assert names(load("detector"), "head") == ["/box2", "/cls2"]


@pytest.mark.parametrize("name", ["vit_block", "tiny_llama", "mobilenet_block"])
def test_pairs_on_every_tensor_change_nothing(name: str) -> None:
    network = load(name)
    before = {role: names(network, role) for role in ROLES}
    qdqtool.run_pipeline(network, 'insert-qdq{select="op:*" scale=[0.5] zero-point=[0] dtype=int8}')
    assert sum(node.op_type == "QuantizeLinear" for node in network.graph) > 20
    assert {role: names(network, role) for role in ROLES} == before


def test_the_names_do_not_matter() -> None:
    """Which nodes it is, by position, stays the same when everything is called otherwise."""
    network = load("tiny_llama")
    nodes = all_nodes(network)

    def positions() -> dict[str, list[int]]:
        roles = Roles(network)
        return {role: sorted(map(nodes.index, roles.nodes(role))) for role in ROLES}

    before = positions()
    for k, node in enumerate(nodes):
        node.name = f"n{k}"
        node.metadata_props.clear()
        for output in node.outputs:
            output.name = f"v{k}_{output.index()}"
    for k, value in enumerate(network.graph.inputs):
        value.name = f"i{k}"
    assert positions() == before


def test_match_shows_them() -> None:
    found = cli("match", FOLDER / "vit_block.onnx", "role:softmax", "--json").json
    assert found["nodes"] == ["node_softmax", "node_softmax_1"]
    both = cli("match", FOLDER / "vit_block.onnx", "role:mlp & layer:1", "--json").json
    assert [n for n in both["nodes"] if "MatMul" not in n] == ["node_linear_10", "node_gelu_1", "node_linear_11"]
    assert len(both["nodes"]) == 5
    told(cli("match", FOLDER / "vit_block.onnx", "role:rope", code=2).error)


LAYER = """
  [n{k}] h{k} = LayerNormalization <axis = -1> (x{k}, g)  [q{k}] q{k} = MatMul(h{k}, w)  [k{k}] k{k} = MatMul(h{k}, w)  [v{k}] v{k} = MatMul(h{k}, w)
  [t{k}] t{k} = Transpose <perm = [0,2,1]> (k{k})  [qk{k}] s{k} = MatMul(q{k}, t{k})  [sm{k}] p{k} = Softmax(s{k})  [pv{k}] a{k} = MatMul(p{k}, v{k})
  [o{k}] o{k} = MatMul(a{k}, w)  [r{k}] b{k} = Add(x{k}, o{k})  [m{k}] i{k} = LayerNormalization <axis = -1> (b{k}, g)
  [up{k}] u{k} = MatMul(i{k}, w)  [act{k}] c{k} = Relu(u{k})  [down{k}] d{k} = MatMul(c{k}, w)  [add{k}] x{n} = Add(b{k}, d{k})
"""
#: Many of one thing, where a search that starts again for each of them takes the square of the time.
CHAINS = {
    "layers": LAYER,
    "products": "[qk{k}] s{k} = MatMul(x{k}, x{k})  [add{k}] x{n} = Add(s{k}, x{k})",
    "softmaxes": "[add{k}] x{n} = Add(x{k}, g)  [sm{k}] p{k} = Softmax(x{k})",
    "norms": "[sq{k}] q{k} = Mul(x0, x0)  [mean{k}] m{k} = ReduceMean(q{k})  [root{k}] r{k} = Sqrt(m{k})  [div{k}] x{n} = Div(x0, r{k})",
    "sums": "[up{k}] u{k} = MatMul(x0, w)  [act{k}] c{k} = Relu(u{k})  [down{k}] d{k} = MatMul(c{k}, w)  [add{k}] x{n} = Add(d{k}, x{k})",
    "reshapes": "[q{k}] q{k} = MatMul(x{k}, w)  [t{k}] x{n} = Transpose(q{k})  [c{k}] c{k} = Concat <axis = -1> (x{k}, x{n})",
}


def chain(part: str, nodes: int) -> ir.Model:
    repeats = nodes // part.count("] ")
    body = "".join(part.format(k=k, n=k + 1) for k in range(repeats))
    return model(filled(f"g (float[1,4,8] x0) => (float[1,4,8] x{repeats}) <float[8,8] w, float[8] g> {{ {body} }}"))


def calls(network: ir.Model) -> int:
    """Number of calls, of Python and of C, to find all roles."""
    count = 0

    def counted(frame: FrameType, event: str, of: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        roles = Roles(network)
        for role in ROLES:
            roles.nodes(role)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("part", CHAINS)
def test_calls_are_linear(part: str) -> None:
    """Four times the nodes: four times the calls, or sixteen if they were quadratic; the bound lies between."""
    small, large = (calls(chain(CHAINS[part], nodes)) for nodes in (120, 480))
    assert large < 6 * small

"""Which input of a decoder is what, under any names; and what is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.decoder.look.io import DecoderIo, decoder_io, extra_readers
from qdq_passes.errors import UnsupportedError

from qdqtool.io.models.load import load
from tests.cases.cli_helpers import SAMPLES, cli
from tests.cases.small_decoders import decoder
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal

DATA = Path(__file__).parents[2] / "data" / "decoders"
EXPORTS = sorted(path.parent.name for path in DATA.glob("*/model.onnx"))


def pairs_of(io: DecoderIo) -> list[tuple[int, str, str | None, str | None, int]]:
    return [(p.layer, p.part, p.past.name, p.present.name, p.axis) for p in io.pairs]


@pytest.mark.parametrize("name", EXPORTS)
def test_exports(name: str) -> None:
    io = decoder_io(load(DATA / name / "model.onnx"))
    kinds = [(layer, part) for layer in range(2) for part in ("key", "value")]
    assert pairs_of(io) == [(n, part, f"past_key_values.{n}.{part}", f"present.{n}.{part}", 2) for n, part in kinds]
    assert (io.ids.name, io.logits.name, io.layers, io.others) == ("input_ids", "logits", 2, ())
    assert io.mask is not None
    assert io.mask.name == "attention_mask"
    without = name in ("gemma2_optimum", "llama_genai_int4")
    assert (io.positions.name if io.positions is not None else None) == (None if without else "position_ids")
    update = "GroupQueryAttention" if "genai" in name else "Concat"
    assert {pair.update.op_type for pair in io.pairs} == {update}
    assert all(extra_readers(pair) == [] for pair in io.pairs)
    assert [reason for name, reason in io.reasons if name == "input_ids"] == [
        "ids: chooses rows of an embedding table of 1000"
    ]


def two_layers() -> ir.Model:
    """Two layers whose caches bear no telling names: values of the first layer come first."""
    return model("""g (int64[B,S] a, float[B,1,P,2] c0, float[B,1,P,2] c1, float[B,1,P,2] c2, float[B,1,P,2] c3)
      => (float[B,1,R,2] d0, float[B,1,R,2] d1, float[B,1,R,2] d2, float[B,1,R,2] d3, float[B,1,S,3] scores)
      <float[3,2] table = {1,2,3,4,5,6}, float[2,3] head = {1,2,3,4,5,6}, int64[1] one = {1}, float zero = {0}>
    {
      e = Gather(table, a) x = Unsqueeze(e, one)
      c1_as_is = Concat <axis = 2> (c1) [k0] j0 = Concat <axis = 2> (c1_as_is, x) d0 = Identity(j0)
      [v0] d1 = Concat <axis = 2> (c0, x)
      t0 = Transpose <perm = [0,1,3,2]> (j0) s0 = MatMul(x, t0) p0 = Softmax(s0) y0 = MatMul(p0, d1) z0 = Add(x, y0)
      c2_wide = Cast <to = 1> (c2) [v1] d2 = Concat <axis = 2> (c2_wide, z0) [k1] d3 = Concat <axis = -2> (c3, z0)
      t1 = Transpose <perm = [0,1,3,2]> (d3) s1 = MatMul(z0, t1) p1 = Softmax(s1) y1 = MatMul(p1, d2) scores = MatMul(y1, head)
    }""")


def test_by_use_alone() -> None:
    io = decoder_io(two_layers())
    assert pairs_of(io) == [
        (0, "key", "c1", "d0", 2),
        (0, "value", "c0", "d1", 2),
        (1, "key", "c3", "d3", 2),
        (1, "value", "c2", "d2", 2),
    ]
    assert (io.ids.name, io.logits.name, io.mask, io.positions) == ("a", "scores", None, None)
    assert dict(io.reasons)["c1"] == "key by what it feeds, number by the order of the graph, to d0 by Concat"


@pytest.mark.parametrize(
    "names",
    [
        ("past_key_values.7.key", "past_key_values.7.value"), ("past_0_k", "past_0_v"), ("kv_cache_k_0", "kv_cache_v_0"),
        ("k_cache_0", "v_cache_0"), ("past_key_values.0.decoder.key", "past_key_values.0.decoder.value"),
        ("cache_k", "cache_v"), ("keyCache0", "valueCache0"), ("past0", "past1"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_used", [True, False])
def test_names(names: tuple[str, str], is_used: bool) -> None:
    """By use where both are read by products; by name where what reads them does not tell."""
    graph = decoder() if is_used else decoder(attention="heads = Add(q, q)")
    for value, name in zip(("past_key", "past_value"), names, strict=True):
        next(v for v in graph.graph.inputs if v.name == value).name = name
    for value, name in (("present_key", "next0"), ("present_value", "next1")):
        next(v for v in graph.graph.outputs if v.name == value).name = name
    if not is_used and names == ("past0", "past1"):
        with refusal(UnsupportedError):
            decoder_io(graph)
        return
    io = decoder_io(graph)
    assert pairs_of(io) == [(0, "key", names[0], "next0", 2), (0, "value", names[1], "next1", 2)]
    assert (f"by {'what it feeds' if is_used else 'its name'}" in dict(io.reasons)[names[0]]) is True


def with_update(update: str) -> ir.Model:
    """One head whose keys are updated in place by ``update``: cache_k, x and slots make out_k."""
    return model(f"""<ir_version: 11, opset_import: ["" : 24]>
    g (int64[1,S] tokens, int64[1,S] slots, float[1,1,C,4] cache_k, float[1,1,C,4] cache_v)
      => (float[1,1,S,4] words, float[1,1,C,4] out_k, float[1,1,C,4] out_v)
      <float[2,4] table = {{1,2,3,4,5,6,7,8}}, int64[1] axes = {{1}}, int64[2] column = {{-1,1}}, int64[4] shape = {{1,1,-1,1}},
       int64[4] wide = {{1,1,1,4}}>
    {{
      e = Gather(table, tokens) x = Unsqueeze(e, axes) {update}
      out_v = TensorScatter <axis = 2> (cache_v, x)
      t = Transpose <perm = [0,1,3,2]> (out_k) s = MatMul(x, t) p = Softmax(s) words = MatMul(p, out_v)
    }}""")


@pytest.mark.parametrize(
    "update",
    [
        "at = Reshape(slots, shape) i = Expand(at, wide) out_k = ScatterElements <axis = 2> (cache_k, i, x)",
        "out_k = TensorScatter(cache_k, x)",
        """tk = Transpose <perm = [2,0,1,3]> (cache_k) tx = Transpose <perm = [2,0,1,3]> (x) [at] at = Reshape(slots, column)
        sk = ScatterND(tk, at, tx) out_k = Transpose <perm = [1,2,0,3]> (sk)""",
    ],
)
def test_updated_in_place(update: str) -> None:
    graph = with_update(update)
    for node in graph.graph:
        if node.name == "at":
            node.outputs[0].shape = ir.Shape([None, 1])
    io = decoder_io(graph)
    assert pairs_of(io) == [(0, "key", "cache_k", "out_k", 2), (0, "value", "cache_v", "out_v", 2)]
    assert (io.ids.name, io.logits.name) == ("tokens", "words")


def test_sequence_along_the_last_and_the_first_axis() -> None:
    graph = model("""g (int64[S,B] ids, float[B,1,2,P] k_0, float[P,B,1,2] v_0)
      => (float[S,B,2] logits, float[B,1,2,R] ko, float[R,B,1,2] vo)
      <float[3,2] table = {1,2,3,4,5,6}, int64[1] two = {2}>
    {
      x = Gather(table, ids) u = Unsqueeze(x, two) n = Transpose <perm = [1,2,3,0]> (u)
      ko = Concat <axis = -1> (k_0, n) vo = Concat <axis = 0> (v_0, u)
      q = Transpose <perm = [1,2,0,3]> (u) s = MatMul(q, ko) p = Softmax(s) v = Transpose <perm = [1,2,0,3]> (vo)
      y = MatMul(p, v) t = Transpose <perm = [2,0,1,3]> (y) logits = Squeeze(t, two)
    }""")
    assert [(pair.part, pair.axis, pair.batch_axis) for pair in decoder_io(graph).pairs] == [
        ("key", 3, 0),
        ("value", 0, 1),
    ]


@pytest.mark.parametrize(("shown", "joined"), [("out_k", "turned"), ("x", "x_turned")])
def test_new_rows_lie_as_the_past_does(shown: str, joined: str) -> None:
    """The host slides a cache [batch, past, heads, size] that is turned before the new rows are joined to it."""
    graph = model(f"""g (int64[B,S] tokens, float[B,P,2,4] cache_k, float[B,2,P,4] cache_v)
      => (float[B,S,2,4] {shown}, float[B,2,R,4] out_v, float[B,2,S,4] words)
      <float[2,8] table = {{1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8}}, int64[4] heads = {{0,0,2,4}}>
    {{
      e = Gather(table, tokens) x = Reshape(e, heads) x_turned = Transpose <perm = [0,2,1,3]> (x)
      turned = Identity(x_turned) {"unread" if shown == "x" else shown} = Transpose <perm = [0,2,1,3]> (turned)
      past_turned = Transpose <perm = [0,2,1,3]> (cache_k) all = Concat <axis = 2> (past_turned, {joined})
      out_v = Concat <axis = 2> (cache_v, x_turned)
      t = Transpose <perm = [0,1,3,2]> (all) s = MatMul(x_turned, t) p = Softmax(s) words = MatMul(p, out_v)
    }}""")
    assert pairs_of(decoder_io(graph)) == [(0, "key", "cache_k", shown, 1), (0, "value", "cache_v", "out_v", 2)]


def test_read_twice() -> None:
    """Asking for the shape of a past reads nothing of it; a norm of it does."""
    graph = decoder(
        positions="read = ReduceSum <keepdims = 0> (past_key) x = Add(words, read)", inputs="int64[B,S] input_ids"
    )
    graph_without = decoder(positions="x = Identity(words)", inputs="int64[B,S] input_ids")
    key, value = decoder_io(graph).pairs
    assert [node.op_type for node in extra_readers(key)] == ["ReduceSum"]
    assert extra_readers(value) == []
    assert [extra_readers(pair) for pair in decoder_io(graph_without).pairs] == [[], []]


REFUSED = {
    "no cache": """
        g (int64[1,S] ids) => (float[1,S,2] y) <float[3,2] table = {1,2,3,4,5,6}> { y = Gather(table, ids) }""",
    "keys and values in one": """
        g (int64[1,S] ids, float[2,1,1,P,2] layer_past) => (float[1,S,2] y, float[2,1,1,P,2] present)
        <float[3,2] table = {1,2,3,4,5,6}> { y = Gather(table, ids) present = Identity(layer_past) }""",
    "a cache of an encoder": """
        g (float[1,S,2] x, float[1,2,P] past_encoder_key) => (float[1,S,P] y)
        { y = MatMul(x, past_encoder_key) }""",
    "a state": """
        g (float[1,2,2] x, float[1,2,2] past_ssm_state) => (float[1,2,2] y) { y = Mul(x, past_ssm_state) }""",
    "a window": """
        g (float[1,1,1,2] k, float[1,1,P,2] past_key) => (float[1,1,R,2] present_key)
        <int64[1] first = {-16}, int64[1] last = {9999}, int64[1] axis = {2}>
        { all = Concat <axis = 2> (past_key, k) [cut] present_key = Slice(all, first, last, axis) }""",
    "keys and values side by side": """
        g (int64[1,S] ids, float[1,P,4] kv) => (float[1,S,2] y, float[1,R,4] all)
        <float[3,4] table = {1,2,3,4,5,6,7,8,9,10,11,12}>
        {
          x = Gather(table, ids) all = Concat <axis = 1> (kv, x) k, v = Split <axis = 2, num_outputs = 2> (all)
          q, o = Split <axis = 2, num_outputs = 2> (x) t = Transpose <perm = [0,2,1]> (k) s = MatMul(q, t) p = Softmax(s) y = MatMul(p, v)
        }""",
    "an encoder's in a body": """
        g (bool use, float[1,1,P,2] past_key, float[1,1,1,2] k, float[1,1,P,2] past_encoder_k) => (float[1,1,R,2] present_key)
        { present_key = If(use) <then_branch = t () => (float[1,1,R,2] a) { a = Concat <axis = 2> (past_key, k, past_encoder_k) },
          else_branch = e () => (float[1,1,1,2] b) { b = Identity(k) }> }""",
    "read by nothing": "g (float[1,2] x, float[1,1,P,2] past_key) => (float[1,2] y) { y = Neg(x) }",
    "read in a body": """
        g (bool use, float[1,1,P,2] past_key, float[1,1,1,2] k) => (float[1,1,R,2] present_key)
        { present_key = If(use) <then_branch = t () => (float[1,1,R,2] a) { [inner] a = Concat <axis = 2> (past_key, k) },
          else_branch = e () => (float[1,1,1,2] b) { [other] b = Identity(k) }> }""",
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    with refusal(UnsupportedError) as caught:
        decoder_io(model(REFUSED[name]))
    assert caught.value.hint


def test_a_cache_per_attention() -> None:
    """Attention of opset 23 with its cache inside: which is which says its input."""
    graph = model("""<ir_version: 10, opset_import: ["" : 23]>
    g (int64[1,S] ids, float[1,1,P,2] state_a, float[1,1,P,2] state_b) => (float[1,1,S,2] y, float[1,1,R,2] na, float[1,1,R,2] nb)
      <float[3,2] table = {1,2,3,4,5,6}, int64[1] one = {1}>
    { e = Gather(table, ids) x = Unsqueeze(e, one) y, nb, na = Attention <is_causal = 1> (x, x, x, , state_b, state_a) }""")
    assert pairs_of(decoder_io(graph)) == [(0, "key", "state_b", "nb", 2), (0, "value", "state_a", "na", 2)]


def test_inspect_says_where_the_cache_is() -> None:
    found = cli("inspect", DATA / "gpt2_torchscript" / "model.onnx", "--json").json
    assert found["cache"][0] == {
        "layer": 0, "part": "key", "past": "past_key_values.0.key", "present": "present.0.key", "axis": 2, "batch_axis": 0,
        "update": "Concat", "node": "/model/transformer/h.0/attn/Concat_3",
    }  # fmt: skip
    assert [found["decoder"][role] for role in ("ids", "mask", "positions", "logits", "layers")] == [
        "input_ids", "attention_mask", "position_ids", "logits", 2,
    ]  # fmt: skip
    assert "ids: chooses rows of an embedding table of 1000" in found["decoder"]["reasons"]["input_ids"]
    text = cli("inspect", DATA / "gpt2_torchscript" / "model.onnx").out
    assert "decoder: ids input_ids, mask attention_mask, positions position_ids, logits logits\n" in text
    assert "cache of keys: 2 layers, past_key_values.0.key → present.0.key … " in text.replace("\n", " ")
    other = cli("inspect", SAMPLES / "detector.onnx", "--json").json
    assert "cache" not in other
    assert "decoder" not in other


def test_inspect_opens_what_is_one_operator(tmp_path: Path) -> None:
    """The cache of `fuse-sdpa-kv-cache` is inside a local function: found there, the call is named as what updates it."""
    folder, fused = tmp_path / "split", tmp_path / "fused.onnx"
    cli("split", DATA / "gpt2_torchscript" / "model.onnx", "-o", folder, "--prefill", "none", "--context", "16")
    before = cli("inspect", folder / "decode_b1_s1_c16.onnx", "--json").json
    cli("opt", folder / "decode_b1_s1_c16.onnx", "-o", fused, "-p", "fuse-sdpa-kv-cache")
    after = cli("inspect", fused, "--json").json
    assert {entry["update"] for entry in before["cache"]} == {"ScatterElements"}
    assert {entry["update"] for entry in after["cache"]} == {"SdpaWithKvCache"}
    assert {entry["node"] for entry in after["cache"]} <= {node.name for node in load(fused).graph}
    for entry in (*before["cache"], *after["cache"]):
        del entry["update"], entry["node"]
    assert after["cache"] == before["cache"]
    assert after["decoder"]["mask"] == before["decoder"]["mask"] == "attention_mask"


def test_a_packed_table_shared_with_the_head() -> None:
    """The blocks of a head's weights [rows, blocks, bytes] in another shape are the table that ids choose from."""
    graph = decoder(positions="""packed = Reshape(blocks, table_shape)
      e = com.microsoft.GatherBlockQuantized <block_size = 16, quantize_axis = 1> (packed, input_ids, scales)
      a = Slice(e, nil, eight, two_axis) x = Add(words, a)""",
      inputs="int64[B,S] input_ids", more={
        "blocks": np.zeros((11, 1, 8), np.uint8), "table_shape": np.array([11, 8]), "scales": np.ones((11, 1), np.float32),
        "nil": np.array([0]), "eight": np.array([8]), "two_axis": np.array([2]),
      })  # fmt: skip
    words = next(node for node in graph.graph if node.op_type == "Gather" and node.outputs[0].name == "words")
    words.replace_input_with(0, graph.graph.initializers["scales"])
    assert decoder_io(graph).ids.name == "input_ids"

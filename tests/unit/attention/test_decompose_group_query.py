"""decompose-group-query-attention and bind-group-query-lengths, against onnxruntime's own GroupQueryAttention."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from qdq_passes import run_pipeline
from qdq_passes.errors import UnsupportedError
from qdq_passes.pipeline.hooks import VerifyEach

from qdqtool.io.models.load import model_of
from qdqtool.runtime.session import open_session
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal

Array = npt.NDArray[Any]
HEADS, SHARED, SIZE, ROWS = 4, 2, 32, 64


@dataclass(frozen=True)
class Case:
    """One node: its attributes, its shape, and which inputs it has."""

    batch: int = 1
    length: int = 3
    past: int = 5
    packed: bool = False
    rotated: int = SIZE
    more: tuple[str, ...] = ()
    attributes: tuple[tuple[str, Any], ...] = ()
    dtype: Any = np.float32
    lengths: tuple[int, ...] = ()
    slots: int = 0


def proto(case: Case) -> onnx.ModelProto:
    """A model of the one node; where ``slots`` is given, past and present are declared that long."""
    element = helper.np_dtype_to_tensor_dtype(np.dtype(case.dtype))
    shapes: dict[str, list[Any]] = {"q": ["B", "S", HEADS * SIZE + (2 * SHARED * SIZE if case.packed else 0)]}
    if not case.packed:
        shapes |= {name: ["B", "S", SHARED * SIZE] for name in "kv"}
    past, present = (case.slots, case.slots) if case.slots else ("P", "T")
    if "no past" not in case.more:
        shapes |= {name: ["B", SHARED, past, SIZE] for name in ("pk", "pv")}
    if "bias" in case.more:
        shapes["bias"] = ["B", 1, "S", "T"]
    inputs = [helper.make_tensor_value_info(name, element, shape) for name, shape in shapes.items()]
    inputs += [
        helper.make_tensor_value_info("l", TensorProto.INT32, ["B"]),
        helper.make_tensor_value_info("t", TensorProto.INT32, []),
    ]
    if "positions" in case.more:
        inputs.append(helper.make_tensor_value_info("p", TensorProto.INT64, ["B", "S"]))
    angles = np.arange(ROWS)[:, None] / 100 ** (np.arange(case.rotated // 2) / case.rotated * 2)
    random = np.random.default_rng(0)
    weights = {
        "cos": np.cos(angles), "sin": np.sin(angles), "sink": random.normal(size=HEADS),
        "qn": random.normal(1, 0.1, SIZE), "kn": random.normal(1, 0.1, SIZE),
    }  # fmt: skip
    is_rotated = case.rotated > 0
    names = [
        "q",
        *(["", ""] if case.packed else ["k", "v"]),
        *(["", ""] if "no past" in case.more else ["pk", "pv"]),
        "l",
        "t",
    ]
    names += ["cos", "sin"] if is_rotated else ["", ""]
    names += [
        "p" if "positions" in case.more else "",
        "bias" if "bias" in case.more else "",
        "sink" if "sink" in case.more else "",
    ]
    names += ["", "", "qn", "kn"] if "norms" in case.more else []
    while not names[-1]:
        names.pop()
    options = {"num_heads": HEADS, "kv_num_heads": SHARED, "do_rotary": int(is_rotated), **dict(case.attributes)}
    node = helper.make_node(
        "GroupQueryAttention", names, ["y", "nk", "nv"], name="gqa", domain="com.microsoft", **options
    )
    outputs = [helper.make_tensor_value_info("y", element, ["B", "S", HEADS * SIZE])]
    outputs += [helper.make_tensor_value_info(name, element, ["B", SHARED, present, SIZE]) for name in ("nk", "nv")]
    held = [numpy_helper.from_array(a.astype(case.dtype), name) for name, a in weights.items() if name in names]
    graph = helper.make_graph([node], "g", inputs, outputs, held)
    return helper.make_model(
        graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    )


def feed(case: Case) -> dict[str, Array]:
    random = np.random.default_rng(1)
    past, total = case.slots or case.past, case.slots or case.past + case.length
    shapes = {"q": (case.length, HEADS * SIZE + (2 * SHARED * SIZE if case.packed else 0))}
    if not case.packed:
        shapes |= dict.fromkeys("kv", (case.length, SHARED * SIZE))
    values: dict[str, Array] = {
        name: random.normal(size=(case.batch, *shape)).astype(case.dtype) for name, shape in shapes.items()
    }
    if "no past" not in case.more:
        values |= {
            name: random.normal(size=(case.batch, SHARED, past, SIZE)).astype(case.dtype) for name in ("pk", "pv")
        }
    if "bias" in case.more:
        values["bias"] = random.normal(size=(case.batch, 1, case.length, total)).astype(case.dtype)
    if "positions" in case.more:
        values["p"] = np.arange(case.past, case.past + case.length)[None].repeat(case.batch, 0) + 7
    lengths = case.lengths or (case.past + case.length - 1,) * case.batch
    return {**values, "l": np.array(lengths, np.int32), "t": np.array(total, np.int32)}


CASES = {
    "rotated": Case(),
    "a prompt of two rows": Case(batch=2, past=0),
    "one token of two rows": Case(batch=2, length=1),
    "not rotated": Case(rotated=0),
    "packed": Case(packed=True),
    "interleaved": Case(attributes=(("rotary_interleaved", 1),)),
    "window": Case(attributes=(("local_window_size", 3),), length=4),
    "softcap and scale": Case(attributes=(("softcap", 2.0), ("scale", 0.6))),
    "bias": Case(more=("bias",)),
    "sink": Case(more=("sink",), batch=2, past=0),
    "smooth": Case(attributes=(("smooth_softmax", 1),)),
    "positions": Case(more=("positions",)),
    "partly rotated": Case(rotated=16),
    "no past": Case(more=("no past",), past=0),
    "float16": Case(dtype=np.float16),
}


@pytest.mark.newest
@pytest.mark.parametrize("name", CASES)
def test_pieces_compute_the_same(name: str) -> None:
    """A bound of float32: sums of 32 products and 8 weights in another order, (32 + 8)·2^-24 of values up to 2^3, twice: 2^-15;
    of float16 2^-11 each of three roundings of scores, weights and sums."""
    case = CASES[name]
    expected = open_session(model_of(proto(case))).run(feed(case))
    plain = model_of(proto(case))
    report = run_pipeline(plain, "decompose-group-query-attention", hooks=[VerifyEach()])
    assert report.modified
    assert "com.microsoft" not in {node.domain for node in plain.graph}
    values = feed(case)
    given = {value.name for value in plain.graph.inputs}
    got = open_session(plain).run({key: value for key, value in values.items() if key in given})
    assert list(got) == list(expected)
    for key, value in expected.items():
        assert got[key].shape == value.shape
        error = np.abs(got[key].astype(np.float32) - value.astype(np.float32)).max()
        assert error <= (2.0**-8 if case.dtype == np.float16 else 2.0**-15) * max(np.abs(value).max(), 1), key


@pytest.mark.newest
def test_heads_are_normalized_before_rotation() -> None:
    """onnxruntime's CPU does not: it gets queries and keys that are normalized already."""
    case = Case(more=("norms",))
    plain = model_of(proto(case))
    weights = {name: plain.graph.initializers[name].const_value.numpy() for name in ("qn", "kn")}  # type: ignore[union-attr]
    run_pipeline(plain, "decompose-group-query-attention", hooks=[VerifyEach()])
    values = feed(case)
    given = {value.name for value in plain.graph.inputs}
    got = open_session(plain).run({key: value for key, value in values.items() if key in given})
    for name, weight in (("q", "qn"), ("k", "kn")):
        heads = values[name].reshape(case.batch, case.length, -1, SIZE)
        scaled = heads / np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-6) * weights[weight]
        values[name] = scaled.reshape(values[name].shape)
    expected = open_session(model_of(proto(replace(case, more=())))).run(values)
    for key, value in expected.items():
        np.testing.assert_allclose(got[key], value, atol=2.0**-15)


@pytest.mark.newest
@pytest.mark.parametrize(
    "case", [Case(batch=2, length=1, slots=12, lengths=(7, 3)), Case(length=4, slots=12, lengths=(7,))]
)
def test_a_past_as_long_as_the_present_is_written_into(case: Case) -> None:
    """Rows have lengths of their own; what lies behind them is nobody's."""
    expected = open_session(model_of(proto(case))).run(feed(case))
    plain = model_of(proto(case))
    run_pipeline(plain, "decompose-group-query-attention", hooks=[VerifyEach()])
    assert "ScatterElements" in {node.op_type for node in plain.graph}
    given = {value.name for value in plain.graph.inputs}
    got = open_session(plain).run({key: value for key, value in feed(case).items() if key in given})
    np.testing.assert_allclose(got["y"], expected["y"], atol=2.0**-15)
    for row, last in enumerate(case.lengths):
        for key in ("nk", "nv"):
            np.testing.assert_allclose(got[key][row, :, : last + 1], expected[key][row, :, : last + 1], atol=2.0**-18)


def test_tables_that_an_if_chooses() -> None:
    """Rotations of long contexts have two tables each; the If stays, and its width is that of its branches."""
    text = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    g (bool long, float[1,2,64] q, float[1,1,3,16] pk, float[1,1,3,16] pv, int32[1] l, int32 t) => (float[1,2,32] y, float[1,1,T,16] nk, float[1,1,T,16] nv)
    {
      [if] cos, sin = If(long) <
        then_branch = a () => (float[N,M] c, float[N,M] s) { [c] c = Constant<value = float[8,8] {ONES}>() [s] s = Constant<value = float[8,8] {ZEROS}>() },
        else_branch = b () => (float[N,M] d, float[N,M] r) { [d] d = Constant<value = float[8,8] {ZEROS}>() [r] r = Constant<value = float[8,8] {ONES}>() }>
      [gqa] y, nk, nv = com.microsoft.GroupQueryAttention<kv_num_heads: int = 1, num_heads: int = 2, do_rotary: int = 1>(q, "", "", pk, pv, l, t, cos, sin)
    }""".replace("ONES", ",".join("1" * 64)).replace("ZEROS", ",".join("0" * 64))
    plain = model(text)
    assert run_pipeline(plain, "decompose-group-query-attention", hooks=[VerifyEach()]).modified
    random = np.random.default_rng(6)
    shapes = {"q": (1, 2, 64), "pk": (1, 1, 3, 16), "pv": (1, 1, 3, 16)}
    values = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for long in (True, False):
        given = {**values, "long": np.array(long), "l": np.array([4], np.int32), "t": np.array(5, np.int32)}
        got = open_session(plain).run(given)
        expected = open_session(model(text)).run(given)
        for key, value in expected.items():
            np.testing.assert_allclose(got[key], value, atol=2.0**-15)


def test_masks_and_positions_are_made_once() -> None:
    """Two layers of one past length share the mask; a layer with a window has its own."""
    text = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    g (float[1,S,64] q, float[1,1,P,16] ak, float[1,1,P,16] av, float[1,1,P,16] bk, float[1,1,P,16] bv, float[1,1,P,16] ck,
       float[1,1,P,16] cv, int32[1] l, int32 t) => (float[1,S,32] x, float[1,S,32] y, float[1,S,32] z)
    {
      [a] x, a1, a2 = com.microsoft.GroupQueryAttention<kv_num_heads: int = 1, num_heads: int = 2>(q, "", "", ak, av, l, t)
      [b] y, b1, b2 = com.microsoft.GroupQueryAttention<kv_num_heads: int = 1, num_heads: int = 2>(q, "", "", bk, bv, l, t)
      [c] z, c1, c2 = com.microsoft.GroupQueryAttention<kv_num_heads: int = 1, num_heads: int = 2, local_window_size: int = 2>(q, "", "", ck, cv, l, t)
    }"""
    plain = model(text)
    run_pipeline(plain, "decompose-group-query-attention")
    masks = [node for node in plain.graph if node.op_type == "Where"]
    assert [len(node.outputs[0].uses()) for node in masks] == [2, 1]


def decoder(batch: int, length: int, context: int, options: str = "") -> ir.Model:
    """A decoder of one layer, static: embeddings are queries, keys and values."""
    dims = {"B": batch, "S": length, "C": context, "P": context - length}
    text = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    g (int64[B,S] ids, int64[B,C] attention_mask, float[B,1,P,16] pk, float[B,1,P,16] pv)
      => (float[B,S,32] logits, float[B,1,C,16] nk, float[B,1,C,16] nv)
      <int64[1] one = {1}, int64 axis = {1}, int64[1] flat = {-1}>
    {
      [emb] q = Gather(table, ids)
      [sum] n = ReduceSum<keepdims: int = 0>(attention_mask, one)
      [less] m = Sub(n, one)
      [lens] l = Cast<to: int = 6>(m)
      [shape] sh = Shape(attention_mask)
      [tot] t64 = Gather(sh, axis)
      [total] t = Cast<to: int = 6>(t64)
      [gqa] logits, nk, nv = com.microsoft.GroupQueryAttention<kv_num_heads: int = 1, num_heads: int = 2, do_rotary: int = 1OPTIONS>(q, "", "", pk, pv, l, t, cos, sin)
    }""".replace("OPTIONS", options)
    for name, size in dims.items():
        text = (
            text.replace(f"[{name},", f"[{size},").replace(f",{name},", f",{size},").replace(f",{name}]", f",{size}]")
        )
    random = np.random.default_rng(2)
    angles = np.arange(32)[:, None] / 10 ** (np.arange(8) / 8)
    weights = {"table": random.normal(size=(9, 64)), "cos": np.cos(angles), "sin": np.sin(angles)}
    return model(text, {name: array.astype(np.float32) for name, array in weights.items()})


def teacher(static: dict[int, ir.Model], tokens: Array, context: int, lengths: list[int]) -> Array:
    """Logits of ``tokens`` [B, N], fed in pieces of ``lengths``."""
    batch = len(tokens)
    cache = {name: np.zeros((batch, 1, context, 16), np.float32) for name in ("pk", "pv")}
    found, done = [], 0
    for length in lengths:
        at = slice(done, done + length)
        positions = np.arange(done, done + length)[None].repeat(batch, 0)
        got = open_session(static[length]).run({"ids": tokens[:, at], "position_ids": positions, **cache})
        cache = {"pk": got["nk"], "pv": got["nv"]}
        found.append(got["logits"])
        done += length
    return np.concatenate(found, axis=1)


@pytest.mark.newest
@pytest.mark.parametrize("window", [0, 5])
def test_lengths_from_positions(window: int) -> None:
    """In place, in pieces: bit for bit what one run over all tokens gives, but for sums in another order (2^-18 of values up to 4).

    A cache of the size of its window, which onnxruntime moves itself, becomes one of all slots that shows the same keys."""
    options = f", local_window_size: int = {window}, sliding_window_cache: int = 1" if window else ""
    tokens = np.random.default_rng(3).integers(0, 9, (1, 14))
    whole = decoder(1, 14, 14, f", local_window_size: int = {window}" if window else "")
    empty = np.zeros((1, 1, 0, 16), np.float32)
    mask = np.ones((1, 14), np.int64)
    expected = open_session(whole).run({"ids": tokens, "attention_mask": mask, "pk": empty, "pv": empty})["logits"]
    static = {length: decoder(1, length, 20, options) for length in (4, 1)}
    for bound in static.values():
        run_pipeline(bound, "bind-group-query-lengths", hooks=[VerifyEach()])
        assert "sliding_window_cache" not in {name for node in bound.graph for name in node.attributes}
    got = teacher(static, tokens, 20, [4, 4, 1, 1, 4])
    np.testing.assert_allclose(got, expected, atol=2.0**-18)


@pytest.mark.newest
def test_rows_of_a_batch_have_lengths_of_their_own() -> None:
    static = decoder(2, 1, 8)
    run_pipeline(static, "bind-group-query-lengths")
    random = np.random.default_rng(4)
    cache = {name: random.normal(size=(2, 1, 8, 16)).astype(np.float32) for name in ("pk", "pv")}
    feeds = {"ids": np.array([[3], [4]]), "position_ids": np.array([[5], [2]]), **cache}
    got = open_session(static).run(feeds)["logits"]
    alone = decoder(1, 1, 8)
    run_pipeline(alone, "bind-group-query-lengths")
    for row in (0, 1):
        each = {name: value[row : row + 1] for name, value in feeds.items()}
        np.testing.assert_array_equal(open_session(alone).run(each)["logits"][0], got[row])


def test_several_rows_and_tokens_are_refused() -> None:
    with refusal(UnsupportedError):
        run_pipeline(decoder(2, 3, 8), "bind-group-query-lengths")

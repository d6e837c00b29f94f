"""scatter-kv-cache, emit-new-kv, fuse-sdpa-kv-cache and its inverse: whole decoders, fed piece by piece."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from qdq_passes import dump, run_pipeline
from qdq_passes.decoder.look.io import decoder_io
from qdq_passes.errors import ModelError, UnsupportedError
from qdq_passes.graph.edit import copy_model
from qdq_passes.pipeline.hooks import VerifyEach

from qdqtool.runtime.session import open_session
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal

Array = npt.NDArray[Any]
BATCH, CONTEXT, LAYERS = 2, 12, 2
#: Axes of the cache that stand for batch, heads, sequence and head size.
ORDERS = {"bhsd": (0, 1, 2, 3), "bshd": (0, 2, 1, 3), "bhds": (0, 1, 3, 2), "sbhd": (2, 0, 1, 3)}
OPERATORS = ["scatter-elements", "scatter-nd", pytest.param("tensor-scatter", marks=pytest.mark.newest)]


def decoder(length: int, order: tuple[int, ...] = (0, 1, 2, 3), batch: int = BATCH) -> ir.Model:
    """A static decoder of two layers, one head of 2: positions are added to embeddings, the mask comes in.

    The cache [batch, heads, past, size] stands in ``order``.
    """
    back = tuple(int(axis) for axis in np.argsort(order))

    def shape(rows: int) -> str:
        sizes = (batch, 1, rows, 2)
        return ",".join(str(sizes[axis]) for axis in order)

    inputs = [
        f"int64[{batch},{length}] ids",
        f"int64[{batch},{length}] position_ids",
        f"float[{batch},1,{length},{CONTEXT}] mask",
    ]
    inputs += [f"float[{shape(CONTEXT - length)}] past_{part}{layer}" for layer in range(LAYERS) for part in "kv"]
    outputs = [f"float[{shape(CONTEXT)}] present_{part}{layer}" for layer in range(LAYERS) for part in "kv"]
    nodes = [
        "[emb] e = Gather(table, ids)",
        "[where] f = Gather(places, position_ids)",
        "[sum] h = Add(e, f)",
        "[heads] x0 = Reshape(h, s)",
    ]
    permuted, restored = list(order), list(back)
    for layer in range(LAYERS):
        nodes += [
            f"[k{layer}] k{layer} = Neg(x{layer})",
            f"[rk{layer}] rk{layer} = Transpose<perm: ints = {permuted}>(k{layer})",
            f"[rv{layer}] rv{layer} = Transpose<perm: ints = {permuted}>(x{layer})",
            f"[ck{layer}] present_k{layer} = Concat<axis: int = {order.index(2)}>(past_k{layer}, rk{layer})",
            f"[cv{layer}] present_v{layer} = Concat<axis: int = {order.index(2)}>(past_v{layer}, rv{layer})",
            f"[ak{layer}] ak{layer} = Transpose<perm: ints = {restored}>(present_k{layer})",
            f"[av{layer}] av{layer} = Transpose<perm: ints = {restored}>(present_v{layer})",
            f"[kt{layer}] kt{layer} = Transpose<perm: ints = [0,1,3,2]>(ak{layer})",
            f"[scale{layer}] q{layer} = Mul(x{layer}, scale)",
            f"[qk{layer}] raw{layer} = MatMul(q{layer}, kt{layer})",
            f"[hide{layer}] score{layer} = Add(raw{layer}, mask)",
            f"[soft{layer}] p{layer} = Softmax<axis: int = -1>(score{layer})",
            f"[pv{layer}] y{layer} = MatMul(p{layer}, av{layer})",
            f"[rest{layer}] x{layer + 1} = Add(y{layer}, x{layer})",
        ]
    nodes += [f"[merge] z = Reshape(x{LAYERS}, t)", "[head] logits = MatMul(z, lm)"]
    places = ",".join(str(round(float(np.sin(i)), 3)) for i in range(2 * CONTEXT))
    return model(f"""<ir_version: 10, opset_import: ["" : 17]>
    g ({", ".join(inputs)}) => (float[{batch},{length},4] logits, {", ".join(outputs)})
    <float[4,2] table = {{1, 0.5, -1, 0.25, 0.75, -0.5, 0, 1}}, float[{CONTEXT},2] places = {{{places}}}, float scale = {{0.5}},
     int64[4] s = {{{batch},1,{length},2}}, int64[3] t = {{{batch},{length},2}}, float[2,4] lm = {{1,-1,0.5,2,0.3,1,-2,0.7}}>
    {{ {" ".join(nodes)} }}""")


def tokens(count: int) -> Array:
    return np.random.default_rng(0).integers(0, 4, (BATCH, count))


def expected(count: int) -> Array:
    """Logits of all tokens in one run, without a past."""
    whole = decoder(CONTEXT)
    ids = np.concatenate([tokens(count), np.zeros((BATCH, CONTEXT - count), np.int64)], axis=1)
    positions = np.arange(CONTEXT)[None].repeat(BATCH, 0)
    mask = np.where(np.tri(CONTEXT, dtype=bool), 0, -1e9).astype(np.float32)[None, None].repeat(BATCH, 0)
    empty = {
        v.name: np.zeros([int(d) for d in v.shape], np.float32)
        for v in whole.graph.inputs
        if (v.name or "").startswith("past")
    }  # type: ignore[union-attr, misc]
    return np.asarray(
        open_session(whole).run({"ids": ids, "position_ids": positions, "mask": mask, **empty})["logits"][:, :count]
    )


def in_place(static: dict[int, ir.Model], lengths: list[int]) -> Array:
    """Logits of the tokens in pieces of ``lengths``, the cache fed back as it comes out."""
    cache = {
        pair.past: np.zeros([int(d) for d in pair.past.shape], np.float32)
        for pair in decoder_io(static[lengths[0]]).pairs
    }  # type: ignore[union-attr]
    held = {past.name: value for past, value in cache.items()}
    found, done, ids = [], 0, tokens(sum(lengths))
    for length in lengths:
        rows = np.arange(done, done + length)
        mask = (
            np.where(np.arange(CONTEXT)[None] <= rows[:, None], 0, -1e9).astype(np.float32)[None, None].repeat(BATCH, 0)
        )
        feed = {"ids": ids[:, done : done + length], "position_ids": rows[None].repeat(BATCH, 0), "mask": mask, **held}
        got = open_session(static[length]).run(feed)
        held = {name: got[name.replace("past", "present")] for name in held if name}
        found.append(got["logits"])
        done += length
    return np.concatenate(found, axis=1)


#: Sums of at most 12 products of values up to 4 in another order, over two layers.
BOUND = 2.0**-17


@pytest.mark.product(cover=("operator", "order"))
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_in_place(order: str, operator: str) -> None:
    static = {length: decoder(length, ORDERS[order]) for length in (4, 1)}
    for each in static.values():
        text = f"scatter-kv-cache{{operator={operator}}}"
        if order == "sbhd" and operator == "tensor-scatter":
            with refusal(UnsupportedError):
                run_pipeline(each, text)
            return
        run_pipeline(each, text, hooks=[VerifyEach()])
        assert "Concat" not in {node.op_type for node in each.graph if node.name and node.name.startswith("c")}
    np.testing.assert_allclose(in_place(static, [4, 1, 4, 1, 1]), expected(11), atol=BOUND)


@pytest.mark.parametrize("operator", OPERATORS)
def test_rows_of_a_batch_have_slots_of_their_own(operator: str) -> None:
    """A token of row 0 at 5, one of row 1 at 2: each lands in its slot, all others stay; garbage behind is not looked at."""
    step = decoder(1)
    run_pipeline(step, f"scatter-kv-cache{{operator={operator}}}")
    random = np.random.default_rng(1)
    held = {
        name: random.normal(size=(BATCH, 1, CONTEXT, 2)).astype(np.float32)
        for name in ("past_k0", "past_v0", "past_k1", "past_v1")
    }
    positions = np.array([[5], [2]])
    feed = {
        "ids": np.array([[1], [3]]),
        "position_ids": positions,
        "mask": np.zeros((BATCH, 1, 1, CONTEXT), np.float32),
        **held,
    }
    got = open_session(step).run(feed)
    for name, before in held.items():
        changed = (got[name.replace("past", "present")] != before).any(axis=(1, 3))
        np.testing.assert_array_equal(changed, np.arange(CONTEXT)[None] == positions)


def test_one_index_serves_all() -> None:
    static = decoder(4)
    run_pipeline(static, "scatter-kv-cache")
    indices = {node.inputs[1] for node in static.graph if node.op_type == "ScatterElements"}
    assert len(indices) == 1


def test_positions_in_int32_and_of_one_axis() -> None:
    """A batch of one may have positions [sequence]; indices are int64."""
    static = decoder(4, batch=1)
    positions = next(value for value in static.graph.inputs if value.name == "position_ids")
    positions.shape, positions.type = ir.Shape([4]), ir.TensorType(ir.DataType.INT32)
    run_pipeline(static, "scatter-kv-cache{operator=scatter-nd}", hooks=[VerifyEach()])
    past = {
        v.name: np.zeros((1, 1, CONTEXT, 2), np.float32)
        for v in static.graph.inputs
        if (v.name or "").startswith("past")
    }
    feed = {
        "ids": np.array([[1, 2, 3, 0]]),
        "position_ids": np.array([3, 4, 5, 6], np.int32),
        "mask": np.zeros((1, 1, 4, CONTEXT), np.float32),
    }
    got = open_session(static).run({**feed, **past})
    assert (got["present_k0"] != 0).any(axis=(0, 1, 3)).nonzero()[0].tolist() == [3, 4, 5, 6]


def test_positions_of_another_length_are_refused() -> None:
    static = decoder(4)
    run_pipeline(static, "infer-shapes")
    next(value for value in static.graph.inputs if value.name == "position_ids").shape = ir.Shape([BATCH, 3])
    with refusal(ModelError):
        run_pipeline(static, "scatter-kv-cache")


def test_heads_and_batch_on_one_axis_are_refused() -> None:
    static = decoder(4)
    run_pipeline(static, "infer-shapes")
    next(value for value in static.graph.inputs if value.name == "position_ids").shape = ir.Shape([3, 4])
    with refusal(UnsupportedError):
        run_pipeline(static, "scatter-kv-cache")


def slide(static: dict[int, ir.Model], lengths: list[int], axis: int) -> Array:
    """Logits of the tokens in pieces; the host appends new rows and drops the oldest. Rows of zeros before the first token."""
    held = {v.name: None for v in static[lengths[0]].graph.inputs if (v.name or "").startswith("past")}
    shape = next([int(d) for d in v.shape] for v in static[lengths[0]].graph.inputs if v.name in held)  # type: ignore[union-attr, misc]
    shape[axis] = CONTEXT
    cache = {name: np.zeros(shape, np.float32) for name in held if name}
    found, done, ids = [], 0, tokens(sum(lengths))
    for length in lengths:
        slots, count = np.arange(CONTEXT)[None], done + length
        seen = (slots <= CONTEXT - length + np.arange(length)[:, None]) & (slots >= CONTEXT - count)
        mask = np.where(seen, 0, -1e9).astype(np.float32)[None, None].repeat(BATCH, 0)
        positions = np.arange(done, count)[None].repeat(BATCH, 0)
        past = {name: np.take(value, range(length, CONTEXT), axis) for name, value in cache.items()}
        got = open_session(static[length]).run(
            {"ids": ids[:, done:count], "position_ids": positions, "mask": mask, **past}
        )
        new = {name: got[name.replace("past", "present")] for name in cache}
        assert {value.shape[axis] for value in new.values()} == {length}
        cache = {name: np.concatenate([past[name], new[name]], axis) for name in cache}
        found.append(got["logits"])
        done = count
    return np.concatenate(found, axis=1)


@pytest.mark.parametrize("order", ORDERS)
def test_slide(order: str) -> None:
    static = {length: decoder(length, ORDERS[order]) for length in (4, 1)}
    for each in static.values():
        run_pipeline(each, "emit-new-kv", hooks=[VerifyEach()])
    axis = ORDERS[order].index(2)
    np.testing.assert_allclose(slide(static, [4, 1, 4, 1, 1], axis), expected(11), atol=BOUND)


def test_a_cache_in_place_does_not_slide() -> None:
    static = decoder(4)
    run_pipeline(static, "scatter-kv-cache")
    with refusal(UnsupportedError):
        run_pipeline(static, "emit-new-kv")


@pytest.mark.product(cover=("operator", "order", "length"))
@pytest.mark.parametrize("length", [4, 1])
@pytest.mark.parametrize("order", [order for order in ORDERS if order != "sbhd"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_fused_and_back(operator: str, order: str, length: int) -> None:
    """Bit for bit, both ways; layers share one function; the way back restores names, types, scopes and origins."""
    static = decoder(length, ORDERS[order])
    run_pipeline(static, f"scatter-kv-cache{{operator={operator}}}")
    before = dump(static)
    fused = copy_model(static)
    report = run_pipeline(fused, "fuse-sdpa-kv-cache", hooks=[VerifyEach()])
    calls = [node for node in fused.graph if node.domain == "qdqtool.llm"]
    assert len(calls) == LAYERS
    assert len(fused.functions) == 1
    assert [value.name for value in calls[0].inputs if value is not None] == [
        "x0", "rk0", "rv0", "past_k0", "past_v0", "position_ids", "mask"
    ]  # fmt: skip
    assert not any(change.is_skip for change in report.changes)
    feed = feed_of(static)
    results = [open_session(each).run(feed) for each in (static, fused)]
    restored = copy_model(fused)
    run_pipeline(restored, "decompose-sdpa-kv-cache", hooks=[VerifyEach()])
    results.append(open_session(restored).run(feed))
    for other in results[1:]:
        for name, value in results[0].items():
            np.testing.assert_array_equal(other[name], value)
    assert sorted(dump(restored).splitlines()) == sorted(before.splitlines())


def feed_of(static: ir.Model) -> dict[str, Array]:
    random, feed = np.random.default_rng(2), dict[str, Array]()
    for value in static.graph.inputs:
        shape = [int(d) for d in value.shape]  # type: ignore[union-attr, misc]
        name = value.name or ""
        is_float = value.dtype == ir.DataType.FLOAT
        feed[name] = random.normal(size=shape).astype(np.float32) if is_float else random.integers(0, 4, shape)
    feed["position_ids"] = np.arange(3, 3 + feed["ids"].shape[1])[None].repeat(BATCH, 0)
    return feed


def test_layers_that_compute_otherwise_have_functions_of_their_own() -> None:
    static = decoder(4)
    run_pipeline(static, "scatter-kv-cache")
    softmax = next(node for node in static.graph if node.name == "soft1")
    softmax.attributes["axis"] = ir.AttrInt64("axis", 2)
    run_pipeline(static, "fuse-sdpa-kv-cache", hooks=[VerifyEach()])
    assert [key[1] for key in static.functions] == ["SdpaWithKvCache", "SdpaWithKvCache_1"]

"""The pieces under the session: masks, chunks, sampling, caches, bound memory."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from qdq_passes.decoder.look.record import HIDDEN, HIDDEN_FLOAT16
from qdq_passes.errors import ModelError, UsageError

from qdqtool.llm.plan.buckets import RUN, chunks
from qdqtool.llm.run.cache import Cache, CacheSpec
from qdqtool.llm.run.generating import Sampler, Sampling
from qdqtool.llm.run.masks import HostMask, blocked
from qdqtool.runtime.bound import Bound, Buffer, Chained, open_file
from tests.cases.cli_helpers import write
from tests.golden_messages.refusal import refusal


@pytest.mark.parametrize("layout", ["in-place", "slide"])
@given(
    window=st.integers(0, 6),
    starts=st.lists(st.integers(0, 10), min_size=2, max_size=2),
    seq_len=st.integers(1, 4),
    counts=st.lists(st.integers(0, 4), min_size=2, max_size=2),
    steps=st.integers(0, 6),
)
def test_masks_say_what_the_record_says(
    layout: str, window: int, starts: list[int], seq_len: int, counts: list[int], steps: int
) -> None:
    """Each mask, after runs before it, by the definition of `MaskInput`, written out."""
    ctx_len = 16
    mask = HostMask(np.full((2, 1, seq_len, ctx_len), 7, np.float32), layout, window)  # type: ignore[arg-type]
    counts = [min(count, seq_len) for count in counts]
    for step in range(steps + 1):
        at = [min(start + step, ctx_len - seq_len) for start in starts]
        mask.write(at, counts)
        for row, query, key in itertools.product(range(2), range(seq_len), range(ctx_len)):
            if layout == "in-place":
                position = at[row] + query
                sees = key <= position and (not window or key > position - window)
            else:
                slot = ctx_len - seq_len + query
                sees = key <= slot and (not window or key > slot - window) and key >= ctx_len - (at[row] + counts[row])
            assert mask.array[row, 0, query, key] == (0 if sees else HIDDEN)


def test_what_blocks_is_finite_in_every_type() -> None:
    assert blocked(np.dtype(np.float32)) == np.float32(-1e9)
    assert blocked(np.dtype(np.float16)) == HIDDEN_FLOAT16
    assert blocked(np.dtype(np.bool_)) is False


@given(st.integers(1, 90), st.sets(st.integers(1, 24), min_size=1, max_size=3))
def test_chunks_cost_the_least(length: int, seq_lens: set[int]) -> None:
    """No other runs are cheaper: the least cost of all sums, by dynamic programming over exact sums."""
    found = chunks(length, tuple(seq_lens))
    assert sum(found) >= length
    assert list(found) == sorted(found, reverse=True)
    assert set(found) <= seq_lens
    least: dict[int, int] = {0: 0}
    for total in range(1, length + max(seq_lens)):
        known = [least[total - s] + RUN + s for s in seq_lens if total - s in least]
        if known:
            least[total] = min(known)
    assert sum(RUN + s for s in found) == min(cost for total, cost in least.items() if total >= length)


def test_chunks_of_long_and_short_prompts() -> None:
    assert chunks(4096, (1, 128, 512)) == (512,) * 8
    assert chunks(3, (1, 128)) == (1, 1, 1)
    assert chunks(9, (1, 128)) == (128,)
    assert chunks(130, (1, 128)) == (128, 1, 1)
    assert chunks(5, (16,)) == (16,)


def test_greedy_takes_the_first_of_equals() -> None:
    assert Sampler(Sampling()).pick(np.array([1, 3, 3, 2], np.float32)) == 1
    with refusal(ModelError):
        Sampler(Sampling()).pick(np.array([1, np.nan], np.float32))


def test_sampling_draws_as_likely_as_softmax_says() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    sampler = Sampler(Sampling(temperature=1.0, seed=3))
    counts = np.bincount([sampler.pick(logits) for _ in range(4000)], minlength=4)
    # four standard deviations of a share p of 4000 draws: 4·sqrt(p(1-p)/4000) < 0.032
    np.testing.assert_allclose(counts / 4000, [0.5, 0.3, 0.15, 0.05], atol=0.032)
    cold = Sampler(Sampling(temperature=0.5, seed=3))
    counts = np.bincount([cold.pick(logits) for _ in range(4000)], minlength=4)
    squared = np.array([0.25, 0.09, 0.0225, 0.0025])
    np.testing.assert_allclose(counts / 4000, squared / squared.sum(), atol=0.032)


def test_top_k_and_top_p_leave_the_others_out() -> None:
    logits = np.log(np.array([0.05, 0.5, 0.15, 0.3], np.float32))

    def drawn(**options: float) -> set[int]:
        sampler = Sampler(Sampling(temperature=1.0, **options))  # type: ignore[arg-type]
        return {sampler.pick(logits) for _ in range(300)}

    assert drawn() == {0, 1, 2, 3}
    assert drawn(top_k=2) == {1, 3}
    assert drawn(top_p=0.7) == {1, 3}
    assert drawn(top_p=0.81) == {1, 2, 3}
    assert drawn(top_p=0.01) == {1}
    assert drawn(top_k=3, top_p=0.5) == {1}


def test_equal_seeds_draw_equal_tokens() -> None:
    logits = np.zeros(50, np.float32)
    samplers = [Sampler(Sampling(temperature=1, seed=seed)) for seed in (1, 1, 2)]
    runs = [[sampler.pick(logits) for _ in range(20)] for sampler in samplers]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize(
    "options",
    [{"temperature": -1}, {"temperature": float("inf")}, {"top_k": -1}, {"top_p": 0}, {"top_p": 1.5}, {"seed": -1}],
)
def test_options_out_of_range(options: dict[str, float]) -> None:
    with refusal(UsageError):
        Sampling(**options)  # type: ignore[arg-type]


def test_a_state_of_several_layers_is_taken_over_whole() -> None:
    """Three layers of two rows in one tensor: row 0 has four tokens, row 1 two."""
    spec = {(0, "both"): CacheSpec(shape=(6, 2, 8, 3), axis=2, dtype=np.dtype(np.float32))}
    small, large = Cache(spec, 5), Cache(spec, 9)
    (key,) = spec
    small.buffers[key].array[...] = np.random.default_rng(0).normal(size=(6, 2, 5, 3))
    large.take(small, (4, 2))
    for layer, (row, length) in itertools.product(range(3), enumerate((4, 2))):
        found, wanted = large.buffers[key].array[2 * layer + row], small.buffers[key].array[2 * layer + row]
        np.testing.assert_array_equal(found[:, :length], wanted[:, :length])
        assert not found[:, length:].any()


def double(path: Path) -> str:
    return write(path / "double.onnx", "g (float[2] x) => (float[2] y) { y = Add(x, x) }")


def test_bound_memory_is_read_and_written_where_it_is(tmp_path: Path) -> None:
    session = open_file(double(tmp_path), threads=1)
    x, y = Buffer(np.array([1, 2], np.float32)), Buffer(np.zeros(2, np.float32))
    bound = Bound(session, {"x": x}, {"y": y})
    bound.run()
    assert y.array.tolist() == [2, 4]
    x.array[:] = 5
    bound.run()
    assert y.array.tolist() == [10, 10]
    other = np.array([0, 7, 8, 0], np.float32)
    bound.point("x", other[1:].ctypes.data)
    bound.run()
    assert y.array.tolist() == [14, 16]


def test_bound_memory_must_fit(tmp_path: Path) -> None:
    session = open_file(double(tmp_path))
    fits = Buffer(np.zeros(2, np.float32))
    for inputs in ({}, {"x": Buffer(np.zeros(3, np.float32))}, {"x": Buffer(np.zeros(2, np.int64))}):
        with refusal(UsageError):
            Bound(session, inputs, {"y": fits})
    with refusal(UsageError):
        Bound(session, {"x": fits}, {})
    with refusal(UsageError):
        Bound(session, {"x": fits}, {"y": Buffer(np.zeros(3, np.float32))})
    with pytest.raises(ValueError, match="contiguous"):
        Buffer(np.zeros((2, 2), np.float32).T[:1])


def test_a_node_that_fails_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", "g (float[2] x, int64[1] i) => (float[1] y) { [pick] y = Gather(x, i) }")
    session = open_file(path)
    buffers = {
        "x": Buffer(np.zeros(2, np.float32)), "i": Buffer(np.array([5])), "y": Buffer(np.zeros(1, np.float32))
    }  # fmt: skip
    with pytest.raises(ModelError, match="Gather fails in onnxruntime"):
        Bound(session, buffers, buffers).run()
    with pytest.raises(ModelError, match="Gather fails in onnxruntime"):
        Chained(session).run({"x": buffers["x"], "i": buffers["i"]}, ["y"])


def test_outputs_become_inputs_without_a_copy(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", "g (float[n] x, float[m] p) => (float[t] q) { q = Concat<axis=0>(p, x) }")
    chained = Chained(open_file(path))
    past: object = Buffer(np.zeros(0, np.float32))
    for number in range(3):
        found = chained.run({"x": Buffer(np.array([number], np.float32)), "p": past}, ["q"])  # type: ignore[dict-item]
        past = found["q"]
    assert found["q"].array.tolist() == [0, 1, 2]


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    with refusal(ModelError):
        open_file(tmp_path / "missing.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    with pytest.raises(ModelError, match="refuses the model"):
        open_file(tmp_path / "bad.onnx")

"""Where the batch of a model flows."""

from __future__ import annotations

import pytest
from qdq_passes.npu.units.batches import batch_axes, batch_sizes, regrouped
from qdq_passes.pipeline.pipeline import run_pipeline

from tests.cases.small_models import filled, model


def found(text: str) -> tuple[dict[str, int], dict[str, int]]:
    """Name → axis of the batch; name → its size where it counts."""
    graph = model(text)
    run_pipeline(graph, "infer-shapes")
    axes, sizes = batch_axes(graph.graph), batch_sizes(graph.graph)
    return {v.name or "": axis for v, axis in axes.items()}, {v.name or "": size for v, size in sizes.items()}


def test_a_batch_of_images_ends_in_rows() -> None:
    """Conv, tokens, a turn, then rows of a matrix: they are no batch."""
    axes, sizes = found(
        filled("""g (float[4,3,8,8] x) => (y)
        <float[8,3,1,1] w, float[8,5] m, int64[3] tokens = {4, 8, 64}, int64[2] rows = {-1, 8}> {
          c = Conv(x, w) t = Reshape(c, tokens) p = Transpose<perm = [0, 2, 1]>(t) r = Reshape(p, rows) y = MatMul(r, m) }""")
    )
    assert axes == {"x": 0, "c": 0, "t": 0, "p": 0}
    assert sizes == {"x": 4, "c": 4, "t": 4, "p": 4}


def test_windows_heads_and_constants_are_none() -> None:
    """Of one image: windows in the first axis, heads folded into it, a constant with rows."""
    axes, _ = found(
        """g (float[1,4,4,6] x, float[197,6] table) => (y, z)
        <int64[6] cut = {1, 2, 2, 2, 2, 6}, int64[3] windows = {4, 4, 6}, int64[3] heads = {8, 4, 3}> {
          c = Reshape(x, cut) t = Transpose<perm = [0, 1, 3, 2, 4, 5]>(c) w = Reshape(t, windows) y = Reshape(w, heads)
          z = Add(table, table) }"""
    )
    assert axes == {}


def test_ids_bring_their_batch_into_what_is_gathered() -> None:
    """[2,5] ids of a table [7,6] make [2,5,6]; gathered along another axis the batch stays, along its own it goes."""
    axes, sizes = found(
        """g (int64[2,5] ids, float[7,6] table) => (e, other, own)
        <int64[2] some = {0, 3}, int64 one = {1}> {
          e = Gather(table, ids) other = Gather<axis = 1>(e, some) own = Gather<axis = 0>(e, one) }"""
    )
    assert axes == {"ids": 0, "e": 0, "other": 0}
    assert sizes == {"e": 2, "other": 2}


def test_what_turns_and_reduces() -> None:
    """A turned batch is one on another axis; a sum over the axis before it moves it, over itself ends it."""
    axes, _ = found(
        """g (float[2,3,4] x) => (a, b, c) <int64[1] first = {0}> {
          t = Transpose<perm = [1, 0, 2]>(x) a = ReduceSum<keepdims = 0>(t, first)
          b = ReduceSum<keepdims = 0>(x, first) d = Transpose(b) c = MatMul(x, d) }"""
    )
    assert axes == {"x": 0, "t": 1, "a": 0, "c": 0}


@pytest.mark.parametrize("other", ["1,4,5", "N,4,5"])
def test_matrices_have_rows_and_all_inputs_the_batch(other: str) -> None:
    """Beside one sample, or a symbol for them, seven are no batch."""
    axes, _ = found(f"g (float[4,5] m, float[{other}] x, float[7,4,5] y) => (s, t) {{ s = Add(x, m) t = Relu(y) }}")
    assert axes == {}
    axes, _ = found("g (float[4,5] m, float[7,4,5] y) => (s) { s = Add(y, m) }")
    assert axes == {"y": 0, "s": 0}


@pytest.mark.parametrize(
    ("after", "wanted"),
    [([4, 24], 0), ([1, 4, 24], 1), ([8, 12], None), ([2, 2, 24], None), ([4, 2, 12], 0), ([24, 4], None)],
)
def test_regrouped(after: list[int], wanted: int | None) -> None:
    assert regrouped([4, 2, 12], after, 0) == wanted

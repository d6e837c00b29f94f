"""The reference's histogram against numpy's, step by step, and what it does to positions."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from qdq_passes.errors import UnsupportedError, UsageError

from qdqtool.calibrate.collect import collect
from qdqtool.calibrate.methods.pow2_minmse import Pow2Minmse, ReferenceHistogram
from qdqtool.calibrate.observer import Range, extremes
from qdqtool.calibrate.ranges import Ranges, merge
from tests.cases.small_models import model
from tests.dial import examples
from tests.golden_messages.refusal import refusal

Array = npt.NDArray[Any]


def f32(*values: float) -> Array:
    return np.array(values, np.float32)


#: A first sample of some width (or constant), later ones up to 16 times as wide: at most 2^16 bins. Eighths sit on edges.
later = hnp.arrays(
    np.float32,
    st.integers(1, 30),
    elements=st.one_of(st.floats(-16, 16, width=32), st.integers(-40, 40).map(lambda i: i / 8)),
)
first = st.one_of(
    later.map(lambda x: np.concatenate([np.clip(x, -2, 2), f32(-1, 1)])),
    st.floats(-3, 3, width=32).map(lambda c: np.full(3, c, np.float32)),
)
units = st.one_of(st.integers(-60, 60).map(lambda e: 2.0**e), st.floats(1e-6, 1e6))


class Spelt:
    """The histogram as the reference spells it: numpy's, over explicit edges, in float64."""

    def __init__(self, first: Array) -> None:
        self.counts, self.edges = np.histogram(first.astype(np.float64), 2048)

    def add(self, x: Array) -> None:
        x, edges = x.astype(np.float64), self.edges
        width, n = edges[1] - edges[0], self.counts.size
        left = max(0, math.ceil((edges[0] - x.min()) / width))
        right = max(0, math.ceil((x.max() - edges[-1]) / width))
        if left or right:
            edges = np.linspace(edges[0] - left * width, edges[-1] + right * width, n + left + right + 1)
        counts = np.histogram(x, edges)[0]
        counts[left : left + n] += self.counts
        self.counts, self.edges = counts, edges


def added(*arrays: Array) -> ReferenceHistogram:
    found = ReferenceHistogram()
    for array in arrays:
        found.add(array, *extremes(array))
    return found


@settings(max_examples=examples(150), deadline=None)
@given(first, st.lists(later, max_size=4), units)
def test_counts_and_edges_are_those_of_numpy(start: Array, others: list[Array], unit: float) -> None:
    """For all samples in any order and any unit: every edge and every count, through JSON too."""
    if np.ptp(start) == 0:
        unit = 1.0  # half a unit on either side
    xs = [(x * np.float32(unit)).astype(np.float32) for x in (start, *others)]
    spelt = Spelt(xs[0])
    for x in xs[1:]:
        spelt.add(x)
    found = added(*xs)
    assert np.array_equal(found.edges, spelt.edges)
    assert np.array_equal(found.counts, spelt.counts)
    again = ReferenceHistogram.from_state(json.loads(json.dumps(found.state())))
    assert np.array_equal(again.edges, spelt.edges)
    assert again.state() == found.state()


def test_counting_large_tensors() -> None:
    """More than one chunk, with the zeros of a Relu on an edge, the ends, and a range that is a sliver far from 0."""
    rng = np.random.default_rng(0)
    for x in (
        np.maximum(rng.standard_normal(200_000), 0),
        rng.standard_normal((3, 70_000)) * 1e-3 + 1e4,
        np.round(rng.standard_normal(150_000) * 100) / 64,
    ):
        wider = x + (x - x.mean()) / 4
        samples = [x.astype(np.float32), wider.astype(np.float32)]
        spelt = Spelt(samples[0])
        spelt.add(samples[1])
        found = added(*samples)
        assert np.array_equal(found.edges, spelt.edges)
        assert np.array_equal(found.counts, spelt.counts)


def test_a_constant_first_sample() -> None:
    """numpy gives it half a unit on either side; 2048 bins of 1/2048. The next sample, 1.25 beyond, adds 2560."""
    found = added(np.full(3, 2.0, np.float32))
    assert (found.edges[0], found.edges[-1], found.counts[1024]) == (1.5, 2.5, 3)
    found.add(np.array([3.75], np.float32), 3.75, 3.75)
    assert (found.edges[0], found.edges[-1], found.counts.size, found.counts.sum()) == (1.5, 3.75, 4608, 4)


def test_squared_error_by_hand() -> None:
    """Bins of [−1, 1] are 1/1024 wide. 0.3 lies in bin 1331, centre 1331.5/1024 − 1 = 0.30029296875; on steps of 1/4 that is
    0.25, on steps of 1/8 it is 0.25 too, on 1/16 it is 0.3125."""
    x = np.array([-1, 0.3, 1], np.float32)
    observer = Pow2Minmse(reference=True)
    observer.observe(x, *extremes(x))
    center, end = 1331.5 / 1024 - 1, 2047.5 / 1024 - 1
    for scale, near_center, near_end in ((0.25, 0.25, 1.0), (0.0625, 0.3125, 1.0)):
        expected = (center - near_center) ** 2 + 2 * (end - near_end) ** 2
        assert observer._error(scale) == expected
    assert observer._error(2.0**-9) == 2 * (end - 127 / 512) ** 2 + (center - 127 / 512) ** 2


def test_zeros_have_the_coarsest_position() -> None:
    """All five errors are the same where every centre rounds to 0: position −1, and no error in strict mode keeps [0, 0]."""
    zeros = np.zeros((2, 3), np.float32)
    for reference, expected in ((True, Range(-254, 254)), (False, Range(0, 0))):
        observer = Pow2Minmse(reference=reference)
        observer.observe(zeros, 0.0, 0.0)
        assert observer.range() == expected


def test_too_many_bins_are_refused() -> None:
    found = added(f32(0, 1e-4))
    with refusal(UnsupportedError):
        found.add(f32(0, 1), 0.0, 1.0)
    relu = model("g (float[2] x) => (float[2] y) { [r] y = Relu(x) }")
    feeds = [{"x": f32(0, 1e-4)}, {"x": f32(0, 1)}]
    with refusal(UnsupportedError):
        collect(relu, feeds, "pow2-minmse", options={"reference": True})
    assert collect(relu, feeds, "pow2-minmse").tensors["x"] == Range(-127 / 64, 127 / 64)  # 1 is exact there


def test_a_constant_that_leaves_no_bins_is_refused() -> None:
    with refusal(UnsupportedError):
        added(np.full(2, 1e20, np.float32))


NEG = "g (float[2] x) => (float[2] y) { [n] y = Neg(x) }"


def test_nan_and_infinity_are_sanitized() -> None:
    feeds = [{"x": f32(1, 2)}, {"x": f32(np.nan, -3)}]
    found = collect(model(NEG), feeds, "pow2-nonoverflow", options={"reference": True})
    assert found.tensors == {"x": Range(-3, 2), "y": Range(-2, 3)}
    wide = collect(model(NEG), [{"x": f32(np.inf, -3)}], "pow2-nonoverflow", options={"reference": True})
    assert wide.tensors["x"] == Range(-3, float(np.finfo(np.float32).max))
    first = collect(model(NEG), [{"x": f32(np.nan, 2)}], "pow2-minmse", options={"reference": True})
    assert first.tensors["x"] == Range(-127 / 32, 127 / 32)


def test_merging_is_refused_with_the_reason() -> None:
    feeds = [{"x": f32(1, 2)}, {"x": f32(3, -4)}]
    parts = [collect(model(NEG), [feed], "pow2-minmse", options={"reference": True}) for feed in feeds]
    with refusal(UsageError):
        merge(*parts)
    assert (
        Ranges.from_json(json.loads(json.dumps(parts[0].to_json()))).observers()["x"].range() == parts[0].tensors["x"]
    )


def test_nonoverflow_reference_is_what_was_seen_and_merges() -> None:
    feeds = [{"x": f32(1, 2)}, {"x": f32(3, -4)}]
    parts = [collect(model(NEG), [feed], "pow2-nonoverflow", options={"reference": True}) for feed in feeds]
    assert merge(*parts).tensors["x"] == Range(-4, 3)

"""The exact histogram: counts worked out with fractions, the same state whatever the order, and figures against real quantization."""

from __future__ import annotations

import json
import math
from collections import Counter
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from qdq_passes.encode.edit.encoding_policy import histogram_of
from qdq_passes.errors import UsageError
from qdq_passes.numerics.count_text import counts_of, text_of
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.histogram import MIN_EXPONENT, SIDE_BITS, Histogram, exponent_of
from qdq_passes.numerics.quantize import dequantize, quantize

from tests.dial import examples
from tests.golden_messages.refusal import refusal

Array = npt.NDArray[Any]

floats = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.floats(-4, 4, width=32),
    st.sampled_from([0.0, -0.0, 1e-45, -1e-45, 3.4028234663852886e38, -3.4028234663852886e38, 2.0**-126, -(2.0**-126)]),
)
samples = st.lists(hnp.arrays(np.float32, st.integers(0, 9), elements=floats), min_size=1, max_size=6)


def added(*arrays: Array) -> Histogram:
    found = Histogram()
    for array in arrays:
        if array.size:
            found.add(array, float(array.min()), float(array.max()))
    return found


def counted(values: list[Array], exponent: int) -> dict[int, int]:
    """Bin → count, by exact arithmetic."""
    width = Fraction(2) ** exponent
    return dict(Counter(math.floor(Fraction(float(x)) / width) for array in values for x in array.ravel()))


def held(histogram: Histogram) -> dict[int, int]:
    return {histogram.first + int(i): int(histogram.counts[i]) for i in np.flatnonzero(histogram.counts)}


def test_by_hand() -> None:
    """max |x| = 5 < 2^3, so w = 2^(3-13) = 1/1024: −5 → bin −5120, 0 → 0, 1/1024 → 1, 4.9999 → 5119."""
    found = added(np.array([-5, 0, 0, 1 / 1024, 4.9999], np.float32))
    assert (found.exponent, found.first, found.counts.size) == (-10, -5120, 10240)
    assert held(found) == {-5120: 1, 0: 2, 1: 1, 5119: 1}
    assert (found.zeros, found.total) == (2, 5)
    assert found.centers()[[0, -1]].tolist() == [-5119.5 / 1024, 5119.5 / 1024]


def test_growing_joins_neighbours() -> None:
    """±1 has w = 2^-12; with 3.5 w doubles: bin −4096 → −2048, 4095 → 2047."""
    found = added(np.array([-1, 1 - 2.0**-12], np.float32))
    assert (found.exponent, held(found)) == (-12, {-4096: 1, 4095: 1})
    found.add(np.array([3.5], np.float32), 3.5, 3.5)
    assert (found.exponent, held(found)) == (-11, {-2048: 1, 2047: 1, 7168: 1})


@settings(max_examples=examples(300), deadline=None)
@given(samples)
def test_counts_are_exact(values: list[Array]) -> None:
    """For all float32, subnormal and huge ones too: every value is in the bin that exact arithmetic puts it into."""
    found = added(*values)
    assert held(found) == counted(values, found.exponent)
    assert found.zeros == sum(int((v == 0).sum()) for v in values)
    flat = np.concatenate(values)
    if flat.size:
        assert (found.low, found.high, found.exponent) == (flat.min(), flat.max(), exponent_of(flat.min(), flat.max()))


@settings(max_examples=examples(200), deadline=None)
@given(samples, st.randoms(use_true_random=False), st.integers(0, 6))
def test_any_order_and_grouping(values: list[Array], random: Any, cut: int) -> None:
    """For all samples, orders and groupings: the state, bit for bit, is that of all values added at once."""
    whole = added(np.concatenate(values)).state()
    shuffled = random.sample(values, len(values))
    assert added(*shuffled).state() == whole
    left, right = added(*shuffled[:cut]), added(*shuffled[cut:])
    through_json = Histogram.from_state(json.loads(json.dumps(right.state())))
    left.merge(through_json)
    right.merge(added(*shuffled[:cut]))
    assert left.state() == right.state() == whole
    assert json.dumps(left.state()) == json.dumps(whole)  # 0.0 == −0.0, but their texts differ


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=8))
def test_never_more_bins_than_the_bound(values: list[float]) -> None:
    """For all ranges, however they grow: at most 2^13 bins a side, and at least 2^12 on the wider unless it is below 2^-113."""
    found = Histogram()
    for value in values:
        found.add(np.array([value], np.float32), value, value)
        assert found.counts.size <= 2 * 2**SIDE_BITS
        reach = max(abs(found.low), abs(found.high))
        if reach:
            assert reach / 2.0**found.exponent < 2**SIDE_BITS
            assert reach / 2.0**found.exponent >= 2 ** (SIDE_BITS - 1) or found.exponent == MIN_EXPONENT


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_other_float_types(dtype: Any) -> None:
    values = np.random.default_rng(1).standard_normal((7, 11)).astype(dtype)
    values[0, 0] = -0.0
    found = added(values)
    assert held(found) == counted([values], found.exponent)
    assert found.zeros == 1


def test_float64_beyond_float32() -> None:
    """At w = 2^(1000-12) nothing is left of −1e-300 but its sign: bin −1. The types mix."""
    values = np.array([2.0**1000, -1e-300, 1e-300], np.float64)
    found = added(values, np.array([-1.5, 1e-45], np.float32))
    assert held(found) == counted([values, np.array([-1.5, 1e-45])], found.exponent) == {4096: 1, -1: 2, 0: 2}


def test_large_and_strided_tensors() -> None:
    """More than one chunk, and memory that is not contiguous."""
    values = np.random.default_rng(2).standard_normal((700, 400)).astype(np.float32)[:, ::2]
    found = added(values)
    index = np.floor(values.astype(np.float64).ravel() / 2.0**found.exponent).astype(int) - found.first
    assert np.array_equal(found.counts, np.bincount(index, minlength=found.counts.size))


def test_zeros_alone() -> None:
    found = added(np.zeros((3, 4), np.float32), -np.zeros(2, np.float32))
    assert (found.low, found.high, found.total, found.zeros, found.counts.size) == (0, 0, 14, 14, 1)
    other = added(np.array([4.0], np.float32))
    found.merge(other)
    assert held(found) == {0: 14, 4096: 1}
    encoding = Encoding.per_tensor(ir.DataType.INT8, 0.25)
    assert (found.squared_error(encoding), found.sqnr(encoding), found.clipped(encoding)) == (0, math.inf, 0)
    empty = Histogram()
    empty.merge(Histogram.from_state({}))
    assert (empty.state(), empty.total, empty.clipped(encoding)) == ({}, 0, 0)


GRIDS = [
    (ir.DataType.INT8, 0.05, 0), (ir.DataType.INT8, 0.02, 0), (ir.DataType.UINT8, 0.04, 120), (ir.DataType.INT16, 2e-4, 0),
    (ir.DataType.INT4, 0.5, 0), (ir.DataType.FLOAT8E4M3FN, 0.01, 0), (ir.DataType.FLOAT8E5M2, 1.0, 0),
    (ir.DataType.FLOAT4E2M1, 0.5, 0), (ir.DataType.FLOAT16, 1.0, 0),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "scale", "zero_point"), GRIDS)
def test_figures_are_those_of_real_quantization(dtype: ir.DataType, scale: float, zero_point: int) -> None:
    """Against quantizing 200,000 normal values, half of them 0.

    Spreading values evenly over a bin moves a single error by at most the bin; of sums of N independent ones the noise is near
    1/√N = 0.3 %, and a tenth of it where steps are wider than bins. 1 % (0.04 dB) is 3 sigmas of the worse case.
    """
    values = np.random.default_rng(3).standard_normal(200_000).astype(np.float32)
    values[::2] = 0
    encoding = Encoding.per_tensor(dtype, scale, zero_point)
    real = dequantize(quantize(values.astype(np.float64), encoding), encoding, np.float64)
    noise = float(((values - real) ** 2).sum())
    found = added(values)
    assert found.squared_error(encoding) == pytest.approx(noise, rel=0.01)
    signal = float((values.astype(np.float64) ** 2).sum())
    assert found.sqnr(encoding) == pytest.approx(10 * math.log10(signal / noise), abs=0.045)


def test_errors_of_single_values_are_exact() -> None:
    """A bin of one value at its end is a point: 0.3125 on steps of 0.25 errs by 0.0625, 40 beyond 31.75 by 8.25, 0 by nothing."""
    encoding = Encoding.per_tensor(ir.DataType.INT8, 0.25)
    for value, error in ((0.3125, 0.0625), (40.0, 8.25), (-40.0, 8.0), (0.0, 0.0), (31.75, 0.0)):
        found = added(np.full(3, value, np.float32))
        assert found.squared_error(encoding) == 3 * error**2
    assert added(np.full(3, -40, np.float32)).squared_error(encoding, symmetric_range=True) == 3 * 8.25**2


def test_errors_of_equal_candidates_are_equal() -> None:
    """Whole numbers on steps of 1/2 and 1: the even spread errs by the same in each, to the last bit."""
    found = added(np.random.default_rng(4).integers(-60, 60, 999).astype(np.float32))
    errors = {found.squared_error(Encoding.per_tensor(ir.DataType.INT8, s)) for s in (0.5, 1.0)}
    assert len(errors) == 1


def test_clipped_share() -> None:
    """int8 with scale 1: saturation begins at −128.5 and 127.5, and 3 of 8 values lie beyond. float8e4m3fn with scale 1/4 ends
    at 112, half a step behind it is 116."""
    values = np.array([-130, -128.25, -1, 0, 0, 127.25, 128, 200], np.float32)
    assert added(values).clipped(Encoding.per_tensor(ir.DataType.INT8, 1.0)) == 3 / 8
    assert added(values).clipped(Encoding.per_tensor(ir.DataType.INT8, 1.0), symmetric_range=True) == 4 / 8
    assert added(values).clipped(Encoding.per_tensor(ir.DataType.FLOAT8E4M3FN, 1.0)) == 0
    assert added(values).clipped(Encoding.per_tensor(ir.DataType.FLOAT8E4M3FN, 0.25)) == 5 / 8
    even = added(np.arange(0, 1000, dtype=np.float32))
    assert even.clipped(Encoding.per_tensor(ir.DataType.UINT8, 2.0)) == 489 / 1000, "from 511 on"


def test_sqnr_where_only_noise_is_left() -> None:
    """1e30 becomes 448 in float8: the noise is the signal to 27 digits."""
    encoding = Encoding(dtype=ir.DataType.FLOAT8E4M3FN, scale=(1.0,), zero_point=(0,))
    assert added(np.array([1e30], np.float32)).sqnr(encoding) == pytest.approx(0.0)


def test_figures_are_of_whole_tensors() -> None:
    with refusal(UsageError):
        added(np.ones(1, np.float32)).sqnr(
            Encoding(dtype=ir.DataType.INT8, scale=(1.0, 1.0), zero_point=(0, 0), shape=(2,), axis=0)
        )


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.one_of(st.just(0), st.integers(0, 300), st.integers(0, 2**63 - 1)), max_size=40))
def test_counts_as_text(numbers: list[int]) -> None:
    """For all counts: the text gives them back."""
    counts = np.array(numbers, np.int64)
    assert counts_of(text_of(counts)).tolist() == numbers


def test_text_is_short() -> None:
    """8,000 empty bins between two values take 6 bytes; a bin of up to 127 values takes one."""
    assert len(text_of(np.concatenate([[7], np.zeros(8000, np.int64), [7]]))) == 8
    assert len(text_of(np.full(300, 99, np.int64))) == 400


@pytest.mark.parametrize("text", ["?", "AA==", "gA==", "AP////////8P", "gICAgICAgICAgIAB"])
def test_text_that_is_no_counts(text: str) -> None:
    with pytest.raises(ValueError, match=r"count|run"):
        counts_of(text)


@pytest.mark.parametrize(
    "change", [{"low": 3.0}, {"high": math.inf}, {"zeros": 5}, {"zeros": -1}, {"counts": "AQ=="}, {"low": -2.0}]
)
def test_a_state_that_is_none(change: dict[str, Any]) -> None:
    state = added(np.array([-1, 0, 2], np.float32)).state()
    assert Histogram.from_state(state).state() == state
    with pytest.raises(ValueError, match=r"range|zeros|bins"):
        Histogram.from_state({**state, **change})


def test_histogram_of_a_binding() -> None:
    class Plain:
        low, high = 0.0, 1.0

    class Full(Plain):
        histogram = added(np.ones(1, np.float32))

    assert histogram_of({"a": Full()}, "a") is Full.histogram
    assert histogram_of({"a": Plain()}, "a") is None
    assert histogram_of({"a": Encoding.per_tensor(ir.DataType.INT8, 1.0)}, "a") is None
    assert histogram_of({}, "a") is None

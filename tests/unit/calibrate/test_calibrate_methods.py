"""Calibration methods by hand, against numpy and onnxruntime, and against searching everything."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnxruntime.quantization.quant_utils import compute_scale_zp_float8
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.numerics.encoding import Encoding, encoding_of_range
from qdq_passes.numerics.minmse import search
from qdq_passes.numerics.quantize import dequantize, quantize

from qdqtool.calibrate.methods.distribution import Distribution
from qdqtool.calibrate.methods.entropy import Entropy, divergences
from qdqtool.calibrate.methods.minmax import Minmax
from qdqtool.calibrate.methods.moving_average import MovingAverage
from qdqtool.calibrate.methods.mse import Mse
from qdqtool.calibrate.methods.percentile import Percentile
from qdqtool.calibrate.methods.pow2_minmse import Pow2Minmse
from qdqtool.calibrate.methods.pow2_nonoverflow import Pow2Nonoverflow
from qdqtool.calibrate.observer import Observer, Range, extremes, observers
from tests.dial import examples
from tests.golden_messages.refusal import refusal

Array = npt.NDArray[Any]


def f32(*values: float) -> Array:
    return np.array(values, np.float32)


#: Every method as it is merged and kept, with options that change what is kept.
METHODS: list[tuple[str, dict[str, Any]]] = [
    ("minmax", {}), ("moving-average", {"constant": 0.25}), ("percentile", {"percentile": 90.0}),
    ("percentile", {"symmetric": False}), ("entropy", {}), ("entropy", {"symmetric": False}), ("mse", {}),
    ("mse", {"symmetric": False, "bits": 4}), ("pow2-nonoverflow", {}), ("pow2-nonoverflow", {"reference": True}),
    ("pow2-minmse", {}), ("pow2-minmse", {"bits": 16}), ("distribution", {}),
]  # fmt: skip


def observed(observer: Observer, *samples: Array) -> Range:
    for number, values in enumerate(samples):
        observer.sample = number
        observer.observe(values, *extremes(values))
    return observer.range()


def normal(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def error_of(x: Array, encoding: Encoding) -> float:
    return float(((x - dequantize(quantize(x, encoding), encoding)).astype(np.float64) ** 2).sum())


@pytest.mark.parametrize(("method", "options"), METHODS)
@settings(max_examples=examples(25), deadline=None)
@given(
    xs=st.lists(
        hnp.arrays(np.float32, (2, 3), elements=st.floats(-(2.0**60), 2.0**60, width=32)), min_size=2, max_size=5
    ),
    data=st.data(),
)
def test_parts_make_the_whole(method: str, options: dict[str, Any], xs: list[Array], data: Any) -> None:
    """For all samples and cuts: observers of parts, through JSON, merge into the state and range of the whole."""
    make, cut = observers(method, options), data.draw(st.integers(1, len(xs) - 1))
    whole, first, second = make(), make(), make()
    expected = observed(whole, *xs)
    observed(first, *xs[:cut])
    found = observed(second, *xs[cut:])
    again = make()
    again.restore(json.loads(json.dumps(second.state())), found)
    again.shift(cut)
    first.merge(again)
    assert first.range() == expected
    assert first.state() == whole.state()


@settings(max_examples=examples(30), deadline=None)
@given(
    xs=st.lists(hnp.arrays(np.float32, 5, elements=st.floats(-100, 100, width=32)), min_size=2, max_size=5),
    random=st.randoms(use_true_random=False),
)
def test_order_matters_to_the_moving_average_alone(xs: list[Array], random: Any) -> None:
    """For all orders of samples: every other method ends in the same state."""
    shuffled = random.sample(xs, len(xs))
    for method, options in METHODS:
        if method != "moving-average":
            make = observers(method, options)
            one, other = make(), make()
            assert observed(one, *xs) == observed(other, *shuffled)
            assert one.state() == other.state()


# moving-average


def pair(low: float, high: float) -> Array:
    return np.array([low, high], np.float32)


def test_moving_average_by_hand() -> None:
    """c = 1/4 from [−4, 8]: low −4 → −4 + (0 + 4)/4 = −3 → −3 + (−7 + 3)/4 = −4; high 8 → 6 → 8."""
    observer = MovingAverage(constant=0.25)
    assert observed(observer, pair(-4, 8)) == Range(-4, 8)
    assert observed(observer, pair(-4, 8), pair(0, 0), pair(-7, 14)) == Range(-4, 8)
    assert observed(MovingAverage(constant=0.25), pair(-7, 14), pair(0, 0), pair(-4, 8)) != Range(-4, 8)
    assert observed(MovingAverage(), pair(0, 100), pair(0, 200)) == Range(0, 101)
    assert observed(MovingAverage(constant=1), pair(-4, 8), pair(-1, 2)) == Range(-1, 2)


def test_moving_average_is_widened_to_eps() -> None:
    """Steps of 2^-12 at least: ±127/4096, or 255/4096 up from the lower end; int16 ±32767/4096."""
    tiny = pair(-0.001, 0.002)
    assert observed(MovingAverage(), tiny) == Range(-127 / 4096, 127 / 4096)
    assert observed(MovingAverage(bits=16), tiny) == Range(-32767 / 4096, 32767 / 4096)
    low = float(np.float32(-0.001))
    assert observed(MovingAverage(symmetric=False), tiny) == Range(low, low + 255 / 4096)
    assert observed(MovingAverage(symmetric=False), pair(0.01, 0.02)) == Range(0, 255 / 4096)
    assert observed(MovingAverage(eps=0), tiny) == Range(low, float(np.float32(0.002)))
    assert observed(MovingAverage(), pair(-1, 0)) == Range(-1, 0)


def test_moving_average_numbers_its_samples() -> None:
    """Whatever comes first: sample 0 starts the average. The same sample twice is a mistake."""
    one, other = MovingAverage(constant=0.5), MovingAverage(constant=0.5)
    observed(one, pair(0, 8))
    observed(other, pair(0, 16))
    with refusal(UsageError):
        one.merge(other)
    other.shift(5)
    other.merge(one)
    assert other.range() == Range(0, 12)
    assert other.state() == {"numbers": [0, 5], "low": [0, 0], "high": [8, 16]}


# percentile


@settings(max_examples=examples(100), deadline=None)
@given(
    hnp.arrays(np.float32, st.integers(1, 60), elements=st.floats(-64, 64, width=32)),
    st.sampled_from([50.0, 87.5, 93.75, 100.0]),
)
def test_percentile_is_that_of_numpy(x: Array, percentile: float) -> None:
    """For all data: within one bin of the exact percentile of |x| (of each tail), and no more is clipped than said."""
    observer = Percentile(percentile=percentile)
    found = observed(observer, x)
    width = 2.0**observer.seen.exponent
    exact = float(np.percentile(np.abs(x), percentile, method="inverted_cdf"))
    low, high = extremes(x)
    assert max(low, -exact - width) <= found.low <= max(low, -exact) or found.low == low
    assert min(high, exact) <= found.high <= min(high, exact + width) or found.high == high
    assert ((x < found.low) | (x > found.high)).mean() <= 1 - percentile / 100
    found = observed(Percentile(percentile=percentile, symmetric=False), x)
    tail = 50 + percentile / 2
    top, bottom = (float(np.percentile(sign * x, tail, method="inverted_cdf")) for sign in (1, -1))
    assert min(high, top) <= found.high <= min(high, top + width)
    assert max(low, -bottom - width) <= found.low <= max(low, -bottom)


def test_percentile_by_hand() -> None:
    """99 ones and a hundred: at 99 % the hundred is left out, at 99.999 % it is not."""
    x = np.array([1.0] * 99 + [-100.0], np.float32)
    found = observed(Percentile(percentile=99), x)
    assert (found.high, found.low) == (1.0, -(1 + 1 / 64))  # bins of 2^(7-13)
    assert observed(Percentile(), x) == Range(-100, 1)
    with refusal(UsageError):
        Percentile(percentile=0.99)


# entropy


def spelt_divergence(counts: list[int], start: int, stop: int, levels: int) -> float:
    """KL(P‖Q) from the definition, bin by bin."""
    reference = [float(c) for c in counts[start:stop]]
    reference[0] += sum(counts[:start])
    reference[-1] += sum(counts[stop:])
    quantized = [0.0] * len(reference)
    edges = [j * (stop - start) // levels for j in range(levels + 1)]
    for left, right in itertools.pairwise(edges):
        held = [b for b in range(left, right) if reference[b]]
        for b in held:
            quantized[b] = sum(counts[start + left : start + right]) / len(held)
    p, q = sum(reference), sum(quantized)
    if any(r and not s for r, s in zip(reference, quantized, strict=True)):
        return math.inf
    return sum(r / p * math.log((r / p) / (s / q)) for r, s in zip(reference, quantized, strict=True) if r)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.integers(0, 50), min_size=4, max_size=40).filter(any), st.integers(2, 4), st.data())
def test_divergences_are_those_of_the_definition(counts: list[int], levels: int, data: Any) -> None:
    """For all histograms and clippings. Sums of at most 40 terms of order ln(2000) in float64: 1e-12."""
    start = data.draw(st.integers(0, len(counts) - levels))
    stop = data.draw(st.integers(start + levels, len(counts)))
    found = divergences(np.array(counts), np.array([start]), np.array([stop]), levels)
    assert found[0] == pytest.approx(spelt_divergence(counts, start, stop, levels), abs=1e-12)


@pytest.mark.parametrize("symmetric", [True, False])
def test_entropy_clips_outliers(symmetric: bool) -> None:
    """100,000 normal values reach 4.4; one of 50 would make 8-bit steps 11 times as wide. The zeros of a Relu change nothing."""
    x = np.append(normal(100_000), np.float32(50))
    assert observed(Minmax(), x).high == 50
    found = observed(Entropy(symmetric=symmetric), x)
    assert 3 < found.high < 8
    assert -5 < found.low < -3
    positive = observed(Entropy(symmetric=symmetric), np.abs(x))
    relu = observed(Entropy(symmetric=symmetric), np.append(np.abs(x), np.zeros(900_000, np.float32)))
    assert (relu.low, relu.high) == (0, positive.high)
    assert 3 < positive.high < 8


def test_entropy_where_there_is_nothing_to_search() -> None:
    """One value, only zeros, evenly spread values, and more points than bins: what was seen."""
    for x in (np.full(4, 3, np.float32), np.zeros(4, np.float32), f32(-2, 0, 5)):
        assert observed(Entropy(), x) == Range(*extremes(x))
    x = np.append(normal(10_000), np.float32(50))
    assert observed(Entropy(bits=16), x).high == 50
    even = np.linspace(-1, 1, 100_001, dtype=np.float32)
    assert observed(Entropy(), even).high > 0.99


# mse


def data_of(kind: str) -> Array:
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal(20_000), rng.laplace(size=20_000)
    found = {
        "normal": x, "laplace": y, "relu": np.maximum(x, 0), "uniform": rng.uniform(-1, 1, 20_000), "outlier": np.append(x, 30),
        "shifted": x + 3, "negative": -np.abs(y),
    }[kind]  # fmt: skip
    return found.astype(np.float32)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", ["normal", "laplace", "relu", "uniform", "outlier", "shifted", "negative"])
def test_mse_is_near_the_best_of_a_full_search(kind: str, bits: int, symmetric: bool) -> None:
    """The error on the data itself, against the best of 400 symmetric clippings.

    Steps of the search end at 0.3 % of t, where the error is flat (of second order), and the histogram's error is that of the
    data to 0.1 % (`test_histogram`): 0.5 %.
    """
    x = data_of(kind)
    observer = Mse(bits=bits, symmetric=symmetric)
    found = observed(observer, x)

    def error(low: float, high: float) -> float:
        return error_of(x, encoding_of_range(low, high, dtype=observer.dtype, symmetric=symmetric, power_of_two=False))

    low, high = min(float(x.min()), 0), max(float(x.max()), 0)
    tried = [error(max(low, -t), min(high, t)) for t in np.linspace(0.01, 1, 400) * max(-low, high)]
    assert error(found.low, found.high) <= 1.005 * min(tried)


def test_mse_keeps_what_needs_no_clipping() -> None:
    assert observed(Mse(), np.zeros(3, np.float32)) == Range(0, 0)
    assert observed(Mse(), f32(-127, 3, 127)) == Range(-127, 127)
    assert observed(Mse(symmetric=False), f32(0, 1, 255)) == Range(0, 255)


# pow2-minmse


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.3, 1.0, 4.0]), st.integers(-20, 20), st.booleans())
def test_pow2_minmse_is_that_of_the_data(seed: int, tail: float, unit: int, relu: bool) -> None:
    """For all tails and units: the position that the exact error of the data has, unless both errors are within 1 %."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_t(2 + 1 / tail, 3000) * 2.0**unit).astype(np.float32)
    x = np.maximum(x, 0) if relu else x
    start = encoding_of_range(*extremes(x), dtype=ir.DataType.INT8, symmetric=True, power_of_two=True, nearest=True)
    exact = search(x, start, limits=(-127, 127)).scale[0]
    found = observed(Pow2Minmse(), x)
    assert found.low == -found.high
    if found.high != 127 * exact:
        errors = [
            float(((x - s * np.clip(np.rint(x / s), -127, 127)).astype(np.float64) ** 2).sum())
            for s in (exact, found.high / 127)
        ]
        assert errors[1] <= 1.01 * errors[0]


def test_pow2_minmse_by_hand() -> None:
    """Ties keep the coarser: 3 is exact at 1/32 (p0 = round(−log2(3/127)) = 5) and at 1/16, one coarser. 16 bits: 2^-12."""
    threes = np.full(4, 3, np.float32)
    assert observed(Pow2Minmse(), threes) == Range(-127 / 16, 127 / 16)
    assert observed(Pow2Minmse(bits=16), threes) == Range(-32767 / 2**12, 32767 / 2**12)
    x = np.append(normal(100_000), np.float32(50))
    assert observed(Pow2Minmse(), x).high == 127 / 4  # nearest for 50 is 1/2: one finer pays
    assert observed(Pow2Nonoverflow(bits=16), threes) == Range(-32767 / 2**13, 32767 / 2**13)


def test_pow2_minmse_at_the_ends_of_float32() -> None:
    """Scales stay normal float32 numbers: nothing below 2^-126, nothing above 3.4e38."""
    top = float(np.finfo(np.float32).max)
    for value in (1e-38, 1e-45, top):
        found = observed(Pow2Minmse(), f32(value, -value))
        assert found.low == -found.high
        assert 2.0**-126 <= found.high / 127 <= top


# distribution


@pytest.mark.newest  # the quantizer of 1.23 wants a float8 conversion that onnx no longer has
def test_distribution_is_that_of_onnxruntime() -> None:
    """The scale 448·scale = high, to the rounding of onnxruntime's float32 (2^-23) of σ and of the quotient."""
    x = normal(70_000) * 3 + 1
    found = observed(Distribution(), x[:30_000], x[30_000:])
    _, scale = compute_scale_zp_float8(onnx.TensorProto.FLOAT8E4M3FN, np.float32(x.astype(np.float64).std()))
    assert found.high / 448 == pytest.approx(float(scale), rel=3 * 2.0**-23)
    assert found.low == -found.high


def test_distribution_by_hand() -> None:
    """±1 have σ 1; the finite numbers of float8e5m2 reach 57344."""
    finite = np.arange(256, dtype=np.uint8).view(ir.DataType.FLOAT8E5M2.numpy()).astype(np.float64)
    expected = 57344 / finite[np.isfinite(finite)].std()
    assert observed(Distribution(dtype="float8e5m2"), f32(1, -1)).high == pytest.approx(expected, rel=1e-15)
    assert observed(Distribution(), np.full(3, 0.1, np.float32)) == Range(*extremes(f32(0.1)))
    with refusal(UsageError):
        Distribution(dtype="int8")
    with refusal(ModelError):
        observed(Distribution(), np.array([1e200]))


# options


def test_options_are_read_and_refused() -> None:
    assert isinstance(observers("percentile", {"percentile": "99", "symmetric": "false"})(), Percentile)
    assert observers("percentile", {"percentile": 99})().__dict__["percentile"] == 99.0
    for method, options in (
        ("minmax", {"bins": 3}),
        ("percentile", {"share": 3}),
        ("percentile", {"percentile": "most"}),
        ("percentile", {"symmetric": 1}),
        ("entropy", {"bits": 7}),
        ("entropy", {"bits": 8.5}),
        ("moving-average", {"constant": 0}),
        ("moving-average", {"eps": 1.5}),
    ):
        with refusal(UsageError):
            observers(method, options)

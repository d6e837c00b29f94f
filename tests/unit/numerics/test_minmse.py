"""The search for the power of two of the least squared error, against the definition worked out plainly."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from qdq_passes.numerics import minmse, pow2
from qdq_passes.numerics.encoding import Encoding, encoding_of_range, encoding_of_weight, integer_range

INT8 = ir.DataType.INT8
RULE: dict[str, Any] = {"dtype": INT8, "symmetric": True, "power_of_two": True, "nearest": True}
Array = npt.NDArray[Any]


def error(x: Array, position: int, limit: int = 127) -> np.float32:
    """Σ (x − s·clip(round(x / s)))² in float32, all at once."""
    scale = np.float32(2.0**-position)
    difference = x - np.clip(np.round(x / scale), -limit, limit).astype(np.float32) * scale
    return np.sum(difference * difference)  # type: ignore[no-any-return]


def best(x: Array, limit: int = 127) -> int:
    """The position of the definition: five candidates, the first of the least error."""
    exact = np.float32(2 * float(np.abs(x).max()) / (2 * limit))
    start = int(np.rint(-np.log2(np.float64(exact)))) if exact >= np.finfo(np.float32).tiny else 0
    candidates = [start - 1, start, start + 1, start + 2, start + 3]
    errors = [error(x, p, limit) for p in candidates]
    return candidates[errors.index(min(errors))]


def searched(x: Array, axis: int | None = None, **options: Any) -> Encoding:
    return minmse.search(x, encoding_of_weight(x, axis, **RULE), limits=(-127, 127), **options)


@pytest.mark.parametrize("seed", range(40))
def test_like_the_definition(seed: int) -> None:
    """Tensors of all sizes and shapes of distribution, in which each of the five candidates wins some time."""
    rng = np.random.default_rng(seed)
    size = int(rng.choice([1, 2, 7, 129, 4000, 70000]))
    x = (rng.standard_t(rng.uniform(1.2, 9), size) * 10.0 ** rng.uniform(-6, 6)).astype(np.float32)
    assert searched(x).position == (best(x),)


def test_candidates_other_than_the_range_s_win() -> None:
    """Values that a coarser grid holds, one outlier among very many small values, and an outlier so rare that it may clip."""
    rng = np.random.default_rng(0)
    offsets = set()
    for outlier, count in ((1.4, 10), (1.0, 10), (1.0, 10**5), (1.0, 10**6)):
        x = np.append(rng.uniform(-0.2, 0.2, count), outlier).astype(np.float32)
        start = encoding_of_weight(x, None, **RULE).position
        found = searched(x).position
        assert start is not None
        assert found == (best(x),)
        offsets.add(found[0] - start[0])
    assert len(offsets) >= 3, offsets


@pytest.mark.parametrize("size", [1, 8, 1000, minmse.CHUNK, minmse.CHUNK + 1, 3 * minmse.CHUNK + 5, 524_289])
def test_sums_are_those_of_numpy_bit_for_bit(size: int) -> None:
    rng = np.random.default_rng(size)
    x = rng.standard_normal(size).astype(np.float32)
    positions = (3, 4, 5, 6, 7)
    scales = np.array([[2.0**-p] for p in positions], np.float32)
    sums = minmse._errors(x.reshape(1, -1), scales, (-127, 127))[:, 0]
    assert sums.tolist() == [float(error(x, p)) for p in positions]


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_a_search_per_channel(axis: int) -> None:
    """Channels of one dimension of [6, 5, 3, 2], some of them zero."""
    rng = np.random.default_rng(axis)
    x = rng.standard_t(2, (6, 5, 3, 2)).astype(np.float32)
    rows = np.moveaxis(x, axis, 0)
    rows *= 10.0 ** np.arange(-len(rows), len(rows), 2).reshape(-1, 1, 1, 1)
    rows[1] = 0
    found = searched(x, axis)
    assert found.axis == axis
    expected = [best(np.ascontiguousarray(row)) for row in rows]
    assert found.position == tuple(expected)
    assert expected[1] == -1


def test_more_channels_than_fit_a_chunk() -> None:
    x = np.random.default_rng(1).standard_normal((700, 300)).astype(np.float32)
    found = searched(x, 0)
    assert found.position == tuple(best(row) for row in x)
    long = np.random.default_rng(2).standard_normal((3, 2 * minmse.CHUNK + 8)).astype(np.float32)
    assert searched(long, 0).position == tuple(best(row) for row in long)


@pytest.mark.parametrize(("value", "position"), [(3.0, 4), (50.0, 0), (0.25, 8), (0.0, -1)])
def test_ties_keep_the_coarser(value: float, position: int) -> None:
    """Exact at several positions: log2(127/3) = 5.4 → 5, one coarser is 4; log2(127/50) = 1.34 → 1 and 0; 8.99 → 9 and 8."""
    assert searched(np.full(3, value, np.float32)).position == (position,)


def test_zeros_may_keep_their_scale() -> None:
    x = np.array([[0, 0], [3, 0]], np.float32)
    assert searched(x, 0, keep_zeros=True).position == (0, 4)
    assert searched(np.zeros(2, np.float32), keep_zeros=True).position == (0,)
    assert searched(np.zeros((0, 3), np.float32)).position == (0,)


@pytest.mark.parametrize("dtype", [ir.DataType.INT4, ir.DataType.INT16, ir.DataType.UINT8])
def test_other_types(dtype: ir.DataType) -> None:
    """Counted from the zero point: int4 [-7, 7], int16 [-32767, 32767], uint8 about 128 [-128, 127]."""
    x = np.random.default_rng(3).standard_t(3, 5000).astype(np.float32)
    start = encoding_of_weight(x, None, **{**RULE, "dtype": dtype})
    low, high = (q - int(start.zero_point[0]) for q in integer_range(dtype, symmetric=True))
    found = minmse.search(x, start, limits=(low, high))
    first = (start.position or (0,))[0]
    errors = {}
    for position in range(first - 1, first + 4):
        step = np.float32(2.0**-position)
        errors[position] = np.sum(np.square(x - np.clip(np.round(x / step), low, high).astype(np.float32) * step))
    assert found.position == (min(errors, key=lambda p: errors[p]),)
    assert (found.dtype, found.zero_point) == (dtype, start.zero_point)


def test_scales_stay_above_the_smallest() -> None:
    """Exact data at the smallest scale: finer candidates are not tried, coarser ones are."""
    tiny = np.array([2.0**-24], np.float16)
    start = encoding_of_weight(tiny, None, **RULE, smallest=2.0**-24)
    assert minmse.search(tiny, start, limits=(-127, 127), smallest=2.0**-24).scale == (2.0**-24,)


def test_huge_and_tiny_data_are_silent() -> None:
    """Squares beyond float32 are infinite, and below it zero: all candidates are alike then, and the coarsest is kept."""
    for value in (1e30, 1e-30):
        x = np.array([value, value / 3], np.float32)
        start = encoding_of_weight(x, None, **RULE)
        assert minmse.search(x, start, limits=(-127, 127)).scale == (start.scale[0] * 2,)


def test_memory_stays_small() -> None:
    """A few chunks beside the weight, not copies of it; 10^6 numbers are 4 MB."""
    x = np.random.default_rng(0).standard_normal((1000, 1000)).astype(np.float32)
    start = encoding_of_weight(x, None, **RULE)
    tracemalloc.start()
    minmse.search(x, start, limits=(-127, 127))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * minmse.CHUNK


#: magnitude, storage type → position; worked out by hand from 2a / (qmax − qmin) and log2.
NEAREST = [
    (127.0, "int8", 0),  # exactly 1
    (127 * 1.4142, "int8", 0),  # below √2
    (127 * 1.4143, "int8", -1),  # above it
    (0.0, "int8", 0),
    (1e-37, "int8", 0),  # 7.9e-40, no normal float32: scale 1
    (180.0, "uint8", 0),  # 2·180 / 255 = 1.4118, where 180 / 127 would be 1.417
    (180.4, "uint8", -1),  # 1.4149
    (32767 * 0.7, "int16", 1),  # log2(0.7) = -0.51
    (1.0, "int16", 15),
    (1.0, "int4", 3),  # 1/7: log2 = -2.81
    (3e38, "int8", -120),  # clamped to half of float32's largest number: 1.70e38 / 127 = 2^119.99
]


@pytest.mark.parametrize(("magnitude", "dtype", "position"), NEAREST)
def test_nearest_power_of_two(magnitude: float, dtype: str, position: int) -> None:
    for low, high in ((-magnitude, 0.0), (-magnitude / 2, magnitude)):
        rule = {**RULE, "dtype": ir.DataType[dtype.upper()]}
        found = encoding_of_range(low, high, **rule)
        assert found.position == (position,)
        assert found.zero_point == (128 if dtype == "uint8" else 0,)


def test_the_quotient_is_rounded_to_float32_before_its_logarithm() -> None:
    """Both sides of √2 in float32: 1.4142135 is below, 1.4142137 above; a quotient between them goes where float32 puts it."""
    below, above = np.float32(1.4142135), np.nextafter(np.float32(1.4142135), np.float32(2))
    assert below < np.sqrt(2) < above
    middle = (float(below) + float(above)) / 2
    for quotient, position in ((middle - 1e-8, 0), (middle + 1e-8, -1)):
        assert encoding_of_range(0.0, 127 * quotient, **RULE).position == (position,)
    assert middle - 1e-8 > np.sqrt(2) or middle + 1e-8 < np.sqrt(2), (
        "one of the two would be rounded the other way in float64"
    )


@pytest.mark.parametrize("position", [-100, -3, 0, 7, 100])
def test_ranges_of_a_power_of_two_come_back(position: int) -> None:
    """What calibration made of a position asks for that position again, whichever way scales are rounded."""
    reach = 127 * pow2.scale_of(position)
    for nearest in (False, True):
        assert encoding_of_range(-reach, reach, **{**RULE, "nearest": nearest}).position == (position,)

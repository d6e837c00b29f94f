"""For all ranges: the encoding covers them, holds zero exactly and, as a power of two, never clips; powers of two are exact."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qdq_passes.errors import ModelError
from qdq_passes.numerics import pow2
from qdq_passes.numerics.encoding import (
    Encoding,
    encoding_of_range,
    encoding_of_weight,
    integer_range,
    reduced_range,
)
from qdq_passes.numerics.quantize import dequantize, quantize

from tests.dial import examples
from tests.properties.graphs import DETERMINISTIC

PROFILE = settings(DETERMINISTIC, max_examples=examples(300))
TYPES = [ir.DataType[name] for name in ("INT8", "UINT8", "INT16", "UINT16", "INT4")]
types = st.sampled_from(TYPES)
#: Float32 numbers whose scale is a normal float32 in every type: the tiny ones have a test of their own.
numbers = st.floats(-(2.0**100), 2.0**100, width=32).filter(lambda x: x == 0 or abs(x) > 2.0**-100)


def grid(x: float, encoding: Encoding) -> float:
    """What the encoding makes of ``x``."""
    array = np.array([x], np.float32)
    return float(dequantize(quantize(array, encoding), encoding)[0])


@PROFILE
@given(numbers, numbers, types, st.booleans(), st.booleans())
def test_zero_is_exact(a: float, b: float, dtype: ir.DataType, symmetric: bool, power_of_two: bool) -> None:
    """Padding and Relu need a zero that stays zero."""
    encoding = encoding_of_range(
        min(a, b), max(a, b), dtype=dtype, symmetric=symmetric, power_of_two=power_of_two and symmetric
    )
    assert grid(0.0, encoding) == 0.0
    qmin, qmax = integer_range(dtype, symmetric=False)
    assert qmin <= encoding.zero_point[0] <= qmax


@PROFILE
@given(numbers, numbers, types)
def test_power_of_two_never_clips(a: float, b: float, dtype: ir.DataType) -> None:
    """Both ends stay within half a step, and no smaller power of two would do."""
    low, high = min(a, b), max(a, b)
    encoding = encoding_of_range(low, high, dtype=dtype, symmetric=True, power_of_two=True)
    (scale,) = encoding.scale
    assert encoding.position is not None
    for end in (low, high):
        assert abs(grid(end, encoding) - end) <= scale / 2
    middle, qmax = encoding.zero_point[0], integer_range(dtype, symmetric=True)[1]
    magnitude = max(-low, high, 0.0)
    assert magnitude <= (qmax - middle) * scale
    assert magnitude == 0 or magnitude > (qmax - middle) * scale / 2


@PROFILE
@given(numbers, numbers, types, st.booleans())
def test_any_scale_covers_the_range(a: float, b: float, dtype: ir.DataType, symmetric: bool) -> None:
    """An end may move by half a step for the scale and half a step for the zero point, no more, inside float32's rounding."""
    low, high = min(a, b), max(a, b)
    encoding = encoding_of_range(low, high, dtype=dtype, symmetric=symmetric, power_of_two=False)
    (scale,) = encoding.scale
    for end in (low, high):
        slack = scale * (1.0 if not symmetric else 0.5) + abs(end) * 2.0**-22
        assert abs(grid(end, encoding) - end) <= slack


@PROFILE
@given(types, st.booleans(), st.booleans(), st.floats(0, 2.0**-140))
def test_an_empty_range_has_a_scale(dtype: ir.DataType, symmetric: bool, power_of_two: bool, tiny: float) -> None:
    encoding = encoding_of_range(0.0, tiny, dtype=dtype, symmetric=symmetric, power_of_two=power_of_two and symmetric)
    assert encoding.scale[0] >= np.finfo(np.float32).tiny
    assert grid(0.0, encoding) == 0.0


@pytest.mark.parametrize(("low", "high"), [(1.0, 0.0), (math.nan, 1.0), (0.0, math.inf), (-math.inf, 0.0)])
def test_no_range(low: float, high: float) -> None:
    with pytest.raises(ModelError, match="is not a finite interval"):
        encoding_of_range(low, high, dtype=ir.DataType.INT8, symmetric=True, power_of_two=False)


def test_powers_of_two_are_exact() -> None:
    """For every normal float32 exponent: no logarithm loses an ulp."""
    for position in range(-127, 127):
        scale = pow2.scale_of(position)
        assert pow2.position_of(scale) == position
        assert pow2.round_scale(scale) == scale
        assert pow2.round_scale(scale, nearest=True) == scale
        assert pow2.position_of(math.nextafter(scale, 0)) is None


@PROFILE
@given(st.floats(2.0**-125, 2.0**126))
def test_round_scale(scale: float) -> None:
    """Up: the next power at or above. Nearest: within √2 on either side."""
    up, near = pow2.round_scale(scale), pow2.round_scale(scale, nearest=True)
    assert scale <= up < 2 * scale
    assert pow2.position_of(up) is not None
    assert pow2.position_of(near) is not None
    assert 2**-0.5 * (1 - 1e-15) <= near / scale <= 2**0.5 * (1 + 1e-15)


@PROFILE
@given(st.floats(0, 2.0**-127, exclude_min=True) | st.floats(2.0**127, 2.0**300, exclude_min=True))
def test_round_scale_stays_normal(scale: float) -> None:
    assert pow2.round_scale(scale) in (2.0**-126, 2.0**127)
    assert pow2.round_scale(scale, nearest=True) in (2.0**-126, 2.0**127)


@PROFILE
@given(st.data(), types, st.sampled_from([((), None, 0), ((3,), 1, 0), ((3,), -1, 0), ((2, 3), 0, 4)]))
def test_json_round_trip(
    data: st.DataObject, dtype: ir.DataType, layout: tuple[tuple[int, ...], int | None, int]
) -> None:
    """Canonical JSON and back is the identity, floats exact."""
    shape, axis, block_size = layout
    count = math.prod(shape)
    scales = data.draw(st.lists(st.floats(2.0**-126, 2.0**127, width=32), min_size=count, max_size=count))
    zeros = data.draw(st.lists(st.integers(*integer_range(dtype, symmetric=False)), min_size=count, max_size=count))
    encoding = Encoding(
        dtype=dtype, scale=tuple(scales), zero_point=tuple(zeros), shape=shape, axis=axis, block_size=block_size
    )
    assert Encoding.from_json(json.loads(json.dumps(encoding.to_json()))) == encoding


@PROFILE
@given(
    st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=4), types, st.booleans(), st.booleans(),
    st.sampled_from([0, 1, -1, -2]),
)  # fmt: skip
def test_each_slice_has_the_scale_it_would_have_alone(
    rows: list[list[float]], dtype: ir.DataType, symmetric: bool, reduced: bool, axis: int
) -> None:
    """With one bit less integers stay in that range, but for one step: the rounding of a zero point moves the grid by up to half
    a step, which may round an end to the next integer."""
    weight = np.array(rows, np.float32)
    rule: dict[str, Any] = {"dtype": dtype, "symmetric": symmetric, "power_of_two": False, "reduced": reduced}
    found = encoding_of_weight(weight, axis, **rule)
    slices = np.moveaxis(weight, axis, 0)
    alone = [encoding_of_range(float(s.min()), float(s.max()), **rule) for s in slices]
    assert found.scale == tuple(e.scale[0] for e in alone)
    assert found.zero_point == tuple(e.zero_point[0] for e in alone)
    if reduced:
        low, high = reduced_range(dtype)
        low, high = (low, high) if symmetric else (low - 1, high + 1)
        assert low <= quantize(weight, found).min() <= quantize(weight, found).max() <= high

"""Multipliers, rounding and saturation in exact integers, against Python's fractions."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from qdq_passes.numerics.arithmetic import Arithmetic, Rounding
from qdq_passes.numerics.requantize import (
    AccumulatorBias,
    Addition,
    Multiplier,
    accumulator_bias,
    addition,
    exact_product,
    fit_accumulator,
    into_range,
    multiplier_of,
    real_multiplier,
    requantize,
    requantize_float,
    round_float,
    round_quotient,
    round_shift,
    scaled,
)

from tests.cases.qdq_units import ROUNDINGS
from tests.dial import examples
from tests.properties.graphs import DETERMINISTIC

INT8, UINT8 = ir.DataType.INT8, ir.DataType.UINT8
SHIFT, FIXED = Arithmetic(requantize="shift"), Arithmetic(requantize="fixed_point")
PROFILE = settings(DETERMINISTIC, max_examples=examples(150))
INTEGERS = st.integers(-(2**62), 2**62) | st.integers(-300, 300)
REALS = st.floats(2.0**-80, 2.0**40)


def rounded(x: Fraction, rounding: Rounding) -> int:
    """``x`` as an integer, by the definition of each word."""
    if rounding == "half_up":
        return math.floor(x + Fraction(1, 2))
    if rounding == "half_even":
        return round(x)
    if rounding == "half_away":
        return (1 if x > 0 else -1) * math.floor(abs(x) + Fraction(1, 2))
    return math.trunc(x)


@PROFILE
@given(numerator=INTEGERS, denominator=st.integers(1, 2**62) | st.integers(1, 8), rounding=st.sampled_from(ROUNDINGS))
def test_a_quotient_is_rounded_exactly(numerator: int, denominator: int, rounding: Rounding) -> None:
    wanted = rounded(Fraction(numerator, denominator), rounding)
    for dtype in (np.int64, object):
        found = round_quotient(np.array([numerator], dtype), np.array([denominator], dtype), rounding)
        assert int(found[0]) == wanted


@PROFILE
@given(value=INTEGERS, shift=st.integers(-70, 62), rounding=st.sampled_from(ROUNDINGS))
def test_a_shift_is_a_quotient_and_saturates_to_the_left(value: int, shift: int, rounding: Rounding) -> None:
    wanted = rounded(Fraction(value) / Fraction(2) ** shift, rounding)
    found = round_shift(np.array([value]), np.array([shift]), rounding)
    assert int(found[0]) == max(min(wanted, 2**63 - 1), -(2**63))


@PROFILE
@given(real=REALS, negative=st.booleans())
@example(real=1.0, negative=False)
@example(real=1 - 2.0**-40, negative=True)
def test_a_fixed_point_multiplier_is_the_nearest_of_31_bits(real: float, negative: bool) -> None:
    signed = -real if negative else real
    found = multiplier_of(signed, FIXED)
    assert isinstance(found, Multiplier)
    value, shift = int(found.value[0]), int(found.shift[0])
    if value == 0:
        assert real < 2.0**-63, "only what rounds to 0 at a shift of 62 is 0"
        return
    assert 2**30 <= abs(value) < 2**31 or (shift == 62 and abs(value) < 2**30)
    assert shift <= 62
    exact = Fraction(signed) * Fraction(2) ** shift
    assert value == rounded(exact, "half_away") or (abs(value) == 2**30 and abs(2 * exact - 2 * value) <= 1)


def test_a_small_multiplier_keeps_the_bits_that_are_left() -> None:
    """2^36 · 2^-33 is 8, however small the multiplier."""
    assert int(requantize(np.array([1 << 36]), multiplier_of(2.0**-33, FIXED), FIXED, dtype=INT8)[0]) == 8  # type: ignore[arg-type]


@pytest.mark.parametrize("shift", [-62, -63, -64, -150])
def test_a_shift_to_the_left_saturates_at_64_bits(shift: int) -> None:
    far = Multiplier(np.array([1 << 30]), np.array([shift]))
    acc = np.array([3, 0, -3])
    assert requantize(acc, far, FIXED, dtype=INT8, zero_point=5).tolist() == [127, 5, -128]
    assert requantize(acc, far, Arithmetic(overflow="wrap"), dtype=INT8, divisor=2).tolist() == [0, 0, 0]


@PROFILE
@given(numerator=st.integers(-(2**17), 2**17), exponent=st.integers(-80, 40))
def test_a_dyadic_multiplier_is_exact_or_refused(numerator: int, exponent: int) -> None:
    found = multiplier_of(math.ldexp(numerator, exponent), SHIFT)
    odd = numerator // (numerator & -numerator) if numerator else 0
    if abs(odd) >= 2**16:
        assert isinstance(found, str)
        return
    assert isinstance(found, Multiplier)
    value, shift = int(found.value[0]), int(found.shift[0])
    wanted = Fraction(numerator) * Fraction(2) ** exponent
    small = abs(wanted) < abs(odd) * Fraction(2) ** -62  # k > 62
    assert value == (0 if small else odd)
    assert small or Fraction(value) / Fraction(2) ** shift == wanted


def test_multipliers_are_per_channel_and_say_which_is_none() -> None:
    found = multiplier_of(np.array([0.75, 256.0, 0.0, 0.5]), SHIFT)
    assert isinstance(found, Multiplier)
    assert found.value.tolist() == [3, 1, 0, 1]
    assert found.shift.tolist() == [2, -8, 0, 1]
    assert multiplier_of(np.array([0.5, 0.1]), SHIFT) == "the multiplier 0.1 is not n·2^-k with |n| < 2^16"
    assert multiplier_of(math.inf, FIXED) == "the multiplier inf is no finite number"


@PROFILE
@given(
    acc=st.integers(-(2**31), 2**31 - 1), real=st.floats(2.0**-40, 2.0**12), zero=st.integers(-128, 127), divisor=st.integers(1, 400),
    rounding=st.sampled_from(ROUNDINGS), first=st.booleans(), wrap=st.booleans(), clamp=st.sampled_from([None, (-3, 100), (5, None)]),
)  # fmt: skip
def test_a_result_is_one_rounding_of_a_rational_number(
    acc: int, real: float, zero: int, divisor: int, rounding: Rounding, first: bool, wrap: bool, clamp: Any
) -> None:
    arithmetic = Arithmetic(rounding=rounding, zero_point_first=first, overflow="wrap" if wrap else "saturate")
    multiplier = multiplier_of(real, arithmetic)
    assert isinstance(multiplier, Multiplier)
    low, high = clamp or (None, None)
    found = requantize(
        np.array([acc]), multiplier, arithmetic, dtype=INT8, zero_point=zero, divisor=divisor, low=low, high=high
    )
    exact = Fraction(acc * int(multiplier.value[0]), divisor) / Fraction(2) ** int(multiplier.shift[0])
    result = rounded(exact + zero, rounding) if first else rounded(exact, rounding) + zero
    result = result if low is None else max(result, low)
    result = result if high is None else min(result, high)
    assert int(found[0]) == ((result + 128) % 256 - 128 if wrap else max(min(result, 127), -128))


def test_sums_of_64_bits_are_multiplied_exactly() -> None:
    """acc·m needs 94 bits: (2^62 + 2^33)·2^30·2^-85 = 128.00000024 in uint8; below, −127.99999988 + 255."""
    wide = Arithmetic(accumulator=64)
    multiplier = Multiplier(np.array([1 << 30]), np.array([85]))
    acc = np.array([2**62 + 2**33, -(2**62) + 2**33, 2**63 - 1])
    found = requantize(acc, multiplier, wide, dtype=UINT8, zero_point=0)
    assert found.tolist() == [128, 0, 255]
    assert requantize(acc, multiplier, wide, dtype=UINT8, zero_point=255).tolist() == [255, 127, 255]


def test_sums_below_0_may_have_their_own_multiplier_per_channel() -> None:
    half, quarters = (multiplier_of(np.array(m), SHIFT) for m in ([0.5], [0.25, -1.0]))
    assert isinstance(half, Multiplier)
    assert isinstance(quarters, Multiplier)
    acc = np.array([[8, 8], [-8, -8]])
    found = requantize(acc, half, SHIFT, dtype=INT8, zero_point=1, negative=quarters, axis=-1)
    assert found.tolist() == [[5, 5], [-1, 9]]


@PROFILE
@given(
    a=st.integers(-255, 255),
    b=st.integers(-255, 255),
    first=st.floats(2.0**-20, 2.0**6),
    second=st.floats(2.0**-20, 2.0**6),
)
def test_an_addition_is_right_to_one_unit_of_2_to_the_minus_20(a: int, b: int, first: float, second: float) -> None:
    """Each multiplier is wrong by ½·2^-shift, and the larger is at least 2^29: so the sum by 255·2^-29 of the larger ratio."""
    found = addition(first, -second, FIXED)
    assert isinstance(found, Addition)
    mantissa, exponent = math.frexp(max(first, second))  # log2 rounds next to powers of two
    assert found.shift == 30 - exponent + (mantissa == 0.5)
    got = Fraction(a * found.first + b * found.second, 2**found.shift)
    assert abs(got - (a * Fraction(first) - b * Fraction(second))) <= 510 * Fraction(max(first, second)) / 2**29


def test_additions_of_powers_of_two_are_exact_or_refused() -> None:
    assert addition(0.5, -2.0, SHIFT) == Addition(1, -4, 1)
    assert addition(4.0, 8.0, SHIFT) == Addition(4, 8, 0)
    assert addition(2.0**-70, 2.0**-80, SHIFT) == Addition(0, 0, 0)
    assert addition(0.3, 0.5, SHIFT) == "the ratios of scales 0.3 and 0.5 are not both powers of two"
    assert (
        addition(2.0**-10, 2.0**25, SHIFT)
        == "the ratios of scales 0.0009765625 and 33554432 do not fit 31 bits at one shift"
    )
    assert isinstance(addition(0.0, 1.0, FIXED), str)
    assert isinstance(addition(2.0**31, 1.0, FIXED), str)
    assert addition(1.0, 1.0, FIXED) == Addition(1 << 30, 1 << 30, 30)


def test_a_bias_comes_to_the_grid_of_the_sum_or_the_sum_to_its() -> None:
    """Steps of the sum 1/4: whole multiples exactly; a bias of steps 1/8 shifts the sum; 0.3 is rounded, halves to even."""
    step = np.array([0.25])

    def of(bias: list[float], scale: Any, zero: int = 0, product: Any = step) -> Any:
        found = accumulator_bias(np.array(bias), product, scale=scale, zero_point=zero)
        return (found.value.tolist(), found.x_shift) if isinstance(found, AccumulatorBias) else found

    assert of([3, -4], 0.75) == ([9, -12], 0)
    assert of([3, -4], 0.75, zero=1) == ([6, -15], 0)
    assert of([3, -4], 0.125) == ([3, -4], 1)
    assert of([3, -4], np.array([0.5, 0.125])) == ([12, -4], 1)
    assert of([3, -4], 2.0**-18) == ([0, 0], 0), "2^-16 is too fine: rounded"
    assert of([3, -5], 0.3) == ([4, -6], 0), "3.6, −6"
    assert of([0.6, 0.625, 0.875], None) == ([2, 2, 4], 0)
    assert of([2**31], 0.25) == "the bias does not fit 32 bits in units of s_x·s_w"
    assert of([-(2**31)], 0.25) == ([-(2**31)], 0)
    assert of([math.nan], None) == "the bias does not fit 32 bits in units of s_x·s_w"
    assert of(
        [1000], float(np.float32(0.1) * np.float32(0.3)), product=np.float64(np.float32(0.1)) * np.float32(0.3)
    ) == ([1000], 0)


@pytest.mark.parametrize("bits", [8, 24, 32, 64])
def test_an_accumulator_wraps_or_saturates(bits: int) -> None:
    top = 2 ** (bits - 1)
    values = np.array([0, top - 1, top, -top, -top - 1, 3 * top], object)
    wraps = fit_accumulator(values, Arithmetic(accumulator=bits))
    assert wraps.tolist() == [0, top - 1, -top, -top, top - 1, -top]
    full = fit_accumulator(values, Arithmetic(accumulator=bits, accumulator_overflow="saturate"))
    assert full.tolist() == [0, top - 1, top - 1, -top, -top, top - 1]
    assert into_range(np.array([300, -1]), 0, 255, "wrap").tolist() == [44, 255]


@PROFILE
@given(x=st.floats(-(2.0**30), 2.0**30, width=32), rounding=st.sampled_from(ROUNDINGS))
@example(x=float(np.nextafter(np.float32(0.5), np.float32(0))), rounding="half_up")
@example(x=-(2.0**-149), rounding="half_up")
@example(x=8388609.0, rounding="half_away")
def test_float32_is_rounded_exactly(x: float, rounding: Rounding) -> None:
    assert int(round_float(np.array([x], np.float32), rounding)[0]) == rounded(Fraction(x), rounding)


def test_a_float32_beyond_62_bits_ends_there() -> None:
    """±2^62 + 5 is 5 modulo 256, as on the NPU."""
    huge = np.array([np.inf, -np.inf, 3e38], np.float32)
    assert requantize_float(huge, 1.0, Arithmetic(), dtype=INT8).tolist() == [127, -128, 127]
    assert requantize_float(huge, 1.0, Arithmetic(overflow="wrap"), dtype=INT8, zero_point=5).tolist() == [5, 5, 5]


def test_the_float_mode_rounds_every_operation_to_float32() -> None:
    """16777217 is no float32: 16777216·0.1 = 1677721.625 and not .75; a slope applies to numbers below 0 alone."""
    assert scaled(np.array([16777217]), 0.1).tolist() == [1677721.625]
    assert scaled(np.array([[4, -4]]), np.array([0.5, 0.25]), axis=-1, slope=np.array([3.0, 0.5])).tolist() == [
        [2.0, -0.5]
    ]
    first = Arithmetic(requantize="float", rounding="half_even", zero_point_first=True)
    tied = np.array([0.5, 1.5], np.float32)
    assert requantize_float(tied, 1.0, first, dtype=INT8, zero_point=1).tolist() == [2, 2], "1.5 and 2.5"
    assert requantize_float(tied, 1.0, Arithmetic(rounding="half_even"), dtype=INT8, zero_point=1).tolist() == [1, 3]


def test_a_real_multiplier_is_made_in_float64() -> None:
    found = real_multiplier(np.array([0.25, 0.5]), 0.125, x_shift=1, slope=np.array([-0.5]))
    assert found.tolist() == [-0.5, -1.0]


def test_products_leave_64_bits_unharmed() -> None:
    a = np.array([2**40, -(2**40)])
    assert exact_product(a, np.array(2**30)).tolist() == [2**70, -(2**70)]
    assert exact_product(np.array([3]), np.array(4)).dtype == np.int64

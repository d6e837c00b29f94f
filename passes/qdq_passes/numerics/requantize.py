"""How a sum of integers becomes an output integer under an `Arithmetic` (ADR 14), in exact integers.

    M = s_x·s_w / s_y ≈ m·2^-k          `multiplier_of`, `real_multiplier`
    acc = Σ(x − z_x)(w − z_w) + bias     `accumulator_bias`, `fit_accumulator`
    y = round(acc·m / (n·2^k)) + z_y     `requantize`, n the count of a mean, else 1
    y = round(a·m_a + b·m_b, k) + z_y    `addition`, then `requantize` with the multiplier 1
    t = acc·(s_x·s_w), y = round(t / s_y) + z_y, all in float32    `scaled`, `requantize_float`

The order behind the rounding is: zero point, clamp of a fused activation, saturate or wrap. Real numbers here are float64 of the
stored float32 scales: a product of two scales is exact. Integers are int64 arrays; where a product could leave 62 bits they are
arrays of Python's integers, which have no end. What an arithmetic cannot represent comes back as the reason in words."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.numerics.arithmetic import Arithmetic, Overflow, Rounding
from qdq_passes.numerics.arrays import Reals
from qdq_passes.numerics.encoding import integer_range

#: int64, or Python's integers where 64 bits do not hold them.
Integers = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

#: Largest n of a dyadic multiplier n·2^-k, exclusive; largest k; largest k by which a bias is finer than the sum.
DYADIC_LIMIT, SHIFT_LIMIT, X_SHIFT_LIMIT = 1 << 16, 62, 15
_INT32 = (-(1 << 31), (1 << 31) - 1)
_INT64 = (-(1 << 63), (1 << 63) - 1)
#: |value| below which int64 holds a sum of two.
_SAFE = 1 << 62


@dataclass(frozen=True, eq=False)
class Multiplier:
    """M ≈ value·2^-shift, an entry per channel or one for all.

    Args:
        value: int64 [1] or [C], |value| < 2^31; an odd number below 2^16 in the mode ``shift``.
        shift: int64 [1] or [C], at most 62; below 0 the value is shifted to the left.
    """

    value: npt.NDArray[np.int64]
    shift: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Addition:
    """a·s_a ± b·s_b in units of s_y: (a·first + b·second)·2^-shift, |first|, |second| < 2^31, 0 ≤ shift ≤ 62."""

    first: int
    second: int
    shift: int


@dataclass(frozen=True, eq=False)
class AccumulatorBias:
    """A bias in units of the accumulator.

    Args:
        value: int64 [C] within int32.
        x_shift: by how much the sum is shifted to the left before the bias is added; M is divided by 2^x_shift.
    """

    value: npt.NDArray[np.int64]
    x_shift: int = 0


UNIT = Multiplier(np.ones(1, np.int64), np.zeros(1, np.int64))


def real_multiplier(product: Reals, output_scale: float, *, x_shift: int = 0, slope: Reals | float = 1.0) -> Reals:
    """M, flat, in float64: (``product`` / 2^x_shift / s_y)·slope, where ``product`` is the value of 1 in the sum: s_x·s_w."""
    real = np.ldexp(np.asarray(product, np.float64).reshape(-1), -x_shift) / np.float64(output_scale)
    return np.asarray(real * np.asarray(slope, np.float64).reshape(-1))


def multiplier_of(real: Reals | float, arithmetic: Arithmetic) -> Multiplier | str:
    """The integers that stand for M under ``arithmetic``; in words which M has none.

    ``shift``: M = n·2^-k exactly, n odd, |n| < 2^16. ``fixed_point`` (and ``float``, for operators that have no float form):
    2^30 ≤ |m| < 2^31, m = M·2^k rounded half away from 0. Where k would exceed 62, ``shift`` has m = k = 0, and ``fixed_point``
    k = 62 and the bits of m that are left: a sum of 64 bits may still be more than one step.

    Args:
        real: M, any sign, [C] or one number.
        arithmetic: of the target.
    """
    found = [_one_multiplier(float(m), dyadic=arithmetic.requantize == "shift") for m in np.ravel(np.asarray(real))]
    for one in found:
        if isinstance(one, str):
            return one
    pairs = np.array(found, np.int64).reshape(-1, 2)
    return Multiplier(pairs[:, 0].copy(), pairs[:, 1].copy())


def _one_multiplier(real: float, *, dyadic: bool) -> tuple[int, int] | str:
    if not math.isfinite(real):
        return f"the multiplier {real} is no finite number"
    if real == 0.0:
        return 0, 0
    fraction, exponent = math.frexp(real)
    if dyadic:
        numerator, denominator = fraction.as_integer_ratio()  # odd, and a power of two
        if abs(numerator) >= DYADIC_LIMIT:
            return f"the multiplier {real:.9g} is not n·2^-k with |n| < 2^16"
        value, shift = numerator, denominator.bit_length() - 1 - exponent
    else:
        value, shift = _half_away(math.ldexp(fraction, 31)), 31 - exponent
        if abs(value) == 1 << 31:
            value, shift = value // 2, shift - 1
        if shift > SHIFT_LIMIT:
            value = _half_away(math.ldexp(real, SHIFT_LIMIT))
            shift = SHIFT_LIMIT if value else 0
    return (0, 0) if shift > SHIFT_LIMIT else (value, shift)


def _half_away(x: float) -> int:
    """Exact below 2^52."""
    return int(math.copysign(math.floor(abs(x) + 0.5), x))


def addition(first: float, second: float, arithmetic: Arithmetic) -> Addition | str:
    """The integers of a·first + b·second, ratios of scales s_a/s_y and ±s_b/s_y; in words why there are none.

    ``shift``: both are powers of two 2^i and ±2^j, shift = max(0, −i, −j). Else shift = 30 − ⌈log2 max(|first|, |second|)⌉ within
    0 … 62, and both are rounded half away from 0.
    """
    if not (math.isfinite(first) and math.isfinite(second)) or 0.0 in (first, second):
        return f"the ratios of scales {first:.9g} and {second:.9g} are no finite numbers"
    (f, i), (g, j) = math.frexp(first), math.frexp(second)
    if arithmetic.requantize == "shift":
        if abs(f) != 0.5 or abs(g) != 0.5:
            return f"the ratios of scales {first:.9g} and {second:.9g} are not both powers of two"
        shift = max(0, 1 - i, 1 - j)
    else:
        above = max((i, abs(f)), (j, abs(g)))
        shift = min(max(30 - (above[0] - (above[1] == 0.5)), 0), SHIFT_LIMIT)
    scaled_up = (math.ldexp(first, shift), math.ldexp(second, shift))
    if max(map(abs, scaled_up)) >= 1 << 31:
        return f"the ratios of scales {first:.9g} and {second:.9g} do not fit 31 bits at one shift"
    if shift > SHIFT_LIMIT:
        return Addition(0, 0, 0)
    return Addition(_half_away(scaled_up[0]), _half_away(scaled_up[1]), shift)


def accumulator_bias(
    bias: npt.NDArray[Any],
    product: Reals,
    *,
    scale: Reals | float | None = None,
    zero_point: npt.NDArray[Any] | int = 0,
) -> AccumulatorBias | str:
    """A bias in units of the accumulator, s_x·s_w; in words why there is none.

    With r = s_b/(s_x·s_w): (b − z_b)·r where every r is an integer. Where every r is a power of two and at least 2^-15, the sum
    is shifted by the largest k of r = 2^-k instead. Else, and for a float bias, the nearest integer of (b − z_b)·s_b/(s_x·s_w),
    ties to even.

    Args:
        bias: [C] stored integers, or floats when ``scale`` is None.
        product: s_x·s_w, [C] or [1].
        scale: s_b, [C] or [1].
        zero_point: z_b, [C] or [1].
    """
    product = np.asarray(product, np.float64).reshape(-1)
    x_shift = 0
    if scale is None:
        wanted = np.rint(bias.reshape(-1).astype(np.float64) / product)
    else:
        step = np.asarray(scale, np.float64).reshape(-1)
        ratio, centered = (
            step / product,
            bias.reshape(-1).astype(np.float64) - np.asarray(zero_point, np.float64).reshape(-1),
        )
        if (ratio == np.rint(ratio)).all() and (ratio != 0).all():
            wanted = centered * ratio
        elif (np.frexp(ratio)[0] == 0.5).all() and (x_shift := 1 - int(np.frexp(ratio)[1].min())) <= X_SHIFT_LIMIT:
            wanted = np.ldexp(centered * ratio, x_shift)
        else:
            wanted, x_shift = np.rint(centered * step / product), 0
    if not (np.isfinite(wanted) & (wanted >= _INT32[0]) & (wanted <= _INT32[1])).all():
        return "the bias does not fit 32 bits in units of s_x·s_w"
    return AccumulatorBias(wanted.astype(np.int64), x_shift)


def fit_accumulator(acc: Integers, arithmetic: Arithmetic, *, wide: bool = False) -> Integers:
    """``acc`` as an accumulator of the target holds it: saturated or wrapped to ``accumulator`` bits, once; to those of
    ``wide_accumulator`` where an operand has 16 bits."""
    half = 1 << ((arithmetic.wide_accumulator if wide else arithmetic.accumulator) - 1)
    return into_range(acc, -half, half - 1, arithmetic.accumulator_overflow)


def into_range(value: Integers, low: int, high: int, overflow: Overflow) -> Integers:
    """Integers within a type's ``low`` … ``high``, saturated or wrapped modulo its size; int64."""
    bottom, top = _extremes(value)
    if low <= bottom and top <= high:
        return value.astype(np.int64)
    if overflow == "saturate":
        return np.asarray(np.clip(value, low, high)).astype(np.int64)
    return np.asarray((value.astype(object) - low) % (high - low + 1) + low).astype(np.int64)


def round_quotient(numerator: Integers, denominator: Integers | int, rounding: Rounding) -> Integers:
    """numerator / denominator (above 0) rounded to an integer, exactly; both broadcast."""
    numerator, divisor = np.asarray(numerator), np.asarray(denominator)
    quotient = np.floor_divide(numerator, divisor)
    rest = numerator - quotient * divisor
    if rounding == "toward_zero":
        return np.asarray(quotient + ((rest > 0) & (numerator < 0)))
    other = divisor - rest
    up, tie = rest > other, rest == other
    if rounding == "half_up":
        up = up | tie
    elif rounding == "half_even":
        up = up | (tie & (quotient % 2 == 1))
    else:
        up = up | (tie & (numerator > 0))
    return np.asarray(quotient + up)


def round_shift(value: Integers, shift: Integers | int, rounding: Rounding) -> Integers:
    """value / 2^shift rounded to an integer; below 0 a shift to the left that saturates at int64."""
    return round_quotient(*_as_quotient(np.asarray(value), np.asarray(shift), 1), rounding)


def requantize(
    acc: Integers,
    multiplier: Multiplier,
    arithmetic: Arithmetic,
    *,
    dtype: ir.DataType,
    zero_point: int = 0,
    divisor: Integers | int = 1,
    negative: Multiplier | None = None,
    axis: int | None = None,
    low: int | None = None,
    high: int | None = None,
) -> Integers:
    """Output integers of a sum in the integer modes, int64: round(acc·m / (divisor·2^shift)) + z_y, clamped, within ``dtype``.

    Args:
        acc: int64 of any shape, the sum as its accumulator holds it.
        multiplier: of M, one or one per index of ``axis``.
        arithmetic: rounding, order of the zero point, overflow.
        dtype: type of the output.
        zero_point: z_y.
        divisor: above 0; what a mean divides by.
        negative: the multiplier of sums below 0, for LeakyRelu and PRelu behind.
        axis: the axis of ``acc`` that entries of the multipliers run along.
        low: least output of a fused activation.
        high: largest one.
    """
    value, shift = (_along(part, acc.ndim, axis) for part in (multiplier.value, multiplier.shift))
    if negative is not None:
        value = np.where(acc < 0, _along(negative.value, acc.ndim, axis), value)
        shift = np.where(acc < 0, _along(negative.shift, acc.ndim, axis), shift)
    numerator, denominator = _as_quotient(exact_product(acc, value), shift, divisor)
    if arithmetic.zero_point_first:
        numerator = exact_sum(numerator, exact_product(denominator, np.asarray(zero_point)))
    rounded = round_quotient(numerator, denominator, arithmetic.rounding)
    return _finish(
        rounded if arithmetic.zero_point_first else exact_sum(rounded, np.asarray(zero_point)),
        arithmetic,
        dtype,
        low,
        high,
    )


def scaled(
    acc: Integers, scale: Reals | float, *, axis: int | None = None, slope: Reals | float | None = None
) -> Floats:
    """float32(acc)·float32(scale), and times float32(slope) where below 0: the start of the mode ``float``.

    ``scale`` (s_x·s_w·2^-x_shift) and ``slope`` are one number or one per index of ``axis``, each rounded to float32 once.
    """
    with np.errstate(over="ignore", under="ignore"):
        real = acc.astype(np.float32) * _along(np.ravel(np.asarray(scale)).astype(np.float32), acc.ndim, axis)
        if slope is not None:
            real = np.where(
                real < 0, real * _along(np.ravel(np.asarray(slope)).astype(np.float32), acc.ndim, axis), real
            )
    return np.asarray(real, np.float32)


def requantize_float(
    real: Floats,
    output_scale: float,
    arithmetic: Arithmetic,
    *,
    dtype: ir.DataType,
    zero_point: int = 0,
    low: int | None = None,
    high: int | None = None,
) -> Integers:
    """Output integers of a float32 value in the mode ``float``: round(real / s_y) + z_y, the division in float32, and with
    ``zero_point_first`` the sum too; clamped, brought into ``dtype``; int64. Arguments as `requantize`."""
    with np.errstate(over="ignore", under="ignore"):
        quotient = np.asarray(real, np.float32) / np.float32(output_scale)
    if arithmetic.zero_point_first:
        integers: Integers = round_float(quotient + np.float32(zero_point), arithmetic.rounding)
    else:
        integers = exact_sum(round_float(quotient, arithmetic.rounding), np.array(zero_point))
    return _finish(integers, arithmetic, dtype, low, high)


def round_float(x: Floats, rounding: Rounding) -> npt.NDArray[np.int64]:
    """float32, no NaN, rounded to int64; results end at ±2^62. x + ½ in float64 is exact, or no integer."""
    wide = np.asarray(x, np.float32).astype(np.float64)
    if rounding == "half_up":
        wide = np.floor(wide + 0.5)
    elif rounding == "half_even":
        wide = np.rint(wide)
    elif rounding == "half_away":
        wide = np.copysign(np.floor(np.abs(wide) + 0.5), wide)
    else:
        wide = np.trunc(wide)
    return np.clip(wide, -(2.0**62), 2.0**62).astype(np.int64)


def exact_product(a: Integers, b: Integers) -> Integers:
    """a·b; int64 where it certainly stays below 2^62."""
    bound = _largest(a) * _largest(b)
    return np.asarray(a * b) if bound < _SAFE else np.asarray(a.astype(object) * b.astype(object))


def exact_sum(a: Integers, b: Integers) -> Integers:
    """a + b; int64 where it certainly stays below 2^62."""
    bound = _largest(a) + _largest(b)
    return np.asarray(a + b) if bound < _SAFE else np.asarray(a.astype(object) + b.astype(object))


def _as_quotient(value: Integers, shift: Integers, divisor: Integers | int) -> tuple[Integers, Integers]:
    """value·2^-shift / divisor as (numerator, denominator); a shift to the left saturates at int64."""
    numerator = value
    if (shift < 0).any():
        # Whatever is not 0 saturates from 2^64 on. Python's integers hold the power.
        shifted = exact_product(value, _power_of_two(np.clip(-shift, 0, 64)))
        numerator = np.asarray(np.where(shift < 0, np.clip(shifted, *_INT64), shifted))
    denominator = exact_product(_power_of_two(np.maximum(shift, 0)), np.asarray(divisor))
    return tuple(_narrowed(numerator, denominator))  # type: ignore[return-value]


def _power_of_two(exponent: Integers) -> Integers:
    return np.asarray(np.ones((), object) << exponent.astype(object))


def _narrowed(*arrays: Integers) -> list[Integers]:
    """The arrays as int64 where all are below 2^62, else as Python's integers."""
    small = all(_largest(array) < _SAFE for array in arrays)
    return [array.astype(np.int64 if small else object) for array in arrays]


def _finish(value: Integers, arithmetic: Arithmetic, dtype: ir.DataType, low: int | None, high: int | None) -> Integers:
    if low is not None or high is not None:
        value = np.asarray(np.clip(value, low, high))
    return into_range(value, *integer_range(dtype, symmetric=False), arithmetic.overflow)


def _along(entries: npt.NDArray[Any], rank: int, axis: int | None) -> npt.NDArray[Any]:
    """[C] or [1] entries laid out to broadcast against an array of ``rank`` along ``axis``."""
    if entries.size == 1 or axis is None:
        return entries.reshape(())
    return entries.reshape([-1 if i == axis % rank else 1 for i in range(rank)])


def _extremes(value: Integers) -> tuple[int, int]:
    return (int(value.min()), int(value.max())) if value.size else (0, 0)


def _largest(value: Integers) -> int:
    low, high = _extremes(value)
    return max(-low, high)

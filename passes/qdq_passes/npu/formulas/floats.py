"""Floating point of an NPU: float32 numbers, rounded to a precision p when they are read and when they are written.

    rounded(x)   the number of p that is nearest to x, halves to even; float16 with its subnormals, beyond its largest number ∞
    e^x          in float64, of nothing but sums and products: k = round(x·log₂e), r = x − k·ln 2, (Σ rⁿ/n!)·2^k, rounded once

Each operation between is one of IEEE 754 in float32: +, −, ×, ÷, √. So kernels in any language compute the same bits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from qdq_passes.npu.formulas.functions import Function
from qdq_passes.numerics.arithmetic import Arithmetic, Precision
from qdq_passes.numerics.encoding import Encoding, integer_range
from qdq_passes.numerics.requantize import Floats, Integers, requantize_float

#: Precision → its numpy type.
TYPES: Mapping[Precision, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
#: Quotients beyond ±2^62 count as ±2^62 when they are rounded to integers.
GREATEST = np.float32(2.0**62)

#: ln 2 in two parts; the first has so few bits that k times it is exact in float64.
_LN2_HIGH, _LN2_LOW = 0.693147182464599609375, -1.904654299957768e-09
#: 1/n! for n = 12 … 0.
_COEFFICIENTS = tuple(1.0 / math.factorial(n) for n in range(12, -1, -1))
#: Beyond these e^x is 0 and ∞ in float32.
_LEAST, _MOST = -110.0, 90.0


def rounded(x: npt.NDArray[Any], precision: Precision) -> Floats:
    """``x`` (numbers of any type, any shape) as float32 and rounded to ``precision``, float32."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.asarray(np.asarray(x).astype(np.float32).astype(TYPES[precision]).astype(np.float32))


def exponential(x: Floats) -> Floats:
    """e^x, float32 → float32; NaN stays."""
    with np.errstate(all="ignore"):
        wide = np.minimum(np.maximum(x.astype(np.float64), _LEAST), _MOST)
        steps = np.floor(wide * 1.4426950408889634 + 0.5)
        rest = (wide - steps * _LN2_HIGH) - steps * _LN2_LOW
        value = np.full_like(rest, _COEFFICIENTS[0])
        for coefficient in _COEFFICIENTS[1:]:
            value = value * rest + coefficient
        return np.asarray(np.ldexp(value, np.where(np.isnan(steps), 0, steps).astype(np.int64)).astype(np.float32))


def lookup_table(function: Function, precision: Precision) -> npt.NDArray[Any]:
    """What ``function`` makes of each number of a half precision, by its 16 bits as an unsigned integer: [65536] of its type."""
    numbers = np.arange(1 << 16, dtype=np.uint16).view(TYPES[precision]).astype(np.float32)
    with np.errstate(all="ignore"):
        return np.asarray(function.evaluate(numbers).astype(np.float32).astype(TYPES[precision]))


def quantized_float(x: npt.NDArray[Any], encoding: Encoding, arithmetic: Arithmetic) -> Integers:
    """A QuantizeLinear of the NPU behind floating point: fit(round(x / s_y) + z_y), int64.

    ``x`` is rounded to the precision before. What is no number becomes the smallest integer of the type.

    Args:
        x: numbers.
        encoding: per-tensor, of at most 16 bits.
        arithmetic: whose rounding and precision hold.
    """
    numbers = rounded(x, arithmetic.float_precision)
    scale = np.float32(encoding.scale[0])
    with np.errstate(all="ignore"):
        quotient = numbers / scale
    nan = np.isnan(quotient)
    bounded = np.where(nan, np.float32(0), np.clip(quotient, -GREATEST, GREATEST))
    zero = int(encoding.zero_point[0])
    found = requantize_float(bounded, 1.0, arithmetic, dtype=encoding.dtype, zero_point=zero)
    return np.where(nan, integer_range(encoding.dtype, symmetric=False)[0], found)


def batch_norm_factors(
    scale: Floats, bias: Floats, mean: Floats, variance: Floats, epsilon: float
) -> tuple[Floats, Floats]:
    """(a, b) of a BatchNormalization x·a + b: a = γ / √(σ² + ε), b = β − μ·a, in float32; all [C]."""
    factor = np.asarray(scale / np.sqrt(variance + np.float32(epsilon)), np.float32)
    return factor, np.asarray(bias - mean * factor, np.float32)

"""What a target's arithmetic is: the choices of ADR 14, and those of ADR 20 for 16 bits and floating point, as values."""

from __future__ import annotations

from typing import Literal

from qdq_passes._lazy_dataclass import dataclass

Requantize = Literal["shift", "fixed_point", "float"]
Rounding = Literal["half_up", "half_even", "half_away", "toward_zero"]
Overflow = Literal["saturate", "wrap"]
#: How a function of one 16-bit value is computed.
WideFunctions = Literal["float32", "float16", "interpolated"]
#: What a target's floating-point engine computes in.
Precision = Literal["float16", "bfloat16", "float32"]


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """How an operator on integers computes y = round(M·Σ(x − z_x)(w − z_w) + …) + z_y.

    Args:
        accumulator: width of the sum in bits, 8 to 64.
        accumulator_overflow: what a sum does that its accumulator does not hold, once, at the end of the sum.
        requantize: what stands for the real multiplier M. ``shift``: M must be n·2^-k with 0 < |n| < 2^16. ``fixed_point``: an
            int32 in [2^30, 2^31) and a shift, rounded once (arXiv 1712.05877 §2.2). ``float``: float32 throughout,
            sum · (s_x·s_w) / s_y.
        rounding: half_up is ⌊x + ½⌋, toward_zero truncates.
        zero_point_first: the zero point is added before rounding, not after.
        overflow: what a result does that the output type does not hold.
        wide_accumulator: width of a sum of which an operand has 16 bits, in place of ``accumulator``.
        wide_functions: how a function of one 16-bit value is computed. ``float32``: as of 8 bits, the float32 function of each
            integer. ``float16``: the integer's number rounded to float16, the function rounded to float16. ``interpolated``: a
            straight line between the exact results at ``segments`` + 1 equally spaced integers.
        segments: of ``interpolated``, a power of two up to 65536.
        float_precision: what a unit is computed in that the target computes in floating point (verdict npu-float).
    """

    accumulator: int = 32
    accumulator_overflow: Overflow = "wrap"
    requantize: Requantize = "fixed_point"
    rounding: Rounding = "half_up"
    zero_point_first: bool = False
    overflow: Overflow = "saturate"
    wide_accumulator: int = 64
    wide_functions: WideFunctions = "float32"
    segments: int = 256
    float_precision: Precision = "float16"

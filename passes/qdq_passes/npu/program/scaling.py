"""From an exact sum to integers of the output: multipliers and shifts, or float32 scales, and the attributes that say how."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qdq_passes.npu.program.edit import Attributes, Source, Stored
from qdq_passes.npu.program.operands import NotComputable, as_float32, step, zero
from qdq_passes.npu.program.tails import Tail
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.requantize import Multiplier, multiplier_of, real_multiplier

Reals = npt.NDArray[np.float64]


def scaling_inputs(
    product: Reals, output: Encoding, arithmetic: Arithmetic, *, x_shift: int = 0, slope: Reals | None = None
) -> list[Source]:
    """Inputs behind a bias that bring sums of step ``product`` (float64 [C] or [1]), shifted to the left by ``x_shift``, to
    ``output``: multiplier and shift, and those of sums below 0 where there is a ``slope``; in the mode ``float`` a float32 scale
    and the slope.

    Raises:
        NotComputable: the arithmetic has no such multiplier.
    """
    if arithmetic.requantize == "float":
        scales = as_float32("product of scales", *np.ldexp(product, -x_shift).reshape(-1))
        below = None if slope is None else Stored("slope", slope.astype(np.float32))
        return [Stored("scale", np.array(scales, np.float32)), None, below]
    found: list[Source] = []
    for prefix, factor in (("", 1.0), ("negative_", slope)):
        if factor is not None:
            scaled = multiplier(real_multiplier(product, step(output), x_shift=x_shift, slope=factor), arithmetic)
            found.append(Stored(f"{prefix}multiplier", scaled.value.astype(np.int32)))
            found.append(Stored(f"{prefix}shift", scaled.shift.astype(np.int32)))
    return found


def multiplier(real: Reals | float, arithmetic: Arithmetic) -> Multiplier:
    """`multiplier_of`.

    Raises:
        NotComputable: the arithmetic has none.
    """
    found = multiplier_of(real, arithmetic)
    if isinstance(found, str):
        raise NotComputable(found)
    return found


def one_multiplier(found: Multiplier) -> Attributes:
    """``found``, one for all sums, as attributes."""
    return {"multiplier": int(found.value[0]), "shift": int(found.shift[0])}


def output_attributes(
    output: Encoding,
    arithmetic: Arithmetic,
    tail: Tail | None = None,
    *,
    mode: str | None = None,
    sums: bool = True,
    wide: bool = False,
) -> Attributes:
    """How an exact sum becomes integers of ``output``; ``mode`` where it is not that of the arithmetic, ``wide`` where an operand
    has 16 bits."""
    chosen = mode or ("float" if arithmetic.requantize == "float" else "integer")
    found: dict[str, int | float | str] = {
        "mode": chosen,
        "rounding": arithmetic.rounding,
        "overflow": arithmetic.overflow,
        "zero_point_first": int(arithmetic.zero_point_first),
        "y_type": int(output.dtype),
        "y_zero_point": zero(output),
    }
    if sums:
        found |= {
            "accumulator_bits": arithmetic.wide_accumulator if wide else arithmetic.accumulator,
            "accumulator_overflow": arithmetic.accumulator_overflow,
        }
    if chosen == "float":
        found["y_scale"] = step(output)
    bounds = {} if tail is None else {"y_low": tail.low, "y_high": tail.high}
    return {**found, **{name: bound for name, bound in bounds.items() if bound is not None}}

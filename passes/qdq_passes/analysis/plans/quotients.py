"""Plans of Div, and of Min and Max, on tensors of integers.

Div: y = round(M·(a − z_a) / (b − z_b)) + z_y with M = s_a / (s_b·s_y), one rounding; by zero the largest or smallest integer by
the sign of a, and z_y where a is 0 too. Min, Max: each operand is brought to the encoding of the output, then integers are
compared."""

from __future__ import annotations

from dataclasses import dataclass

from qdq_passes.analysis.plans.operands import NotComputable, as_float32, source, step, target
from qdq_passes.analysis.plans.products import multiplier
from qdq_passes.analysis.plans.tails import Tail, tail_of
from qdq_passes.npu.units.units import Operand, Unit
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.requantize import Multiplier, real_multiplier


@dataclass(frozen=True, eq=False, kw_only=True)
class Quotient:
    """a / b.

    Args:
        a: what is divided.
        b: by what.
        multiplier: of M; None in the mode ``float``.
        scale: s_a / s_b.
        output: encoding of the output.
        tail: what is behind.
    """

    a: Operand
    b: Operand
    multiplier: Multiplier | None
    scale: float
    output: Encoding
    tail: Tail


@dataclass(frozen=True, eq=False, kw_only=True)
class Extreme:
    """The largest or smallest of several tensors, element by element.

    Args:
        data: the tensors.
        output: encoding of the output.
    """

    data: tuple[Operand, ...]
    output: Encoding


def quotient(unit: Unit, arithmetic: Arithmetic) -> Quotient:
    """The plan of a Div.

    Raises:
        NotComputable: there is none.
    """
    a, b, output = source(unit, 0), source(unit, 1), target(unit)
    assert a.encoding is not None
    assert b.encoding is not None
    ratio = step(a.encoding) / step(b.encoding)
    scale = None
    if arithmetic.requantize != "float":
        scale = multiplier(real_multiplier(ratio, step(output)), arithmetic)  # type: ignore[arg-type]
    else:
        as_float32("ratio of scales", ratio)
    return Quotient(a=a, b=b, multiplier=scale, scale=ratio, output=output, tail=tail_of(unit.tail, output))


def extreme(unit: Unit, arithmetic: Arithmetic) -> Extreme:
    """The plan of a Min or Max; that of one tensor only changes its encoding.

    Raises:
        NotComputable: there is none.
    """
    data = tuple(source(unit, index) for index in range(len(unit.operands)))
    output = target(unit)
    if unit.tail:
        raise NotComputable(
            f"{unit.tail[0].op_type} in one step with {unit.core.op_type} has no kernel; put a pair between"
        )
    return Extreme(data=data, output=output)

"""Plans of Add, Sub and Mul on two tensors of integers."""

from __future__ import annotations

from dataclasses import dataclass

from qdq_passes.analysis.plans.operands import MOST_OF_ADDENDS, NotComputable, as_float32, source, step, target
from qdq_passes.analysis.plans.products import multiplier
from qdq_passes.analysis.plans.tails import Tail, tail_of
from qdq_passes.npu.units.units import Operand, Unit
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.requantize import Addition, Multiplier, addition, real_multiplier


@dataclass(frozen=True, eq=False, kw_only=True)
class Elementwise:
    """a ± b or a·b.

    Args:
        a: first operand.
        b: second operand.
        sign: −1 of a Sub, else 1.
        sum: integers of a sum; None of a product, and in the mode ``float``.
        product: integers of a product; None of a sum, and in the mode ``float``.
        output: encoding of the output.
        tail: what is behind.
    """

    a: Operand
    b: Operand
    sign: int
    sum: Addition | None
    product: Multiplier | None
    output: Encoding
    tail: Tail


def elementwise(unit: Unit, arithmetic: Arithmetic) -> Elementwise:
    """The plan of an Add, Sub or Mul.

    Raises:
        NotComputable: there is none.
    """
    a, b, output = source(unit, 0), source(unit, 1), target(unit)
    assert a.encoding is not None
    assert b.encoding is not None
    first, second, out = step(a.encoding), step(b.encoding), step(output)
    sign = -1 if unit.core.op_type == "Sub" else 1
    found: Addition | str | None = None
    product: Multiplier | None = None
    if arithmetic.requantize != "float":
        if unit.core.op_type == "Mul":
            product = multiplier(real_multiplier(first * second, out), arithmetic)  # type: ignore[arg-type]
        else:
            found = addition(first / out, sign * second / out, arithmetic)
    elif unit.core.op_type == "Mul":
        as_float32("product of scales", first * second)
    else:
        as_float32("scale", first, second, most=MOST_OF_ADDENDS)
    if isinstance(found, str):
        raise NotComputable(found)
    return Elementwise(a=a, b=b, sign=sign, sum=found, product=product, output=output, tail=tail_of(unit.tail, output))

"""Two tensors, element by element, with the clamp behind.

Add, Sub: y = round(((a − z_a)·m_a ± (b − z_b)·m_b)·2^-k) + z_y, with m_a·2^-k for s_a / s_y. Mul: y =
round((a − z_a)(b − z_b)·m·2^-k) + z_y, with m·2^-k for s_a·s_b / s_y. Div: y = round((a − z_a)·m / ((b − z_b)·2^k)) + z_y, with
m·2^-k for s_a / (s_b·s_y), one rounding; by zero the largest or smallest integer by the sign of a, and z_y where a is 0 too. Min,
Max: each operand is brought to the encoding of the output, then integers are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.uses import constant_array
from qdq_passes.npu.program.edit import Attributes, Replacement
from qdq_passes.npu.program.operands import (
    MOST_OF_ADDENDS,
    NotComputable,
    as_float32,
    encoded,
    has_wide,
    no_tail,
    source,
    step,
    target,
    zero,
)
from qdq_passes.npu.program.operator import AttributeTypes, OneOperator, Plan, ProgramOperator, Row, arithmetic
from qdq_passes.npu.program.scaling import multiplier, one_multiplier, output_attributes
from qdq_passes.npu.program.tails import tail_of
from qdq_passes.npu.units.units import Operand, Unit
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.requantize import Addition, addition, real_multiplier

_ONE_MULTIPLIER: AttributeTypes = {
    "a_zero_point": int, "b_zero_point": int, "multiplier": int, "shift": int, "scale": float,
}  # fmt: skip


class Elementwise(OneOperator):
    """What is computed of two operands; subclasses say their `scaling`."""

    #: Whether the sum is held by an accumulator.
    sums: ClassVar[bool] = False

    def accepts(self, unit: Unit) -> bool:
        """An operator of two values with one float number, stored as such, is a function of one value."""
        return super().accepts(unit) and not reads_a_number(unit)

    def plan(self, unit: Unit, arithmetic: Arithmetic) -> Plan:
        """``a, b → ai.qdqtool::Add``."""
        a, b, output = source(unit, 0), source(unit, 1), target(unit)
        scaling = self.scaling(step(encoded(a)), step(encoded(b)), step(output), arithmetic)
        tail = tail_of(unit.tail, output)
        attributes = {
            **output_attributes(output, arithmetic, tail, sums=self.sums, wide=has_wide(a, b)),
            "a_zero_point": zero(encoded(a)),
            "b_zero_point": zero(encoded(b)),
            **scaling,
        }
        return Plan(name=self.rows[0].name, inputs=(a, b), attributes=attributes, output=output)

    def scaling(self, a: float, b: float, y: float, arithmetic: Arithmetic) -> Attributes:
        """What brings operands of scales ``a`` and ``b`` to that of the output; in the mode ``float`` their scales.

        Raises:
            NotComputable: the arithmetic has no such multiplier.
        """
        raise NotImplementedError


class Add(Elementwise):
    """A sum."""

    family = "elementwise"
    takes = ("Add",)
    rows = (
        arithmetic(
            "Add", (2, 2), a_zero_point=int, b_zero_point=int, a_multiplier=int, b_multiplier=int, shift=int, a_scale=float,
            b_scale=float,
        ),
    )  # fmt: skip
    operations: ClassVar[Mapping[str, int]] = {"Add": 1, "Sub": 1}
    #: Of the second operand.
    sign: ClassVar[int] = 1

    def scaling(self, a: float, b: float, y: float, arithmetic: Arithmetic) -> Attributes:
        """A multiplier for each operand, at one shift."""
        if arithmetic.requantize == "float":
            as_float32("scale", a, b, most=MOST_OF_ADDENDS)
            return {"a_scale": a, "b_scale": self.sign * b}
        found = sum_of(a / y, self.sign * b / y, arithmetic)
        return {"a_multiplier": found.first, "b_multiplier": found.second, "shift": found.shift}


class Sub(Add):
    """A difference: an Add whose second multiplier is negative."""

    takes = ("Sub",)
    sign = -1


class Mul(Elementwise):
    """A product."""

    family = "elementwise"
    takes = ("Mul",)
    rows = (arithmetic("Mul", (2, 2), **_ONE_MULTIPLIER),)
    operations: ClassVar[Mapping[str, int]] = {"Mul": 1}
    sums = True
    #: What `unit` is of the scales.
    word: ClassVar[str] = "product"

    def unit(self, a: float, b: float) -> float:
        """The value of 1, of operands of scales ``a`` and ``b``."""
        return a * b

    def scaling(self, a: float, b: float, y: float, arithmetic: Arithmetic) -> Attributes:
        """One multiplier."""
        unit = self.unit(a, b)
        if arithmetic.requantize == "float":
            as_float32(f"{self.word} of scales", unit)
            return {"scale": unit}
        return one_multiplier(multiplier(real_multiplier(unit, y), arithmetic))  # type: ignore[arg-type]


class Div(Mul):
    """A quotient."""

    takes = ("Div",)
    rows = (arithmetic("Div", (2, 2), **_ONE_MULTIPLIER),)
    operations: ClassVar[Mapping[str, int]] = {"Div": 1}
    sums, word = False, "ratio"

    def unit(self, a: float, b: float) -> float:
        """The value of 1."""
        return a / b


@dataclass(frozen=True, eq=False, kw_only=True)
class Extreme:
    """The largest or smallest of several tensors, element by element.

    Args:
        data: the tensors.
        output: encoding of the output.
    """

    data: tuple[Operand, ...]
    output: Encoding


class MinMax(ProgramOperator[Extreme]):
    """The smallest or largest of tensors."""

    family = "elementwise"
    takes = ("Min", "Max")
    rows = (Row("Max", (2, 2)), Row("Min", (2, 2)))
    standard = ("Identity",)
    operations: ClassVar[Mapping[str, int]] = {"Max": 1, "Min": 1}

    def accepts(self, unit: Unit) -> bool:
        """A Min or Max with one float number, stored as such, is a function of one value."""
        return super().accepts(unit) and not reads_a_number(unit)

    def plan(self, unit: Unit, arithmetic: Arithmetic) -> Extreme:
        """Any number of tensors."""
        data = tuple(source(unit, index) for index in range(len(unit.operands)))
        output = target(unit)
        no_tail(unit)
        return Extreme(data=data, output=output)

    def write(self, plan: Extreme, into: Replacement) -> ir.Value:
        """``a → Lookup or Requantize; b → …; ai.qdqtool::Max``, two at a time; one alone only changes its encoding."""
        values = [into.requantized(into.integers(each), encoded(each), plan.output) for each in plan.data]
        found, dtype = values[0], plan.output.dtype
        for number, value in enumerate(values[1:], start=2):
            found = into.node(into.unit.core.op_type, [found, value], dtype=dtype, helps=number < len(values))
        return found if len(values) > 1 else into.node("::Identity", [found], dtype=dtype, like=found)


def reads_a_number(unit: Unit) -> bool:
    """Whether one of two operands is one float number, stored as such."""
    floats = [operand.value for operand in unit.operands if operand.kind == "float" and operand.constant]
    return any((array := constant_array(value)) is not None and array.size == 1 for value in floats)


def sum_of(first: float, second: float, arithmetic: Arithmetic) -> Addition:
    """`addition`.

    Raises:
        NotComputable: the arithmetic has none.
    """
    found = addition(first, second, arithmetic)
    if isinstance(found, str):
        raise NotComputable(found)
    return found

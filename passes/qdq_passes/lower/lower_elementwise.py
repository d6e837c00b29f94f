"""lower-elementwise

Add, Sub: y = round(((a − z_a)·m_a ± (b − z_b)·m_b)·2^-k) + z_y, with m_a·2^-k for s_a / s_y. Mul: y =
round((a − z_a)(b − z_b)·m·2^-k) + z_y, with m·2^-k for s_a·s_b / s_y. Div: y = round((a − z_a)·m / ((b − z_b)·2^k)) + z_y, with
m·2^-k for s_a / (s_b·s_y). Min, Max: of integers in the encoding of the output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from qdq_passes.analysis.plans.elementwise import Elementwise, elementwise
from qdq_passes.analysis.plans.operands import step, zero
from qdq_passes.analysis.plans.quotients import extreme, quotient
from qdq_passes.core.base import Change
from qdq_passes.core.program_edit import Replacement, attributes_of
from qdq_passes.graph.uses import is_standard
from qdq_passes.lower._lowering import Attributes, Lowering, output_attributes
from qdq_passes.npu.units.units import Unit
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import is_wide


@dataclass(frozen=True)
class LowerElementwise(Lowering):
    """Turn Add, Sub, Mul and Div between QDQ pairs, with the clamp behind them, into sums, products and quotients of integers.

    Graph: ``DQ(a), DQ(b) → Add → Relu → Q`` → ``a, b → ai.qdqtool::Add``; a Sub is an Add whose second multiplier is negative.
    ``DQ(a), DQ(b) → Max → Q`` → ``a → Lookup or Requantize; b → …; ai.qdqtool::Max``, without these where the encodings are one;
    Min likewise, and more than two inputs two at a time.
    Requires: assign-targets.
    Keeps: inputs, outputs and all names; numerics become the target's.
    Skips: what its annotation leaves to the CPU; what has no kernel, with the reason.
    """

    lowers: ClassVar[str] = "elementwise"

    def lower(self, unit: Unit, arithmetic: Arithmetic, into: Replacement) -> Change:
        """One operator."""
        if is_standard(unit.core, "Div"):
            return _quotient(unit, arithmetic, into)
        if is_standard(unit.core, "Min", "Max"):
            return _extreme(unit, arithmetic, into)
        plan = elementwise(unit, arithmetic)
        a, b = plan.a.encoding, plan.b.encoding
        assert a is not None
        assert b is not None
        attributes: Attributes = {
            **output_attributes(
                plan.output,
                plan.tail,
                arithmetic,
                sums=unit.core.op_type == "Mul",
                wide=is_wide(a.dtype) or is_wide(b.dtype),
            ),
            "a_zero_point": zero(a),
            "b_zero_point": zero(b),
            **_multipliers(plan, step(a), step(b), is_product=unit.core.op_type == "Mul"),
        }
        return into.done(
            into.node(
                "Mul" if unit.core.op_type == "Mul" else "Add",
                [into.integers(plan.a), into.integers(plan.b)],
                dtype=plan.output.dtype,
                attributes=attributes_of(attributes),
            )
        )


def _quotient(unit: Unit, arithmetic: Arithmetic, into: Replacement) -> Change:
    plan = quotient(unit, arithmetic)
    assert plan.a.encoding is not None
    assert plan.b.encoding is not None
    attributes: Attributes = {
        **output_attributes(plan.output, plan.tail, arithmetic, sums=False),
        "a_zero_point": zero(plan.a.encoding),
        "b_zero_point": zero(plan.b.encoding),
    }
    if plan.multiplier is None:
        attributes["scale"] = plan.scale
    else:
        attributes |= {"multiplier": int(plan.multiplier.value[0]), "shift": int(plan.multiplier.shift[0])}
    inputs = [into.integers(plan.a), into.integers(plan.b)]
    return into.done(into.node("Div", inputs, dtype=plan.output.dtype, attributes=attributes_of(attributes)))


def _extreme(unit: Unit, arithmetic: Arithmetic, into: Replacement) -> Change:
    """Two at a time; one alone only changes its encoding."""
    plan = extreme(unit, arithmetic)
    values: list[ir.Value] = []
    for operand in plan.data:
        assert operand.encoding is not None
        values.append(into.requantized(into.integers(operand), operand.encoding, plan.output, arithmetic))
    found, dtype = values[0], plan.output.dtype
    for number, value in enumerate(values[1:], start=2):
        found = into.node(unit.core.op_type, [found, value], dtype=dtype, helps=number < len(values))
    return into.done(found if len(values) > 1 else into.node("::Identity", [found], dtype=dtype, like=found))


def _multipliers(plan: Elementwise, a: float, b: float, *, is_product: bool) -> Attributes:
    """What brings both sides to the scale of the output; in the mode ``float`` their scales."""
    if plan.sum is not None:
        return {"a_multiplier": plan.sum.first, "b_multiplier": plan.sum.second, "shift": plan.sum.shift}
    if plan.product is not None:
        return {"multiplier": int(plan.product.value[0]), "shift": int(plan.product.shift[0])}
    return {"scale": a * b} if is_product else {"a_scale": a, "b_scale": plan.sign * b}

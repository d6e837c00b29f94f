"""lower-elementwise

Add, Sub: y = round(((a − z_a)·m_a ± (b − z_b)·m_b)·2^-k) + z_y, with m_a·2^-k for s_a / s_y. Mul: y =
round((a − z_a)(b − z_b)·m·2^-k) + z_y, with m·2^-k for s_a·s_b / s_y."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qdq_passes.analysis.plans.elementwise import Elementwise, elementwise
from qdq_passes.analysis.plans.operands import step, zero
from qdq_passes.analysis.units import Unit
from qdq_passes.core.base import Change
from qdq_passes.core.program_edit import Replacement, attributes_of
from qdq_passes.lower._lowering import Attributes, Lowering, output_attributes
from qdq_passes.numerics.arithmetic import Arithmetic


@dataclass(frozen=True)
class LowerElementwise(Lowering):
    """Turn Add, Sub and Mul between QDQ pairs, with the clamp behind them, into sums and products of integers.

    Graph: ``DQ(a), DQ(b) → Add → Relu → Q`` → ``a, b → ai.qdqtool::Add``; a Sub is an Add whose second multiplier is negative.
    Requires: assign-targets.
    Keeps: inputs, outputs and all names; numerics become the target's.
    Skips: what its annotation leaves to the CPU; what has no kernel, with the reason.
    """

    lowers: ClassVar[str] = "elementwise"

    def lower(self, unit: Unit, arithmetic: Arithmetic, into: Replacement) -> Change:
        """One sum or product."""
        plan = elementwise(unit, arithmetic)
        a, b = plan.a.encoding, plan.b.encoding
        assert a is not None
        assert b is not None
        attributes: Attributes = {
            **output_attributes(plan.output, plan.tail, arithmetic, sums=unit.core.op_type == "Mul"),
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


def _multipliers(plan: Elementwise, a: float, b: float, *, is_product: bool) -> Attributes:
    """What brings both sides to the scale of the output; in the mode ``float`` their scales."""
    if plan.sum is not None:
        return {"a_multiplier": plan.sum.first, "b_multiplier": plan.sum.second, "shift": plan.sum.shift}
    if plan.product is not None:
        return {"multiplier": int(plan.product.value[0]), "shift": int(plan.product.shift[0])}
    return {"scale": a * b} if is_product else {"a_scale": a, "b_scale": plan.sign * b}

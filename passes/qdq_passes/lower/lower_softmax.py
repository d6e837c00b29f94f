"""lower-softmax

y = round(m·E[d] / (ΣE·2^k)) + z_y, d = max(x) − x, E[d] = round(exp(−d·s_x)·2^30), with m·2^-k for 1 / s_y."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qdq_passes.analysis.plans.softmax import softmax
from qdq_passes.core.base import Change
from qdq_passes.core.program_edit import Replacement, attributes_of
from qdq_passes.lower._lowering import Attributes, Lowering, output_attributes
from qdq_passes.npu.units.units import Unit
from qdq_passes.numerics.arithmetic import Arithmetic


@dataclass(frozen=True)
class LowerSoftmax(Lowering):
    """Turn Softmax between QDQ pairs into a table of exponentials and one integer division.

    Graph: ``DQ(x) → Softmax → Q`` → ``x, table [256] → ai.qdqtool::Softmax``; of 16 bits the table ends where it becomes 0. It is
    a new constant ``<node>_table``.
    Requires: assign-targets.
    Keeps: inputs, outputs and all names; numerics become the target's.
    Skips: what its annotation leaves to the CPU; what has no kernel, with the reason.
    """

    lowers: ClassVar[str] = "softmax"

    def lower(self, unit: Unit, arithmetic: Arithmetic, into: Replacement) -> Change:
        """One Softmax."""
        plan = softmax(unit, arithmetic)
        attributes: Attributes = {
            **output_attributes(plan.output, plan.tail, arithmetic, mode="integer", sums=False),
            "axis": plan.axis,
            "multiplier": int(plan.multiplier.value[0]),
            "shift": int(plan.multiplier.shift[0]),
        }
        inputs = [into.integers(plan.x), into.constant("table", plan.table)]
        return into.done(into.node("Softmax", inputs, dtype=plan.output.dtype, attributes=attributes_of(attributes)))

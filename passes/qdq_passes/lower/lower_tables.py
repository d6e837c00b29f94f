"""lower-tables

table[i] = Q_y(f((q_i − z_x)·s_x)), q_i the smallest integer plus i; f in float32, and of 16 bits as the target says
(`functions.table`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qdq_passes.analysis.plans.operands import same
from qdq_passes.analysis.plans.tables import lookup
from qdq_passes.core.base import Change
from qdq_passes.core.program_edit import Replacement
from qdq_passes.lower._lowering import Lowering
from qdq_passes.npu.units.units import Unit
from qdq_passes.numerics.arithmetic import Arithmetic


@dataclass(frozen=True)
class LowerTables(Lowering):
    """Turn functions of one value between QDQ pairs, and what only changes encodings, into tables of 256 or 65536 integers.

    Graph: ``DQ(x) → Sigmoid → Q`` → ``x, table [256] → ai.qdqtool::Lookup``, with [65536] where x has 16 bits; ``DQ(x) → Q``
    likewise, and ``x → ai.qdqtool::Requantize`` where x or the output has 16 bits; ``DQ(x) → PRelu(slope [C, 1, 1]) → Q`` → ``x,
    table [C, 256] → ai.qdqtool::Lookup(axis = 1)``. The table is a new constant ``<node>_table``.
    Requires: assign-targets.
    Keeps: inputs, outputs and all names; numerics become the target's.
    Skips: what its annotation leaves to the CPU; what has no kernel, with the reason.
    """

    lowers: ClassVar[str] = "tables"

    def lower(self, unit: Unit, arithmetic: Arithmetic, into: Replacement) -> Change:
        """One function."""
        plan = lookup(unit, arithmetic)
        x, encoding = into.integers(plan.x), plan.x.encoding
        assert encoding is not None
        if plan.table is not None:
            return into.done(into.table(x, plan.table, plan.axis, helps=False))
        if same(encoding, plan.output):
            return into.done(into.node("::Identity", [x], dtype=plan.output.dtype, like=x))
        return into.done(into.requantized(x, encoding, plan.output, arithmetic, helps=False))

"""What a lint is."""

from __future__ import annotations

from dataclasses import dataclass

from qdq_passes.npu.traps.rule import Rule

from qdqtool.lints.facts import Facts


@dataclass(frozen=True)
class Lint(Rule[Facts]):
    """Base class of all rules. Fields are thresholds. The id follows from the class: ``DeadSlice`` is ``dead-slice``."""

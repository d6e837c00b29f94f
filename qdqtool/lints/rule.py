"""What a lint is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from qdq_passes.core.findings import Finding, Level
from qdq_passes.core.names import kebab_case
from qdq_passes.npu.traps.rule import Trap

from qdqtool.lints.context import LintContext


@dataclass(frozen=True)
class Lint:
    """Base class of all rules. Fields are thresholds. The id follows from the class: ``DeadSlice`` is ``dead-slice``."""

    level: ClassVar[Level] = "warning"

    @classmethod
    def name(cls) -> str:
        """The id."""
        return kebab_case(cls.__name__)

    def find(self, context: LintContext) -> Iterator[Trap]:
        """Yield every place, in the order of the graph."""
        raise NotImplementedError(f"{type(self).__name__} has no find")

    def findings(self, context: LintContext) -> list[Finding]:
        """Every place as a finding; each once."""
        found = dict.fromkeys(self.find(context))
        return [Finding(self.level, self.name(), t.where, t.message, t.hint) for t in found]

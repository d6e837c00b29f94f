"""Move pairs across operators, up or down, where the arithmetic stays the same."""

from __future__ import annotations

from typing import ClassVar

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.options import option
from qdqtool.verbs.editing import Edit
from qdqtool.verbs.pairs import All, PairEditing, Step, selected, wrong


@dataclass(frozen=True, kw_only=True)
class Move(PairEditing, All, Edit):
    """Move pairs across data movement, Relu and Concat, where the arithmetic stays identical."""

    leads: ClassVar[tuple[type, ...]] = (
        PairEditing,
        All,
    )

    down: bool = option(False, "Behind the operators that read the value.")
    up: bool = option(False, "Before the operator that writes the value.")
    count: int | None = option(
        None, "Operators to cross; as many as it can by default.", value="N", flags=("--steps",), least=1
    )
    allow_approximate: bool = option(False, "Also where numbers change; each such move says so.")

    def steps(self) -> list[Step]:
        """The pass."""
        if self.up == self.down:
            raise wrong("move", "give either --up or --down")
        options = selected(self, "move", everything=self.everything)
        options["direction"] = "up" if self.up else "down"
        options |= {"steps": self.count} if self.count is not None else {}
        options |= {"allow_approximate": True} if self.allow_approximate else {}
        return [("move-qdq", options)]

"""Give every reader of a value a pair of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from qdqtool.options import option
from qdqtool.verbs.editing import Edit
from qdqtool.verbs.pairs import All, PairEditing, Step, selected


@dataclass(frozen=True, kw_only=True)
class Dedicate(PairEditing, All, Edit):
    """Give every reader of a value a pair of its own."""

    leads: ClassVar[tuple[type, ...]] = (
        PairEditing,
        All,
    )

    parameters: Literal["own", "shared"] = option(
        "own", "Scale and zero point of its own for every pair, or the same for all.", shown=True
    )

    def steps(self) -> list[Step]:
        """The pass."""
        chosen = selected(self, "dedicate", everything=self.everything)
        return [("dedicate-qdq", chosen | ({"parameters": self.parameters} if self.parameters != "own" else {}))]

"""Make one pair of several pairs on the same value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qdqtool.verbs.editing import Edit
from qdqtool.verbs.pairs import All, PairEditing, Step, selected


@dataclass(frozen=True, kw_only=True)
class Share(PairEditing, All, Edit):
    """Make one pair of several pairs on the same value."""

    leads: ClassVar[tuple[type, ...]] = (
        PairEditing,
        All,
    )

    def steps(self) -> list[Step]:
        """The pass."""
        return [("share-qdq", selected(self, "share", everything=self.everything))]

"""How many pairs a value has: `share` one, `dedicate` one for each reader, `fold` none that does nothing new."""

from __future__ import annotations

from typing import ClassVar, Literal

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.options import option
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


@dataclass(frozen=True, kw_only=True)
class Fold(PairEditing, Edit):
    """Fold pairs that do nothing new: doubled ones cancel, duplicates merge, float weights under a pair become integers."""

    leads: ClassVar[tuple[type, ...]] = (PairEditing,)

    keep_float_weights: bool = option(False, "Leave float weights under their pair.")

    def steps(self) -> list[Step]:
        """The passes."""
        chosen = self.optionally_selected()
        return [*([] if self.keep_float_weights else [("fold-weight-qdq", chosen)]), ("fold-qdq", chosen)]


VERBS = {"share": Share, "dedicate": Dedicate, "fold": Fold}

"""Fold pairs that do nothing new: doubled ones cancel, duplicates merge, float weights under a pair become integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qdqtool.options import option
from qdqtool.verbs.editing import Edit
from qdqtool.verbs.pairs import PairEditing, Step


@dataclass(frozen=True, kw_only=True)
class Fold(PairEditing, Edit):
    """Fold pairs that do nothing new: doubled ones cancel, duplicates merge, float weights under a pair become integers."""

    leads: ClassVar[tuple[type, ...]] = (PairEditing,)

    keep_float_weights: bool = option(False, "Leave float weights under their pair.")

    def steps(self) -> list[Step]:
        """The passes."""
        chosen = self.optionally_selected()
        return [*([] if self.keep_float_weights else [("fold-weight-qdq", chosen)]), ("fold-qdq", chosen)]

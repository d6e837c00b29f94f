"""The verb `match`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.options import metadata_of
from qdqtool.verbs.groups import MODEL, AllowsEmpty, Path
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    from qdq_passes.select.selectors import Selection


@dataclass(frozen=True, kw_only=True)
class Match(AllowsEmpty, Verb["Selection"]):
    """Show the nodes and tensors of MODEL that selectors hit, before they are used anywhere."""

    model: Path = field(kw_only=False, metadata=MODEL)
    selectors: Sequence[str] = field(metadata=metadata_of("The selectors.", kind="argument", value="SEL..."))

    def run(self) -> Selection:
        """What is hit."""
        from qdq_passes.select.selectors import Selector, select

        from qdqtool.io.models.load import load

        return select(load(self.model), Selector.of(*self.selectors), allow_empty=self.allow_empty)


match = function_of(Match)

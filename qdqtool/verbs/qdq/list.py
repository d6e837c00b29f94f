"""The verb `qdq list`."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.verbs.groups import MODEL, AllowsEmpty, Path, Selected
from qdqtool.verbs.verb import Verb

if TYPE_CHECKING:
    from qdq_passes.integers.look.quantized_table import Row


@dataclass(frozen=True, kw_only=True)
class List(Selected, AllowsEmpty, Verb["list[Row]"]):
    """List everything quantized in MODEL: pairs, stored integers, integer operators; encoding, position, nodes."""

    model: Path = field(kw_only=False, metadata=MODEL)

    def run(self) -> list[Row]:
        """The rows, of what is selected."""
        from qdq_passes.integers.look.quantized_table import qdq_rows
        from qdq_passes.select.selectors import Selector, select

        from qdqtool.io.models.load import load

        graph = load(self.model)
        rows = qdq_rows(graph)
        if not self.select:
            return rows
        hit = select(graph, Selector.of(*self.select), allow_empty=self.allow_empty)
        nodes, values = set(hit.nodes), set(hit.values)
        return [row for row in rows if row.is_hit(nodes, values, hit.named)]

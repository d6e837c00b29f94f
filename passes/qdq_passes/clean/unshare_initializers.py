"""unshare-initializers"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.graph.edit import Namer, own_initializer
from qdq_passes.graph.uses import all_graphs, readers
from qdq_passes.select.selectors import ALL, Selector, select_values


@dataclass(frozen=True)
class UnshareInitializers(Pass):
    """Give every reader of a shared initializer a copy of its own, so that editing one leaves the others alone.

    Graph: ``s → {Q1, Q2}`` → ``s → Q1; s_1 → Q2``. The data is shared in memory until it is edited.
    Requires: nothing.
    Keeps: inputs, outputs and their names; numerics bit-exact.
    Skips: initializers that are graph inputs or outputs; those larger than ``max-bytes``.

    Args:
        select: the initializers.
        max_bytes: of the largest that is copied.
        types: operator types whose nodes alone get copies, of what others read too: gains, which NPUs want in a type of their
            own.
    """

    keeps: ClassVar[Keeps] = EXACT
    select: Selector = ALL
    max_bytes: int = 2**20
    types: tuple[str, ...] = ()

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Copy for every reader after the first."""
        wanted = select_values(model, self.select)
        namer = Namer(model)
        for graph in all_graphs(model):
            for value in list(graph.initializers.values()):
                uses = self._served(readers(value))
                if value not in wanted or len(uses) < 2 or value.const_value is None:
                    continue
                if value.is_graph_input() or value.is_graph_output():
                    yield skip(value, "is a graph input or output")
                elif value.const_value.nbytes > self.max_bytes:
                    yield skip(value, f"has {value.const_value.nbytes} bytes, more than max-bytes={self.max_bytes}")
                else:
                    for node, index in uses[1:]:
                        copy = own_initializer(node, index, namer)
                        yield Change("insert", copy.name or "", f"own copy of {value.name} for {node.name}")

    def _served(self, uses: list[tuple[ir.Node, int]]) -> list[tuple[ir.Node, int]]:
        """The readers: the first keeps the initializer, the others get a copy; with ``types`` those of other types keep it."""
        others = [use for use in uses if use[0].op_type not in self.types]
        if not self.types or not others:
            return [] if self.types else uses
        return [others[0], *(use for use in uses if use[0].op_type in self.types)]

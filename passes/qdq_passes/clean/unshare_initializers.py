"""unshare-initializers"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.graph.edit import Namer, own_initializer
from qdq_passes.graph.uses import all_graphs, op_type_of, readers
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
        max_bytes: size of the largest that is copied.
        per_operator: one copy for all readers of an operator type: a number that is the gain of a norm and a factor elsewhere may
            then be stored in two types.
    """

    keeps: ClassVar[Keeps] = EXACT
    select: Selector = ALL
    max_bytes: int = 2**20
    per_operator: bool = False

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Copy for every reader after the first."""
        wanted = select_values(model, self.select)
        namer = Namer(model)
        for graph in all_graphs(model):
            for value in list(graph.initializers.values()):
                groups = _groups(value, self.per_operator)
                if value not in wanted or len(groups) < 2 or value.const_value is None:
                    continue
                if value.is_graph_input() or value.is_graph_output():
                    yield skip(value, "is a graph input or output")
                elif value.const_value.nbytes > self.max_bytes:
                    yield skip(value, f"has {value.const_value.nbytes} bytes, more than max-bytes={self.max_bytes}")
                else:
                    for (node, index), *others in groups[1:]:
                        copy = own_initializer(node, index, namer)
                        for other, at in others:
                            other.replace_input_with(at, copy)
                        yield Change("insert", copy.name or "", f"own copy of {value.name} for {node.name}")


def _groups(value: ir.Value, per_operator: bool) -> list[list[tuple[ir.Node, int]]]:
    """The readers of ``value`` that share one initializer, the first of them keeping it."""
    uses = readers(value)
    if not per_operator:
        return [[use] for use in uses]
    found: dict[str, list[tuple[ir.Node, int]]] = {}
    for use in uses:
        found.setdefault(op_type_of(use[0]), []).append(use)
    return list(found.values())

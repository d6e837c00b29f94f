"""Surgery around attentions: what nobody reads any more goes, chains and graph inputs too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from qdq_passes.analysis.reach import values_read
from qdq_passes.core.base import Change
from qdq_passes.core.edit import drop_unread, remove


def drop_chains(values: Iterable[ir.Value | None], because: str = "is no longer read") -> Iterator[Change]:
    """Remove the makers of those of ``values`` that nobody reads, and theirs in turn; graph inputs stay."""
    stack = [value for value in values if value is not None]
    while stack:
        value = stack.pop()
        producer = value.producer()
        if producer is None or producer.graph is None:
            yield from drop_unread([value])
            continue
        if any(output.uses() or output.is_graph_output() for output in producer.outputs):
            continue
        stack += values_read(producer)
        yield from remove(producer, because)


def drop_input(model: ir.Model, value: ir.Value | None) -> Iterator[Change]:
    """Take ``value`` out of the graph's inputs if nobody reads it."""
    if value is not None and value.is_graph_input() and not value.uses() and not value.is_graph_output():
        model.graph.inputs.remove(value)
        yield Change("remove", value.name or "", "input is no longer read")

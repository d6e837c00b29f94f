"""A timeline of the estimate in Chrome's trace format, for `chrome://tracing` and https://ui.perfetto.dev.

One row a resource: a node takes as long as its slowest, and the next one begins behind it. Everything in it is an
estimate, and every row says so. Format: "Trace Event Format" of the Chromium project (events ``X``, ``i`` and ``M``, µs)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from qdqtool.npu.estimated import RESOURCES, Estimate, NodeEstimate, PartitionEstimate

#: Rows: what a partition costs around its nodes, the nodes, what each resource is busy with, what runs elsewhere.
HOST, NODES, CPU = "dispatch and transfers", "nodes", "CPU (no estimate)"
ROWS = (HOST, NODES, *RESOURCES.values(), CPU)


def trace(found: Estimate) -> dict[str, Any]:
    """The timeline of ``found``, JSON-ready: one inference, partitions in the order in which they run."""
    title = f"ESTIMATE for {found.target}, not a measurement"
    events: list[dict[str, Any]] = [_named("process_name", 0, title)]
    events += [_named("thread_name", row, f"estimate: {name}") for row, name in enumerate(ROWS)]
    events += [{**_named("thread_sort_index", row, ""), "args": {"sort_index": row}} for row in range(len(ROWS))]
    events += _events(found)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {"what": title, "estimated_us": found.us, "assumptions": [a.to_json() for a in found.assumptions]},
    }


def _named(what: str, row: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": 1, "tid": row, "args": {"name": name}}


def _events(found: Estimate) -> Iterator[dict[str, Any]]:
    """Partitions whole, at their first node in the graph; nodes of the CPU as instants."""
    clock = 0.0
    parts = {part.id: part for part in found.partitions}
    for node in found.nodes:
        if node.partition is None:
            row = ROWS.index(CPU)
            yield {"name": node.name, "ph": "i", "s": "t", "pid": 1, "tid": row, "ts": clock, "args": _told(node)}
        elif node.partition in parts:
            part = parts.pop(node.partition)
            yield from _part(part, [n for n in found.nodes if n.partition == part.id], clock)
            clock += part.us or 0.0


def _part(part: PartitionEstimate, nodes: Sequence[NodeEstimate], clock: float) -> Iterator[dict[str, Any]]:
    for name, us in (("dispatch", part.dispatch_us), ("transfer in", part.in_us)):
        yield _span(f"partition {part.id}: {name}", HOST, clock, us, {"partition": part.id})
        clock += us
    for node in nodes:
        us = node.us or 0.0
        yield _span(node.name, NODES, clock, us, _told(node))
        for resource, busy in node.resource_us.items():
            if busy:
                yield _span(node.name, RESOURCES[resource], clock, busy, {"op": node.op})
        clock += us
    yield _span(f"partition {part.id}: transfer out", HOST, clock, part.out_us, {"partition": part.id})


def _span(name: str, row: str, start: float, us: float, told: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name, "cat": "estimate", "ph": "X", "pid": 1, "tid": ROWS.index(row), "ts": start, "dur": us,
        "args": {"estimate": True, **told},
    }  # fmt: skip


def _told(node: NodeEstimate) -> dict[str, Any]:
    return {key: value for key, value in node.to_json().items() if key != "name" and value not in (None, "")}

"""A timeline of the estimate in Chrome's trace format, for `chrome://tracing` and https://ui.perfetto.dev.

One row a resource: a node takes as long as its slowest, and the next one begins behind it. By a named chip, nodes take what
its profile says of them, and what a run costs once comes first. Everything in it is an estimate, and every row says so.
Format: "Trace Event Format" of the Chromium project (events ``X``, ``i`` and ``M``, µs)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from qdqtool.npu.estimated import RESOURCES, Estimate, NodeEstimate, PartitionEstimate

#: Rows: what a partition costs around its nodes, the nodes, what each resource is busy with, what runs elsewhere.
HOST, NODES, CPU = "dispatch and transfers", "nodes", "CPU (no estimate)"
#: What a run costs once on a chip, and what its compiler does of no node that is here.
ONCE = "once a run"
ROWS = (HOST, NODES, *RESOURCES.values(), CPU)


def trace(found: Estimate, chip: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The timeline of ``found``, JSON-ready: one inference, partitions in the order in which they run.

    Args:
        found: by the target's numbers, and what runs where.
        chip: what `estimate` says of the same graph on a chip: the times are those, and their 80 % interval is said.
    """
    if chip is not None:
        return _by_chip(found, chip)
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


def _by_chip(found: Estimate, chip: Mapping[str, Any]) -> dict[str, Any]:
    title = f"ESTIMATE for {chip['chip']} with {chip['stack']}, {chip['precision']}, not a measurement"
    told = {node["name"]: node for node in chip["nodes"]}
    rows = (HOST, NODES, CPU)
    events: list[dict[str, Any]] = [_named("process_name", 0, title)]
    events += [_named("thread_name", ROWS.index(row), f"estimate: {row.partition(' (')[0]}") for row in rows]
    spans = []
    for node in found.nodes:
        own = told.get(node.name)
        if own is not None:
            plain = replace(node, cycles={}, us=1000 * own["ms"], bound_by=own["resource"], utilisation=None, note="")
            spans.append((node.name, CPU if node.partition is None else NODES, plain.us or 0.0, _told(plain)))
    once = max(1000 * chip["ms"] - sum(us for _, _, us, _ in spans), 0.0)
    clock = 0.0
    for name, row, us, words in ((ONCE, HOST, once, {}), *spans):
        ends = {f"{end}_us": us * chip[end] / chip["ms"] for end in ("low", "high")}
        events.append(_span(name, row, clock, us, {**words, **ends}))
        clock += us
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "what": title, "estimated_us": 1000 * chip["ms"], "low_us": 1000 * chip["low"], "high_us": 1000 * chip["high"],
            "chip": {key: value for key, value in chip.items() if key != "nodes"},
        },
    }  # fmt: skip


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

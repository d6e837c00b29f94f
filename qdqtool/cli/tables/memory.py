"""A memory plan as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqtool.cli.render import megabytes, plural, say, table

if TYPE_CHECKING:
    from qdqtool.npu.memory import MemoryPlan


def show_memory(plan: MemoryPlan) -> None:
    """Each graph, all together, and in how many parts it fits."""
    rows = [
        (
            graph.graph, megabytes(graph.weight_bytes), megabytes(graph.kv_bytes), megabytes(graph.activations),
            megabytes(graph.bytes), graph.parts,
        )
        for graph in plan.graphs
    ]  # fmt: skip
    table(("graph on the NPU", "weights", "KV cache", "activations", "in all", "parts"), rows)
    shared = plan.unshared_weight_bytes - plan.weight_bytes
    counted = f", {megabytes(shared)} of weights shared and counted once" if shared else ""
    limit = f"{plan.target} addresses {megabytes(plan.addressable_bytes)} ({plan.confidence})"
    say(f"{limit}; together {megabytes(plan.bytes)}{counted}")
    if plan.fits:
        say(f"{plural(len(plan.graphs), 'graph')} fit{'s' if len(plan.graphs) == 1 else ''}: no parts are needed")
    for note in plan.notes:
        say(note)

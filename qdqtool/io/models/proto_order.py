"""Order: nodes of a graph must have one (no cycle), calls of local functions too (no recursion)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from qdq_passes.errors import ModelError

Call = tuple[str, str, str]


def check_order(nodes: Sequence[onnx.NodeProto], reads: list[list[str]], writes: list[list[str]]) -> None:
    """Raise `ModelError` when no order of ``nodes`` computes everything before it is read.

    A graph that is merely not sorted passes: `verify` reports it, and the pass ``sort`` repairs it.

    Args:
        nodes: nodes of one graph.
        reads: names each node (with its bodies) reads.
        writes: names each node writes.
    """
    pending: set[str] = set().union(*writes)
    for read, written in zip(reads, writes, strict=True):
        if not pending.isdisjoint(read):
            break
        pending.difference_update(written)
    else:
        return
    stuck = _stuck(reads, writes)
    if stuck:
        names = [f"{nodes[i].op_type} {nodes[i].name or nodes[i].output[0]!r}" for i in stuck]
        raise ModelError(
            f"the graph has a cycle through {len(stuck)} nodes", where=names[0], hint="cut it: no order can compute it"
        )


def _stuck(reads: list[list[str]], writes: list[list[str]]) -> list[int]:
    """Indices of the nodes on cycles, in file order, after everything that can be computed has been, from both ends."""
    writer = {name: index for index, written in enumerate(writes) for name in written}
    needs = [{writer[name] for name in read if name in writer} for read in reads]
    feeds: list[set[int]] = [set() for _ in reads]
    for index, sources in enumerate(needs):
        for source in sources:
            feeds[source].add(index)
    left = set(range(len(reads)))
    for before, after in ((needs, feeds), (feeds, needs)):
        counts = {index: len(before[index] & left) for index in left}
        ready = [index for index, count in counts.items() if count == 0]
        while ready:
            done = ready.pop()
            left.discard(done)
            for index in after[done] & left:
                counts[index] -= 1
                if counts[index] == 0:
                    ready.append(index)
    return sorted(left)


def check_call_order(calls: Mapping[Call, set[Call]]) -> None:
    """Raise `ModelError` when local functions call each other in a circle.

    Args:
        calls: for each function (domain, name, overload), the operators it uses.
    """
    keys = list(calls)
    names = [["::".join(filter(None, key))] for key in keys]
    reads = [["::".join(filter(None, call)) for call in sorted(calls[key]) if call in calls] for key in keys]
    stuck = _stuck(reads, names)
    if stuck:
        raise ModelError(
            "local functions call each other in a circle",
            where=names[stuck[0]][0],
            hint="functions may not be recursive",
        )

"""merge-transposes, written over graphsurgeon's graph.

Transpose by p gives ``y.shape[i] = x.shape[p[i]]``; by p and then q, ``z.shape[i] = y.shape[q[i]] = x.shape[p[q[i]]]``, so the
two are one Transpose by ``r[i] = p[q[i]]``. Without ``perm`` a Transpose reverses the axes."""

from __future__ import annotations

from collections.abc import Iterator

from qdq_passes.core.base import EXACT, Change, skip
from qdq_passes.surgeon.edit import SurgeonGraph, SurgeonNode, all_graphs, bypass, is_op, is_output, remove
from qdq_passes.surgeon.surgeon_pass import surgeon_pass


@surgeon_pass(keeps=EXACT, ops=("Transpose",))
def merge_transposes(graph: SurgeonGraph) -> Iterator[Change]:
    """Merge a Transpose into the Transpose before it; drop both when they undo each other.

    Graph: ``x → Transpose(p) → t → Transpose(q) → y`` → ``x → Transpose(p[q]) → y``, or ``x → y``; in bodies and functions too.
    Requires: a model that graphsurgeon can carry (no optional types, function overloads…: refused with the loss named).
    Keeps: inputs, outputs and their names; numerics bit-exact (elements only move). Scope and name of the second Transpose.
    Skips: when ``t`` has other readers or is a graph output; when both undo each other between a graph input, an initializer or
    an outer value and a graph output, or between two graph outputs.
    """
    for inner in all_graphs(graph):
        gone: list[SurgeonNode] = []
        for second in inner.nodes:
            first = _transpose_before(second, inner)
            if first is None:
                continue
            reason = _merge(inner, first, second)
            if reason is not None:
                yield skip(second.name or second.op, reason)
            else:
                gone += [node for node in (first, second) if not node.outputs]
        remove(inner, gone)


def _transpose_before(node: SurgeonNode, graph: SurgeonGraph) -> SurgeonNode | None:
    """The Transpose of the same graph whose output the Transpose ``node`` reads."""
    if not is_op(node, "Transpose") or not node.inputs:
        return None
    return next(
        (p for p in node.inputs[0].inputs if is_op(p, "Transpose") and any(p is other for other in graph.nodes)), None
    )


def _merge(graph: SurgeonGraph, first: SurgeonNode, second: SurgeonNode) -> str | None:
    """Merge ``first`` into ``second``, detaching what is not needed any more; or why not."""
    middle, source = second.inputs[0], first.inputs[0]
    if is_output(graph, middle):
        return f"{middle.name} between them is a graph output"
    if len(middle.outputs) > 1:
        return f"{middle.name} between them has other readers"
    perm = _composed(first.attrs.get("perm"), second.attrs.get("perm"))
    if perm is None or perm == list(range(len(perm))):
        reason = bypass(graph, second, source)
        if reason is not None:
            return f"they undo each other, but {reason}"
    else:
        second.inputs[0] = source
        second.attrs["perm"] = perm
    first.inputs.clear()
    first.outputs.clear()
    return None


def _composed(first: list[int] | None, second: list[int] | None) -> list[int] | None:
    """``r[i] = p[q[i]]``; None when both reverse the axes: they undo each other at any rank."""
    if first is None and second is None:
        return None
    rank = len(first if first is not None else second or [])
    reverse = list(range(rank))[::-1]
    p, q = first if first is not None else reverse, second if second is not None else reverse
    return [p[axis] for axis in q]


MergeTransposes = merge_transposes

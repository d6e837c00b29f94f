"""Where a decoder of a static length chooses the last of its tokens itself: an export that gives one row of logits."""

from __future__ import annotations

import onnx_ir as ir

from qdq_passes.graph.attributes import integer_of
from qdq_passes.graph.uses import constant_array, is_constant, is_standard

#: Axis of the sequence in hidden states [B, S, W].
AXIS = 1


def gives_one_row(logits: ir.Value, length: int) -> bool:
    """Whether ``logits`` are [B, V] or [B, 1, V] although a run has ``length`` > 1 tokens."""
    sizes = None if logits.shape is None else list(logits.shape)
    return length > 1 and sizes is not None and (len(sizes) == 2 or (len(sizes) == 3 and sizes[AXIS] == 1))


def last_rows(logits: ir.Value, length: int) -> list[ir.Node]:
    """The nodes, Gather or Slice of [B, S, …], that choose the last of ``length`` tokens on the way to ``logits``.

    Empty where tokens become one row in another way.
    """
    found: dict[ir.Node, None] = {}
    stack, seen = [logits], {logits}
    while stack:
        node = stack.pop().producer()
        if node is None:
            return []
        if _chooses_last(node, length):
            found[node] = None
            continue
        for value in node.inputs:
            if value is None or value in seen or is_constant(value):
                continue
            if value.is_graph_input() or _has_rows(value, length):
                return []
            seen.add(value)
            stack.append(value)
    return list(found)


def _has_rows(value: ir.Value, length: int) -> bool:
    """Whether ``value`` is [B, S, …], or of unknown shape."""
    return value.shape is None or (len(value.shape) > 2 and value.shape[AXIS] == length)


def _chooses_last(node: ir.Node, length: int) -> bool:
    source = node.inputs[0] if node.inputs else None
    if source is None or source.shape is None or len(source.shape) < 3 or source.shape[AXIS] != length:
        return False
    rank, last = len(source.shape), (-1, length - 1)
    if is_standard(node, "Gather"):
        index = constant_array(node.inputs[1])
        return (
            integer_of(node, "axis", 0) % rank == AXIS
            and index is not None
            and index.size == 1
            and int(index.flat[0]) in last
        )
    if not is_standard(node, "Slice") or len(node.inputs) < 4:
        return False
    parts = [None if value is None else constant_array(value) for value in node.inputs[1:4]]
    starts, ends, axes = (None if part is None else part.reshape(-1).tolist() for part in parts)
    steps = None if len(node.inputs) < 5 else constant_array(node.inputs[4])
    if starts is None or ends is None or axes is None or (steps is not None and set(steps.reshape(-1).tolist()) != {1}):
        return False
    return [a % rank for a in axes] == [AXIS] and starts[0] in last and ends[0] >= length

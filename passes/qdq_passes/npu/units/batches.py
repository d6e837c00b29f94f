"""Where the batch of a model flows: the first dimension of its inputs, followed from operator to operator.

images [4,3,8,8] → Conv [4,8,8,8] → Reshape [4,8,64] → Transpose [4,64,8] → Reshape [256,8] → Gemm
batch axis 0            0                0                    0              none: rows of a matrix

A first dimension that the inputs do not have is none: windows of an image, heads of an attention, rows of a matrix, constants."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from qdq_passes.graph.sizes import rank_of, size_at, static_sizes
from qdq_passes.graph.uses import FLOAT_TYPES, dtype_of, in_order, integer_of, integers_of, is_standard

#: Operators whose output has what their input has, in the same order, cut into other dimensions.
_REGROUPED = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


def batch_sizes(graph: ir.Graph) -> dict[ir.Value, int]:
    """How many samples each value of ``graph`` holds that has a batch; matrices have rows, and are not there."""
    found = {value: (static_sizes(value), axis) for value, axis in batch_axes(graph).items()}
    return {value: sizes[axis] for value, (sizes, axis) in found.items() if sizes is not None and len(sizes) > 2}


def batch_axes(graph: ir.Graph) -> dict[ir.Value, int]:
    """The axis of each value of ``graph`` that has the batch of its inputs, where that is more than 1; others are not there.

    A matrix that is an input has rows, a matrix of indices a batch. All inputs have the batch: where one begins with 1 or a
    symbol, what others begin with is something else. Where a batch is merged with another dimension, it ends.
    """
    inputs = [value for value in graph.inputs if not value.is_initializer() and _may_have_batch(value)]
    if any((size_at(value, 0) or 1) == 1 for value in inputs):
        return {}
    found = dict.fromkeys(inputs, 0)
    for node in in_order(graph) if found else ():
        for value in node.outputs:
            axes = (_followed(node, read, value, found[read]) for read in node.inputs if read in found)
            if (axis := next((axis for axis in axes if axis is not None), None)) is not None:
                found[value] = axis
    return found


def _may_have_batch(value: ir.Value) -> bool:
    rank = rank_of(value) or 0
    return rank > 2 or (rank == 2 and dtype_of(value) not in FLOAT_TYPES)


def _followed(node: ir.Node, read: ir.Value, written: ir.Value, axis: int) -> int | None:
    """The axis of ``written`` that has what ``axis`` of ``read`` has; None where it has no such axis."""
    before, after = static_sizes(read), static_sizes(written)
    if before is None or after is None:
        return None
    if is_standard(node, *_REGROUPED):
        return regrouped(before, after, axis)
    if is_standard(node, "Transpose"):
        order = integers_of(node, "perm") or list(range(len(before)))[::-1]
        return order.index(axis)
    if is_standard(node, "Gather"):
        moved = _gathered(node, read, axis)
    elif is_standard(node, "MatMul") or len(after) >= len(before):
        moved = axis + len(after) - len(before)  # broadcast from the right
    else:
        moved = _reduced(before, after, axis)
    return moved if moved is not None and 0 <= moved < len(after) and after[moved] == before[axis] else None


def regrouped(before: Sequence[int], after: Sequence[int], axis: int) -> int | None:
    """The axis of ``after``, the same elements in other dimensions, that is ``axis`` of ``before``; None where it was merged."""
    outer = math.prod(before[:axis])
    return next((i for i, size in enumerate(after) if size == before[axis] and math.prod(after[:i]) == outer), None)


def _gathered(node: ir.Node, read: ir.Value, axis: int) -> int | None:
    data, indices = node.inputs[:2]
    along, rank = integer_of(node, "axis", 0), rank_of(data)
    added = rank_of(indices)
    if rank is None or added is None:
        return None
    along %= rank
    if read is indices:
        return along + axis
    return None if axis == along else axis if axis < along else axis + added - 1


def _reduced(before: Sequence[int], after: Sequence[int], axis: int) -> int | None:
    """Of an operator that drops dimensions: the first that is as large, and not further to the right."""
    return next((i for i, size in enumerate(after[: axis + 1]) if size == before[axis]), None)

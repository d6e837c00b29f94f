"""Reductions, average pools and softmax of the reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qdq_passes.npu.reference import sums
from qdq_passes.npu.reference.movement import numbers_of
from qdq_passes.npu.reference.node import ReferenceNode
from qdq_passes.npu.reference.values import Moved, NotRepresentable, Sum, Value
from qdq_passes.numerics.encoding import is_wide
from qdq_passes.numerics.requantize import fit_accumulator


def reduced_sum(node: ReferenceNode) -> Sequence[Value]:
    """ReduceSum: an exact sum of integers minus their zero point."""
    x = node.stored(0)
    if len(x.encoding.scale) != 1:
        raise NotRepresentable(f"data with {x.encoding.granularity.kind} scales are read")
    acc = np.asarray(np.sum(x.centered(), axis=_axes(node, x.integers.ndim), keepdims=_keeps(node)))
    acc = fit_accumulator(acc, node.arithmetic, wide=is_wide(x.encoding.dtype))
    return [Sum(acc=acc, product=np.array(x.encoding.scale, np.float64))]


def reduced_mean(node: ReferenceNode) -> Sequence[Value]:
    """ReduceMean."""
    x, attributes = node.stored(0), node.node.attributes
    if not numbers_of(node.node, "axes", node.array(1)) and attributes.get_int("noop_with_empty_axes", 0) == 1:
        return [Moved(parts=(x,))]
    return [sums.mean(x, _axes(node, x.integers.ndim), node.arithmetic, keepdims=_keeps(node))]


def pooled_mean(node: ReferenceNode) -> Sequence[Value]:
    """AveragePool and GlobalAveragePool."""
    x = node.stored(0)
    if node.node.op_type == "AveragePool":
        return [sums.average_pool(node.node, x, node.arithmetic)]
    return [sums.mean(x, range(2, x.integers.ndim), node.arithmetic, keepdims=True)]


def softmax(node: ReferenceNode) -> Sequence[Value]:
    """Softmax along one axis."""
    x = node.stored(0)
    rank = x.integers.ndim
    axis = node.node.attributes.get_int("axis", -1 if node.opset >= 13 else 1) % rank
    if node.opset < 13 and axis != rank - 1:
        raise NotRepresentable(f"it works along all axes from {axis} on in opset {node.opset}")
    return [sums.softmax(x, axis)]


def reduced_extreme(node: ReferenceNode) -> Sequence[Value]:
    """ReduceMax and ReduceMin: the integer of the largest number is the largest."""
    x = node.stored(0)
    axes, keepdims = _axes(node, x.integers.ndim), _keeps(node)
    reduce = np.max if node.node.op_type == "ReduceMax" else np.min
    return [Moved(parts=(x.moved(lambda integers: np.asarray(reduce(integers, axis=axes, keepdims=keepdims))),))]


def _axes(node: ReferenceNode, rank: int) -> tuple[int, ...]:
    axes = numbers_of(node.node, "axes", node.array(1)) or []
    if not axes and node.node.attributes.get_int("noop_with_empty_axes", 0) == 1:
        raise NotRepresentable("it reduces no axis")
    return tuple(sorted({axis % rank for axis in axes})) or tuple(range(rank))


def _keeps(node: ReferenceNode) -> bool:
    return node.node.attributes.get_int("keepdims", 1) != 0

"""What moves on integers in the reference: they keep their encoding, and what joins several waits for that of the output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qdq_passes.npu.formulas.functions import quantized
from qdq_passes.npu.reference.movement import Moving, is_movement, moved, places_of
from qdq_passes.npu.reference.node import ReferenceNode
from qdq_passes.npu.reference.values import Joined, Moved, NotRepresentable, Stored, Value
from qdq_passes.npu.reference.windows import window_of
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import integer_range


def moved_integers(node: ReferenceNode) -> Sequence[Value]:
    """The outputs of an operator that moves; the number of a Pad is quantized like the data, halves to even.

    Raises:
        NotRepresentable: it is none, or does something that integers cannot stand for.
    """
    if not is_movement(node.node):
        raise NotRepresentable(f"{node.node.op_type} is no operator of an NPU")
    places = places_of(node.node)
    parts = tuple(node.stored(index) for index in places)
    if node.node.op_type == "Concat":
        return [Moved(parts=parts, axis=node.node.attributes.get_int("axis", 0))]
    x = parts[0]
    others = [None if index in places else node.array(index) for index in range(len(node.node.inputs))]
    moving = Moving(
        node=node.node, opset=node.opset, inputs=tuple(others), standing=lambda number: _standing(x, number)
    ).with_data([part.integers for part in parts])
    if len(places) == 1:
        return [Moved(parts=(replace(x, integers=found),)) for found in moved(moving)]
    joined = Joined(
        parts=tuple(Moved(parts=(part,)) for part in parts), join=lambda integers: moved(moving.with_data(integers))[0]
    )
    return [joined]


def max_pool(node: ReferenceNode) -> Sequence[Value]:
    """MaxPool and GlobalMaxPool: the integer of the largest number is the largest."""
    x = node.stored(0)
    if any(value.uses() or value.is_graph_output() for value in node.node.outputs[1:]):
        raise NotRepresentable("the indices of its elements are read")
    if node.node.op_type == "GlobalMaxPool":
        axes = tuple(range(2, x.integers.ndim))
        return [Moved(parts=(x.moved(lambda data: np.asarray(np.max(data, axis=axes, keepdims=True))),))]
    window = window_of(node.node, x.integers.shape[2:], ())
    lowest = integer_range(x.encoding.dtype, symmetric=False)[0]
    found = np.maximum.reduce([tap for _, tap in window.taps(x.integers, lowest)])
    return [Moved(parts=(replace(x, integers=np.asarray(found)),))]


def _standing(x: Stored, number: Array) -> Array:
    return np.asarray(quantized(number.astype(np.float32), x.encoding))

"""Operators of the reference that move elements or choose among them: alike on integers, on numbers and on bare integers.

A Resize is among them where it takes the nearest element. Of two updates of one element the last stays.
On integers they keep their encoding, and what joins several waits for that of the output."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.npu.formulas.functions import quantized
from qdq_passes.npu.formulas.resize import BEFORE_OPSET_11, resize_nearest_indices
from qdq_passes.npu.reference.scatter import SCATTERS, expected
from qdq_passes.npu.reference.values import Joined, Moved, NotRepresentable, ReferenceNode, Stored, Value
from qdq_passes.npu.reference.windows import window_of
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import integer_range

#: Operators that join elements of several inputs, and which these are; a Concat joins all of them.
JOINS: Mapping[str, tuple[int, ...]] = {
    "ScatterElements": (0, 2), "ScatterND": (0, 2), "TensorScatter": (0, 1), "Where": (1, 2),
}  # fmt: skip


@dataclass(frozen=True, eq=False, kw_only=True)
class Moving:
    """An operator that moves elements, and its inputs.

    Args:
        node: the operator.
        opset: of the model.
        inputs: its inputs, None where left out; elements that move are whatever stands for numbers.
        standing: what stands for a float32 number among them: for what a Pad or Trilu writes.
    """

    node: ir.Node
    opset: int
    inputs: tuple[Array | None, ...]
    standing: Callable[[Array], Array]

    @property
    def data(self) -> Array:
        """The first input."""
        return expected(self.inputs, 0)

    def given(self, index: int) -> Array | None:
        """Input ``index``, None where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def numbers(self, name: str, index: int) -> list[int] | None:
        """Integers that are an attribute in older opsets and input ``index`` in newer ones; None where they are neither."""
        return numbers_of(self.node, name, self.given(index))

    def with_data(self, parts: Sequence[Array]) -> Moving:
        """The same with other elements that move, in the order of `places_of`."""
        inputs = list(self.inputs)
        for place, part in zip(places_of(self.node), parts, strict=True):
            inputs[place] = part
        return replace(self, inputs=tuple(inputs))


def numbers_of(node: ir.Node, name: str, given: Array | None) -> list[int] | None:
    """Integers that are an attribute ``name`` in older opsets and an input in newer ones; None where they are neither."""
    if given is not None:
        return [int(v) for v in given.ravel()]
    return None if name not in node.attributes else [int(v) for v in node.attributes.get_ints(name, [])]


def places_of(node: ir.Node) -> tuple[int, ...]:
    """The inputs of ``node`` whose elements move."""
    return tuple(range(len(node.inputs))) if node.op_type == "Concat" else JOINS.get(node.op_type, (0,))


def is_movement(node: ir.Node) -> bool:
    """Whether `moved` knows ``node``."""
    return node.domain in ("", "ai.onnx") and node.op_type in _MOVES


def moved(moving: Moving) -> list[Array]:
    """The outputs of an operator that `is_movement`.

    Raises:
        NotRepresentable: it does something that is no movement, or an input is left out.
    """
    found = _MOVES[moving.node.op_type](moving)
    return found if isinstance(found, list) else [found]


def _reshape(m: Moving) -> Array:
    shape = m.numbers("shape", 1) or []
    if not m.node.attributes.get_int("allowzero", 0):
        shape = [m.data.shape[i] if size == 0 else size for i, size in enumerate(shape)]
    return m.data.reshape(shape)


def _flatten(m: Moving) -> Array:
    axis, shape = m.node.attributes.get_int("axis", 1), m.data.shape
    cut = axis if axis >= 0 else axis + m.data.ndim
    return m.data.reshape(math.prod(shape[:cut]), math.prod(shape[cut:]))


def _squeeze(m: Moving) -> Array:
    axes = m.numbers("axes", 1)
    return np.squeeze(m.data, axis=None if axes is None else tuple(axes))


def _unsqueeze(m: Moving) -> Array:
    return np.expand_dims(m.data, tuple(m.numbers("axes", 1) or ()))


def _transpose(m: Moving) -> Array:
    return np.transpose(m.data, m.node.attributes.get_ints("perm"))


def _slice(m: Moving) -> Array:
    starts, ends = (m.numbers(name, i) or [] for i, name in enumerate(("starts", "ends"), 1))
    axes = m.numbers("axes", 3) or list(range(len(starts)))
    steps = m.numbers("steps", 4) or [1] * len(starts)
    cut = [slice(None)] * m.data.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = m.data.shape[axis]
        first, last = (v + size if v < 0 else v for v in (start, end))
        low, high = (0, size) if step > 0 else (-1, size - 1)
        first, last = min(max(first, 0), high), min(max(last, low), high + (step < 0))
        cut[axis] = slice(first, None if last < 0 else last, step)
    return m.data[tuple(cut)]


def _split(m: Moving) -> list[Array]:
    axis = m.node.attributes.get_int("axis", 0)
    size, sizes = m.data.shape[axis], m.numbers("split", 1)
    if sizes is None:
        part = -(-size // len(m.node.outputs))
        sizes = [min(part, size - part * i) for i in range(len(m.node.outputs))]
    return np.split(m.data, np.cumsum(sizes)[:-1].tolist(), axis=axis)


def _concat(m: Moving) -> Array:
    parts = [expected(m.inputs, index) for index in range(len(m.inputs))]
    return np.concatenate(parts, axis=m.node.attributes.get_int("axis", 0))


def _gather(m: Moving) -> Array:
    return np.take(m.data, expected(m.inputs, 1).astype(np.int64), axis=m.node.attributes.get_int("axis", 0))


def _expand(m: Moving) -> Array:
    shape = m.numbers("shape", 1) or []
    return np.broadcast_to(m.data, np.broadcast_shapes(m.data.shape, tuple(shape)))


def _tile(m: Moving) -> Array:
    return np.tile(m.data, m.numbers("repeats", 1) or [])


def _pad(m: Moving) -> Array:
    """Elements below 0 are cut off before others are added."""
    data, pads = m.data, m.numbers("pads", 1) or []
    axes = m.numbers("axes", 3) or list(range(len(pads) // 2))
    mode = m.node.attributes.get_string("mode", "constant")
    if mode not in ("constant", "reflect", "edge"):
        raise NotRepresentable(f"it pads in mode {mode}")
    around = [(0, 0)] * data.ndim
    for i, axis in enumerate(axes):
        around[axis] = pads[i], pads[len(axes) + i]
    kept = (slice(max(-b, 0), n - max(-e, 0)) for (b, e), n in zip(around, data.shape, strict=True))
    data, around = data[tuple(kept)], [(max(b, 0), max(e, 0)) for b, e in around]
    if mode != "constant":
        return np.pad(data, around, mode=mode)  # type: ignore[call-overload, no-any-return]
    given = m.given(2)
    value = np.array(m.node.attributes.get_float("value", 0.0)) if given is None else given.reshape(())
    return np.pad(data, around, constant_values=m.standing(value))


def _trilu(m: Moving) -> Array:
    """What lies on one side of the diagonal, and 0 on the other."""
    given, upper = m.given(1), m.node.attributes.get_int("upper", 1) != 0
    k = 0 if given is None else int(given.item())
    kept = np.ones(m.data.shape[-2:], bool)
    kept = np.triu(kept, k) if upper else np.tril(kept, k)
    return np.where(kept, m.data, m.standing(np.zeros(()))).astype(m.data.dtype)


def _where(m: Moving) -> Array:
    """Elements of one or the other, as the condition says."""
    return np.where(m.data.astype(bool), expected(m.inputs, 1), expected(m.inputs, 2))


def _depth_to_space(m: Moving) -> Array:
    n, c, h, w = m.data.shape
    block = m.node.attributes.get_int("blocksize", 1)
    depth = c // block**2
    if m.node.attributes.get_string("mode", "DCR") == "DCR":
        parts = m.data.reshape(n, block, block, depth, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        parts = m.data.reshape(n, depth, block, block, h, w).transpose(0, 1, 4, 2, 5, 3)
    return parts.reshape(n, depth, h * block, w * block)


def _space_to_depth(m: Moving) -> Array:
    n, c, h, w = m.data.shape
    block = m.node.attributes.get_int("blocksize", 1)
    parts = m.data.reshape(n, c, h // block, block, w // block, block).transpose(0, 3, 5, 1, 2, 4)
    return parts.reshape(n, c * block**2, h // block, w // block)


def _resize(m: Moving) -> Array:
    attributes = m.node.attributes
    if attributes.get_string("mode", "nearest") != "nearest":
        raise NotRepresentable("it interpolates")
    old = m.opset < 11
    roi, scales, sizes = (None, m.given(1), None) if old else (m.given(1), m.given(2), m.given(3))
    indices = resize_nearest_indices(
        m.data.shape,
        scales=None if scales is None or not scales.size else scales.astype(np.float32),
        sizes=None if sizes is None else [int(v) for v in sizes],
        axes=attributes.get_ints("axes") or (),
        policy=attributes.get_string("keep_aspect_ratio_policy", "stretch"),
        coordinate_mode="asymmetric" if old else attributes.get_string("coordinate_transformation_mode", "half_pixel"),
        nearest_mode=BEFORE_OPSET_11 if old else attributes.get_string("nearest_mode", "round_prefer_floor"),
        roi=roi,
    )
    found = m.data
    for axis, chosen in enumerate(indices):
        if (chosen < 0).any():
            raise NotRepresentable("it reads beyond the data, where extrapolation_value stands")
        found = np.take(found, chosen, axis=axis)
    return found


_MOVES: Mapping[str, Callable[[Moving], Array | list[Array]]] = {
    "Concat": _concat,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Identity": lambda m: m.data,
    "Pad": _pad,
    "Reshape": _reshape,
    "Resize": _resize,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
    **{name: lambda m, scatter=scatter: scatter(m.node, m.inputs) for name, scatter in SCATTERS.items()},  # type: ignore[misc]
}


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

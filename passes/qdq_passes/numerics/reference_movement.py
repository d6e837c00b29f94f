"""Operators of the reference that move integers or choose among them: the same on integers as on the numbers they stand for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from qdq_passes.numerics.encoding import integer_range
from qdq_passes.numerics.functions import quantized
from qdq_passes.numerics.reference_sums import window_of
from qdq_passes.numerics.reference_values import Array, NotRepresentable, Stored
from qdq_passes.numerics.resize import BEFORE_OPSET_11, resize_nearest_indices

#: The other inputs of an operator, from the second: their arrays, None where left out.
Others = Sequence[Array | None]
Move = Callable[[ir.Node, Stored, Others], Array | list[Array]]


def moved(node: ir.Node, x: Stored, others: Others, opset: int) -> list[Stored] | None:
    """The outputs of ``node`` on ``x``; None where it is no operator that moves.

    Args:
        node: the operator; Concat is not among them.
        x: its first input.
        others: its other inputs, as arrays.
        opset: of the model.

    Raises:
        NotRepresentable: it does something that integers cannot stand for.
    """
    if node.op_type == "Resize":
        found: Array | list[Array] = _resize(node, x, others, opset)
    elif node.op_type in _MOVES:
        found = _MOVES[node.op_type](node, x, others)
    else:
        return None
    return [x.moved(lambda _, array=array: array) for array in (found if isinstance(found, list) else [found])]  # type: ignore[misc]


def numbers_of(node: ir.Node, name: str, others: Others, index: int) -> list[int] | None:
    """Integers that are an attribute in older opsets and an input in newer ones; None where they are neither.

    Args:
        node: the operator.
        name: of the attribute.
        others: the inputs from the second.
        index: of the input among ``others``.
    """
    given = others[index] if index < len(others) else None
    if given is not None:
        return [int(v) for v in given.ravel()]
    return None if name not in node.attributes else [int(v) for v in node.attributes.get_ints(name, [])]


def _reshape(node: ir.Node, x: Stored, others: Others) -> Array:
    shape = numbers_of(node, "shape", others, 0) or []
    if not node.attributes.get_int("allowzero", 0):
        shape = [x.integers.shape[i] if size == 0 else size for i, size in enumerate(shape)]
    return x.integers.reshape(shape)


def _flatten(node: ir.Node, x: Stored, _: Others) -> Array:
    axis = node.attributes.get_int("axis", 1)
    shape, cut = x.integers.shape, axis if axis >= 0 else axis + x.integers.ndim
    return x.integers.reshape(math.prod(shape[:cut]), math.prod(shape[cut:]))


def _squeeze(node: ir.Node, x: Stored, others: Others) -> Array:
    axes = numbers_of(node, "axes", others, 0)
    return np.squeeze(x.integers, axis=None if axes is None else tuple(axes))


def _unsqueeze(node: ir.Node, x: Stored, others: Others) -> Array:
    return np.expand_dims(x.integers, tuple(numbers_of(node, "axes", others, 0) or ()))


def _transpose(node: ir.Node, x: Stored, _: Others) -> Array:
    return np.transpose(x.integers, node.attributes.get_ints("perm"))


def _slice(node: ir.Node, x: Stored, others: Others) -> Array:
    starts, ends = (numbers_of(node, name, others, i) or [] for i, name in enumerate(("starts", "ends")))
    axes = numbers_of(node, "axes", others, 2) or list(range(len(starts)))
    steps = numbers_of(node, "steps", others, 3) or [1] * len(starts)
    cut = [slice(None)] * x.integers.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = x.integers.shape[axis]
        first, last = (v + size if v < 0 else v for v in (start, end))
        low, high = (0, size) if step > 0 else (-1, size - 1)
        first, last = min(max(first, 0), high), min(max(last, low), high + (step < 0))
        cut[axis] = slice(first, None if last < 0 else last, step)
    return x.integers[tuple(cut)]


def _split(node: ir.Node, x: Stored, others: Others) -> list[Array]:
    axis = node.attributes.get_int("axis", 0)
    size, sizes = x.integers.shape[axis], numbers_of(node, "split", others, 0)
    if sizes is None:
        part = -(-size // len(node.outputs))
        sizes = [min(part, size - part * i) for i in range(len(node.outputs))]
    return np.split(x.integers, np.cumsum(sizes)[:-1].tolist(), axis=axis)


def _gather(node: ir.Node, x: Stored, others: Others) -> Array:
    indices = others[0]
    assert indices is not None
    return np.take(x.integers, indices.astype(np.int64), axis=node.attributes.get_int("axis", 0))


def _expand(node: ir.Node, x: Stored, others: Others) -> Array:
    shape = numbers_of(node, "shape", others, 0) or []
    return np.broadcast_to(x.integers, np.broadcast_shapes(x.integers.shape, tuple(shape)))


def _tile(node: ir.Node, x: Stored, others: Others) -> Array:
    return np.tile(x.integers, numbers_of(node, "repeats", others, 0) or [])


def _pad(node: ir.Node, x: Stored, others: Others) -> Array:
    """Elements below 0 are cut off before others are added; the constant is quantized like the data, halves to even."""
    data, pads = x.integers, numbers_of(node, "pads", others, 0) or []
    axes = numbers_of(node, "axes", others, 2) or list(range(len(pads) // 2))
    mode = node.attributes.get_string("mode", "constant")
    if mode not in ("constant", "reflect", "edge"):
        raise NotRepresentable(f"it pads in mode {mode}")
    around = [(0, 0)] * data.ndim
    for i, axis in enumerate(axes):
        around[axis] = pads[i], pads[len(axes) + i]
    kept = (slice(max(-b, 0), n - max(-e, 0)) for (b, e), n in zip(around, data.shape, strict=True))
    data, around = data[tuple(kept)], [(max(b, 0), max(e, 0)) for b, e in around]
    if mode != "constant":
        return np.pad(data, around, mode=mode)  # type: ignore[call-overload, no-any-return]
    given = others[1] if len(others) > 1 else None
    value = np.array(node.attributes.get_float("value", 0.0) if given is None else given.item(), np.float32)
    return np.pad(data, around, constant_values=int(quantized(value, x.encoding)))


def _depth_to_space(node: ir.Node, x: Stored, _: Others) -> Array:
    n, c, h, w = x.integers.shape
    block = node.attributes.get_int("blocksize", 1)
    depth = c // block**2
    if node.attributes.get_string("mode", "DCR") == "DCR":
        parts = x.integers.reshape(n, block, block, depth, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        parts = x.integers.reshape(n, depth, block, block, h, w).transpose(0, 1, 4, 2, 5, 3)
    return parts.reshape(n, depth, h * block, w * block)


def _space_to_depth(node: ir.Node, x: Stored, _: Others) -> Array:
    n, c, h, w = x.integers.shape
    block = node.attributes.get_int("blocksize", 1)
    parts = x.integers.reshape(n, c, h // block, block, w // block, block).transpose(0, 3, 5, 1, 2, 4)
    return parts.reshape(n, c * block**2, h // block, w // block)


def _max_pool(node: ir.Node, x: Stored, _: Others) -> Array:
    if len(node.outputs) > 1 and node.outputs[1].uses():
        raise NotRepresentable("the indices of its elements are read")
    window = window_of(node, x.integers.shape[2:], ())
    lowest = integer_range(x.encoding.dtype, symmetric=False)[0]
    return np.asarray(np.maximum.reduce([tap for _, tap in window.taps(x.integers, lowest)]))


def _global_max_pool(_: ir.Node, x: Stored, __: Others) -> Array:
    return np.asarray(np.max(x.integers, axis=tuple(range(2, x.integers.ndim)), keepdims=True))


def _resize(node: ir.Node, x: Stored, others: Others, opset: int) -> Array:
    if node.attributes.get_string("mode", "nearest") != "nearest":
        raise NotRepresentable("it interpolates")
    old = opset < 11
    roi, scales, sizes = ([None, others[0], None] if old else [*others, None, None])[:3]
    indices = resize_nearest_indices(
        x.integers.shape,
        scales=None if scales is None or not scales.size else scales.astype(np.float32),
        sizes=None if sizes is None else [int(v) for v in sizes],
        axes=node.attributes.get_ints("axes") or (),
        policy=node.attributes.get_string("keep_aspect_ratio_policy", "stretch"),
        coordinate_mode="asymmetric"
        if old
        else node.attributes.get_string("coordinate_transformation_mode", "half_pixel"),
        nearest_mode=BEFORE_OPSET_11 if old else node.attributes.get_string("nearest_mode", "round_prefer_floor"),
        roi=roi,
    )
    found = x.integers
    for axis, chosen in enumerate(indices):
        if (chosen < 0).any():
            raise NotRepresentable("it reads beyond the data, where extrapolation_value stands")
        found = np.take(found, chosen, axis=axis)
    return found


_MOVES: Mapping[str, Move] = {
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GlobalMaxPool": _global_max_pool,
    "Identity": lambda node, x, others: x.integers,
    "MaxPool": _max_pool,
    "Pad": _pad,
    "Reshape": _reshape,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}

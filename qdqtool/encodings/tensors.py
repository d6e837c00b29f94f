"""Tensors of a model as encodings files mean them: by name, and with the axis along which their scales run.

For files that do not say the axis it is found by the operators that read the tensor, and by its shape.

AIMET 0.6.1 and 1.0.0 store no axis. The channel axis is the one of the output channels: 0 of a Conv weight [O, I, …], 1 of a
ConvTranspose weight [I, O, …], the last of a MatMul's right side […, K, N], 1 of a Gemm's [K, N] (0 with transB); blocks run
along the input channels. Blocked scales of a 2-D weight [K, N] with channel axis 1 stand transposed in 1.0.0, [N, K/block]."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from qdq_passes.errors import ModelError, QdqError, UnsupportedError, UsageError
from qdq_passes.graph.sizes import static_sizes
from qdq_passes.graph.uses import constant_array, is_constant, is_standard
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.granularity import Granularity

from qdqtool.encodings.entries import Content, Lpbq, Unplaced

Values = Mapping[str, ir.Value]
#: (channel axis, block axis)
Axes = tuple[int, int]


def implied_axes(value: ir.Value) -> Axes | None:
    """What the readers of ``value`` imply, both axes counted from the front; None when they imply nothing, or differ."""
    rank = _rank(value)
    found = {axes for use in value.uses() if (axes := _of_reader(use.node, use.idx, rank)) is not None}
    return found.pop() if len(found) == 1 else None


def _of_reader(node: ir.Node, index: int, rank: int) -> Axes | None:
    if rank < 2:
        return None
    if is_standard(node, "Conv") and index == 1:
        return 0, 1
    if is_standard(node, "ConvTranspose") and index == 1:
        return 1, 0
    if is_standard(node, "MatMul"):
        return (rank - 1, rank - 2) if index == 1 else (rank - 2, rank - 1)
    if is_standard(node, "Gemm") and index in (0, 1):
        attribute = node.attributes.get("transB" if index == 1 else "transA")
        is_turned = attribute is not None and not attribute.is_ref() and bool(attribute.as_int())
        return (0, 1) if is_turned == (index == 1) else (1, 0)
    return None


def shape_of(value: ir.Value) -> tuple[int, ...] | None:
    """Sizes of a tensor, where they are known: its own, or those of its data."""
    shape = static_sizes(value)
    if shape is not None:
        return tuple(shape)
    array = constant_array(value)
    return None if array is None else array.shape


def _rank(value: ir.Value) -> int:
    if value.shape is not None:
        return len(value.shape)
    return len(shape_of(value) or ()) if is_constant(value) else -1


def place(holds: Content, value: ir.Value) -> Content:
    """``holds`` with the axis that a file without axes leaves out, and blocked scales in the shape that ONNX wants.

    Raises:
        UnsupportedError: the axis cannot be told.
        ModelError: as many scales as do not fit the tensor.
    """
    try:
        if isinstance(holds, Unplaced):
            return _place_blocks(holds, value) if holds.block_size else _place_channels(holds, value)
        if isinstance(holds, Lpbq) and holds.axis is None:
            return _place_lpbq(holds, value)
    except QdqError as error:
        error.where = error.where or value.name
        raise
    return holds


def fitted(encoding: Encoding, value: ir.Value) -> Encoding:
    """``encoding`` with one scale for a whole kernel spread over it: [O, I/block, 1, 1] → [O, I/block, kH, kW].

    Raises:
        ModelError: blocked scales that do not fit the shape of ``value``.
    """
    shape = shape_of(value) if encoding.block_size else None
    if encoding.axis is None or shape is None:
        return encoding
    if not -len(shape) <= encoding.axis < len(shape):
        raise ModelError(f"axis {encoding.axis} does not exist in shape {list(shape)}", where=value.name)
    wanted = Granularity(encoding.axis, encoding.block_size).scale_shape(shape)
    blocks = encoding.axis % len(shape)
    fits = len(encoding.shape) == len(wanted) and all(
        have == size or (have == 1 and axis != blocks)
        for axis, (have, size) in enumerate(zip(encoding.shape, wanted, strict=True))
    )
    if not fits:
        raise ModelError(
            f"blocked scales of shape {list(encoding.shape)} on a tensor of shape {list(shape)}",
            where=value.name,
            hint=f"expected shape {list(wanted)}",
        )
    scale, zero_point = (
        np.broadcast_to(np.array(flat, object).reshape(encoding.shape), wanted)
        for flat in (encoding.scale, encoding.zero_point)
    )
    return dataclasses.replace(
        encoding, scale=tuple(scale.ravel().tolist()), zero_point=tuple(zero_point.ravel().tolist()), shape=wanted
    )


def unplace(name: str, holds: Encoding | Lpbq, values: Values | None, format_name: str, instead: str) -> Content:
    """``holds`` as a format without axes has it: per-tensor as it is, else channel-major scales whose axis readers will find.

    Raises:
        UsageError: the model is needed for that, and not given, or does not have the tensor.
        UnsupportedError: a reader of the file would find another axis, or none.
    """
    if holds.axis is None:
        return holds
    if values is None or name not in values:
        problem = "its axis must be checked against the model" if values is None else "the model has no such tensor"
        raise UsageError(
            f"{problem}, as {format_name} stores none", where=name, hint="give the float model with --model"
        )
    value = values[name]
    try:
        bare = _unplaced(holds, value)
        placed = place(bare, value)
        whole = fitted(holds, value) if isinstance(holds, Encoding) else holds
        same = placed == dataclasses.replace(whole, axis=holds.axis % _rank(value))
        axes = implied_axes(value)
        other = axes is not None and not holds.block_size and axes[0] != holds.axis % _rank(value)
        reason = f"runs along axis {holds.axis}, which its readers do not imply" if other or not same else ""
    except (ModelError, UnsupportedError) as error:
        reason = error.message
    if reason:
        raise UnsupportedError(
            f"{format_name} stores no axis, and this tensor's cannot be told: {reason}",
            where=name,
            hint=f"write {instead}",
        )
    return bare


def _unplaced(holds: Encoding | Lpbq, value: ir.Value) -> Content:
    if isinstance(holds, Lpbq):
        factors = _channel_major(np.array(holds.block_scale, object).reshape(holds.shape), holds.axis, value)
        return dataclasses.replace(holds, block_scale=tuple(factors.ravel().tolist()), shape=(), axis=None)
    scale: Array = np.array(holds.scale, object)
    zero_point: Array = np.array(holds.zero_point, object)
    if holds.block_size:
        wide = fitted(holds, value)
        scale, zero_point = (
            _channel_major(np.array(flat, object).reshape(wide.shape), holds.axis, value)
            for flat in (wide.scale, wide.zero_point)
        )
    return Unplaced(
        dtype=holds.dtype,
        scale=tuple(scale.ravel().tolist()),
        zero_point=tuple(zero_point.ravel().tolist()),
        block_size=holds.block_size,
    )


def _channel_major(scales: Array, axis: int | None, value: ir.Value) -> Array:
    """Blocked scales in the order of the files: transposed for [K, N] with channel axis 1, one for a whole kernel."""
    axes = _axes_of_blocks(value)
    if axis is None or axis % scales.ndim != axes[1]:
        raise UnsupportedError(f"its blocks run along axis {axis}, its readers imply {axes[1]}")
    if scales.ndim == 2:
        return scales.T if axes[0] == 1 else scales
    narrow = scales[tuple(slice(None) if i in axes else slice(0, 1) for i in range(scales.ndim))]
    if not (scales == narrow).all():
        raise UnsupportedError("its scales differ within a kernel")
    return narrow


def _axes_of_blocks(value: ir.Value) -> Axes:
    axes = implied_axes(value)
    if axes is None:
        raise UnsupportedError("its readers do not tell channels from blocks", hint="aimet-2.0.0 stores the axis")
    return axes


def _known_shape(value: ir.Value) -> tuple[int, ...]:
    shape = shape_of(value)
    if shape is None:
        raise ModelError("its shape is not known, so neither is the axis of its scales", hint="run infer-shapes first")
    return shape


def _place_channels(holds: Unplaced, value: ir.Value) -> Encoding:
    shape, count = _known_shape(value), len(holds.scale)
    axes = implied_axes(value)
    fitting = [axis for axis, size in enumerate(shape) if size == count]
    if axes is not None and shape[axes[0]] == count:
        axis = axes[0]
    elif not fitting:
        raise ModelError(f"{count} scales on a tensor of shape {list(shape)}", hint="no axis of it has that length")
    elif len(fitting) > 1:
        raise UnsupportedError(
            f"{count} scales may run along axis {' or '.join(map(str, fitting))} of {list(shape)}",
            hint="aimet-2.0.0 stores the axis",
        )
    else:
        axis = fitting[0]
    return Encoding(dtype=holds.dtype, scale=holds.scale, zero_point=holds.zero_point, shape=(count,), axis=axis)


def _place_blocks(holds: Unplaced, value: ir.Value) -> Encoding:
    axes = _axes_of_blocks(value)
    scale, zero_point = (
        _natural(np.array(flat, object), holds.block_size, axes, value) for flat in (holds.scale, holds.zero_point)
    )
    encoding = Encoding(
        dtype=holds.dtype,
        scale=tuple(scale.ravel().tolist()),
        zero_point=tuple(zero_point.ravel().tolist()),
        shape=scale.shape,
        axis=axes[1],
        block_size=holds.block_size,
    )
    return fitted(encoding, value)


def _place_lpbq(holds: Lpbq, value: ir.Value) -> Lpbq:
    axes = _axes_of_blocks(value)
    factors = _natural(np.array(holds.block_scale, object), holds.block_size, axes, value)
    flat = tuple(int(factor) for factor in factors.ravel())
    return dataclasses.replace(holds, block_scale=flat, shape=factors.shape, axis=axes[1])


def _natural(flat: Array, block_size: int, axes: Axes, value: ir.Value) -> Array:
    """Blocked numbers of a file in the tensor's own order of axes."""
    shape = _known_shape(value)
    full = Granularity(axes[1], block_size).scale_shape(shape)
    narrow = tuple(size if axis in axes else 1 for axis, size in enumerate(full))
    for wanted in (narrow, full):
        if flat.size == math.prod(wanted):
            return flat.reshape(wanted[::-1]).T if len(shape) == 2 and axes[0] == 1 else flat.reshape(wanted)
    raise ModelError(
        f"{flat.size} scales on a tensor of shape {list(shape)} with blocks of {block_size}",
        hint=f"expected {math.prod(narrow)}",
    )


def values_by_name(model: ir.Model) -> dict[str, ir.Value]:
    """Values of the main graph and of bodies; of two with one name (in sibling bodies) neither. Local functions are left out."""
    found: dict[str, ir.Value] = {}
    twice: set[str] = set()
    for graph in model.graphs():
        values = [*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs)]
        for value in dict.fromkeys(v for v in values if v.name):
            name = value.name or ""
            if name in found:
                twice.add(name)
            found[name] = value
    return {name: value for name, value in found.items() if name not in twice}

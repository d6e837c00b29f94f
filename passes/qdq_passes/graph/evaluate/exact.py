"""Operators on small constants, in numpy, where the result is exact: every runtime computes the same bits.

Exact are movement of elements, arithmetic of integers and booleans, comparisons, and of floats what IEEE 754 rounds correctly
(sum, difference, product, quotient, square root) or does not round. Everything else is not computed here: `exact` gives None.

Operators that only put elements into another order or shape work on constants of any type: `rearranged_by`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from qdq_passes.graph.uses import constant_array, integer_of, integers_of, is_standard
from qdq_passes.numerics.arrays import Array

Inputs = Sequence[Array | None]
#: First opset whose operators broadcast as numpy does.
OPSET_OF_BROADCASTING = 7
Rule = Callable[[ir.Node, list[Array], int], Array | None]

#: Types whose arithmetic numpy does as IEEE 754 says; bfloat16 and smaller floats are left alone.
_KINDS = frozenset("biuf")


def exact(node: ir.Node, inputs: Inputs, opset: int) -> list[Array] | None:
    """The outputs of ``node`` at default-domain ``opset``; None where they cannot be computed exactly here.

    Args:
        node: the node.
        inputs: its inputs; None for those left out.
        opset: default-domain opset.
    """
    if opset < OPSET_OF_BROADCASTING or not is_standard(node, *_RULES, *_SPECIAL):
        return None
    if any(a is not None and not _is_plain(a.dtype) for a in inputs):
        return None
    try:
        with np.errstate(all="ignore"):
            if node.op_type in _SPECIAL:
                return _SPECIAL[node.op_type](node, list(inputs), opset)
            given = [array for array in inputs if array is not None]
            found = _RULES[node.op_type](node, given, opset)
    except (ValueError, IndexError, OverflowError, TypeError):  # the shapes do not fit: not for us to say
        return None
    return None if found is None else [np.asarray(found)]


def _is_plain(dtype: np.dtype[Any]) -> bool:
    """Whether ``dtype`` is one of numpy's; of the floats of 8 bits that others add one is of the kind of its floats."""
    return dtype.kind in _KINDS and dtype.isbuiltin != 2


def _axes(node: ir.Node, inputs: Inputs, index: int) -> list[int] | None:
    """Axes as input ``index`` or as attribute; None where neither is given."""
    if len(inputs) > index and (given := inputs[index]) is not None:
        return [int(axis) for axis in given.reshape(-1)]
    return integers_of(node, "axes") if "axes" in node.attributes else None


def _slice(node: ir.Node, inputs: list[Array | None], opset: int) -> list[Array] | None:
    data = inputs[0]
    assert data is not None
    parts: list[list[int] | None] = [
        integers_of(node, name) if name in node.attributes else None for name in ("starts", "ends", "axes")
    ]
    if opset >= 10:
        parts = [[int(i) for i in a.reshape(-1)] if a is not None else None for a in (*inputs[1:], None, None)[:4]]
    starts, ends = parts[0] or [], parts[1] or []
    axes = parts[2] if parts[2] is not None else list(range(len(starts)))
    steps = (parts[3] if len(parts) > 3 else None) or [1] * len(starts)
    at = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = data.shape[axis]
        low, high = (0, size) if step > 0 else (-1, size - 1)
        start = min(max(start + size if start < 0 else start, max(low, 0)), high)
        end = min(max(end + size if end < 0 else end, low), high)
        at[axis] = slice(start, None if end < 0 else end, step)
    return [data[tuple(at)].copy()]


def _split(node: ir.Node, inputs: list[Array | None], opset: int) -> list[Array] | None:
    data = inputs[0]
    assert data is not None
    axis, count = integer_of(node, "axis", 0), len(node.outputs)
    sizes = [int(i) for i in inputs[1]] if len(inputs) > 1 and inputs[1] is not None else integers_of(node, "split")
    if not sizes:
        part = -(-data.shape[axis] // count)
        sizes = [max(min(part, data.shape[axis] - k * part), 0) for k in range(count)]
    return [part.copy() for part in np.split(data, np.cumsum(sizes)[:-1], axis)]


def _clip(node: ir.Node, inputs: list[Array | None], opset: int) -> list[Array] | None:
    low, high = (inputs[k] if len(inputs) > k else None for k in (1, 2))
    if opset < 11 or inputs[0] is None:
        return None
    found = inputs[0] if low is None else np.maximum(inputs[0], low)
    return [found if high is None else np.minimum(found, high)]


def _gather(node: ir.Node, inputs: list[Array], opset: int) -> Array:
    axis = integer_of(node, "axis", 0)
    return np.take(inputs[0], _inside(inputs[1], inputs[0].shape[axis]), axis)


def _inside(indices: Array, size: int) -> Array:
    if indices.size and (indices.min() < -size or indices.max() >= size):
        raise IndexError("index out of range")
    return np.where(indices < 0, indices + size, indices)


def _gather_nd(node: ir.Node, inputs: list[Array], opset: int) -> Array | None:
    data, indices = inputs
    if integer_of(node, "batch_dims", 0):
        return None
    parts = [_inside(indices[..., k], data.shape[k]) for k in range(indices.shape[-1])]
    return data[tuple(parts)]


def _squeeze(node: ir.Node, inputs: list[Array], opset: int) -> Array:
    axes = _axes(node, inputs, 1)
    return inputs[0].squeeze() if axes is None else inputs[0].squeeze(tuple(axes))


def _unsqueeze(node: ir.Node, inputs: list[Array], opset: int) -> Array:
    return np.expand_dims(inputs[0], tuple(_axes(node, inputs, 1) or ()))


def _reshape(node: ir.Node, inputs: list[Array], opset: int) -> Array:
    shape = [int(i) for i in (inputs[1] if len(inputs) > 1 else integers_of(node, "shape"))]
    if not integer_of(node, "allowzero", 0):
        shape = [inputs[0].shape[k] if size == 0 else size for k, size in enumerate(shape)]
    return inputs[0].reshape(shape)


def _expand(node: ir.Node, inputs: list[Array], opset: int) -> Array:
    shape = np.broadcast_shapes(inputs[0].shape, tuple(int(i) for i in inputs[1]))
    return np.broadcast_to(inputs[0], shape).copy()


def _transpose(node: ir.Node, inputs: list[Array], opset: int) -> Array:
    return inputs[0].transpose(integers_of(node, "perm") or None).copy()


def _cast(node: ir.Node, inputs: list[Array], opset: int) -> Array | None:
    source, target = inputs[0], ir.DataType(integer_of(node, "to", 0))
    if target.name in ("STRING", "UNDEFINED") or not _is_plain(wanted := target.numpy()):
        return None
    if source.dtype.kind == "f" and wanted.kind in "iu":  # out of range, every runtime gives something else
        limits = np.iinfo(wanted)
        whole = np.trunc(source.astype(np.float64))
        if not (np.isfinite(source).all() and (whole >= limits.min).all() and (whole <= limits.max).all()):
            return None
    return source.astype(wanted)


def _range(node: ir.Node, inputs: list[Array], opset: int) -> Array | None:
    start, limit, delta = (array.reshape(()) for array in inputs)
    if delta == 0:
        return None
    if start.dtype.kind == "f" and not all(float(x).is_integer() and abs(x) < 2**24 for x in (start, limit, delta)):
        return None  # start + i·delta and repeated sums differ
    count = max(-((int(start) - int(limit)) // int(delta)), 0)
    return (int(start) + np.arange(count, dtype=np.int64) * int(delta)).astype(start.dtype)


def _constant_of_shape(node: ir.Node, inputs: list[Array], opset: int) -> Array | None:
    attribute = node.attributes.get("value")
    if attribute is not None and attribute.is_ref():
        return None
    value = np.zeros(1, np.float32) if attribute is None else attribute.as_tensor().numpy()
    return np.full([int(i) for i in inputs[0]], value.reshape(-1)[0], value.dtype) if _is_plain(value.dtype) else None


def _div(node: ir.Node, inputs: list[Array], opset: int) -> Array | None:
    a, b = inputs
    if a.dtype.kind == "f":
        return a / b
    if (b == 0).any():
        return None
    quotient = np.abs(a) // np.abs(b)  # towards zero
    return (quotient * np.sign(a) * np.sign(b)).astype(a.dtype)


def _mod(node: ir.Node, inputs: list[Array], opset: int) -> Array | None:
    a, b = inputs
    if a.dtype.kind == "f" or (b == 0).any():
        return None
    return np.fmod(a, b) if integer_of(node, "fmod", 0) else np.mod(a, b)


def _reduced(function: Callable[..., Array], *, floats: bool) -> Rule:
    """A reduction; of floats only where it does not round."""

    def rule(node: ir.Node, inputs: list[Array], opset: int) -> Array | None:
        data = inputs[0]
        if data.dtype.kind == "f" and not floats:
            return None
        axes = _axes(node, inputs, 1)
        if not axes and integer_of(node, "noop_with_empty_axes", 0):
            return data
        keep = bool(integer_of(node, "keepdims", 1))
        return np.asarray(function(data, axis=tuple(axes) if axes else None, keepdims=keep)).astype(data.dtype)

    return rule


def _cumsum(node: ir.Node, inputs: list[Array], opset: int) -> Array | None:
    data, axis = inputs[0], int(inputs[1].reshape(()))
    if data.dtype.kind == "f" or integer_of(node, "exclusive", 0) or integer_of(node, "reverse", 0):
        return None
    return np.cumsum(data, axis, dtype=data.dtype)


def _nonzero(node: ir.Node, inputs: list[Array], opset: int) -> Array:
    return np.array(np.nonzero(np.atleast_1d(inputs[0])), np.int64)


def _trilu(node: ir.Node, inputs: list[Array], opset: int) -> Array:
    k = int(inputs[1].reshape(())) if len(inputs) > 1 else 0
    return (np.triu if integer_of(node, "upper", 1) else np.tril)(inputs[0], k)


def _scatter_nd(node: ir.Node, inputs: list[Array], opset: int) -> Array | None:
    data, indices, updates = inputs
    if "reduction" in node.attributes and node.attributes["reduction"].as_string() != "none":
        return None
    found = data.copy()
    found[tuple(_inside(indices[..., k], data.shape[k]) for k in range(indices.shape[-1]))] = updates
    return found


def _plain(function: Callable[..., Any], *, floats: bool = True) -> Rule:
    """A function of its arrays; ``floats``: exact on those as well."""

    def rule(node: ir.Node, inputs: list[Array], opset: int) -> Array | None:
        if not floats and any(array.dtype.kind == "f" for array in inputs):
            return None
        found = np.asarray(function(*inputs))
        kept = found.dtype == bool or node.op_type in ("Where",) or found.dtype == inputs[0].dtype
        return found if kept else found.astype(inputs[0].dtype)

    return rule


def _many(function: Callable[[Any, Any], Any]) -> Rule:
    """A function of two arrays along all inputs."""

    def rule(node: ir.Node, inputs: list[Array], opset: int) -> Array | None:
        found = inputs[0]
        if len(inputs) > 2 and any(array.dtype.kind == "f" for array in inputs) and node.op_type == "Sum":
            return None
        for array in inputs[1:]:
            found = function(found, array)
        return found

    return rule


_SPECIAL: dict[str, Callable[[ir.Node, list[Array | None], int], list[Array] | None]] = {
    "Clip": _clip, "Slice": _slice, "Split": _split,
}  # fmt: skip
_RULES: dict[str, Rule] = {
    "Abs": _plain(np.abs),
    "Add": _plain(np.add),
    "And": _plain(np.logical_and),
    "Cast": _cast,
    "Ceil": _plain(np.ceil),
    "Concat": lambda node, inputs, _: np.concatenate(inputs, integer_of(node, "axis", 0)),
    "ConstantOfShape": _constant_of_shape,
    "CumSum": _cumsum,
    "Div": _div,
    "Equal": _plain(np.equal),
    "Expand": _expand,
    "Flatten": lambda node, inputs, _: inputs[0].reshape(
        int(np.prod(inputs[0].shape[: integer_of(node, "axis", 1)], dtype=np.int64)), -1
    ),
    "Floor": _plain(np.floor),
    "Gather": _gather,
    "GatherElements": lambda node, inputs, _: np.take_along_axis(
        inputs[0], _inside(inputs[1], inputs[0].shape[integer_of(node, "axis", 0)]), integer_of(node, "axis", 0)
    ),
    "GatherND": _gather_nd,
    "Greater": _plain(np.greater),
    "GreaterOrEqual": _plain(np.greater_equal),
    "Identity": lambda node, inputs, _: inputs[0],
    "IsInf": lambda node, inputs, _: None if node.attributes else np.isinf(inputs[0]),
    "IsNaN": _plain(np.isnan),
    "Less": _plain(np.less),
    "LessOrEqual": _plain(np.less_equal),
    "Max": _many(np.maximum),
    "Min": _many(np.minimum),
    "Mod": _mod,
    "Mul": _plain(np.multiply),
    "Neg": _plain(np.negative),
    "NonZero": _nonzero,
    "Not": _plain(np.logical_not),
    "Or": _plain(np.logical_or),
    "Pow": _plain(np.power, floats=False),
    "Range": _range,
    "ReduceMax": _reduced(np.max, floats=True),
    "ReduceMin": _reduced(np.min, floats=True),
    "ReduceProd": _reduced(np.prod, floats=False),
    "ReduceSum": _reduced(np.sum, floats=False),
    "Reshape": _reshape,
    "ScatterND": _scatter_nd,
    "Sign": _plain(np.sign),
    "Sqrt": _plain(np.sqrt),
    "Squeeze": _squeeze,
    "Sub": _plain(np.subtract),
    "Sum": _many(np.add),
    "Tile": lambda node, inputs, _: np.tile(inputs[0], tuple(int(i) for i in inputs[1])),
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
    "Where": _plain(np.where),
    "Xor": _plain(np.logical_xor),
}


#: Operators that write every element of their first input, in another order or shape.
REARRANGING = ("Identity", "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze")


def rearranged_by(node: ir.Node, array: Array) -> Array | None:
    """What ``node`` makes of ``array``, its first input; None where it is no such operator or depends on what is not constant."""
    if not is_standard(node, *REARRANGING):
        return None
    given = [constant_array(value) for value in node.inputs[1:] if value is not None]
    if any(a is None for a in given) or any(attribute.is_ref() for attribute in node.attributes.values()):
        return None
    numbers = [int(i) for i in np.ravel(given[0])] if given and given[0] is not None else None
    for name in ("perm", "axes", "shape"):  # attributes of older opsets, but for perm
        if name in node.attributes:
            numbers = list(node.attributes[name].as_ints())
    if node.op_type == "Identity":
        return array
    if node.op_type == "Transpose":
        return np.transpose(array, numbers)
    if node.op_type == "Flatten":
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 1
        axis += array.ndim if axis < 0 else 0
        return array.reshape(int(np.prod(array.shape[:axis], dtype=np.int64)), -1) if array.size else None
    if node.op_type == "Squeeze":
        return np.squeeze(array, tuple(numbers) if numbers else None)
    if numbers is None:
        return None
    if node.op_type == "Unsqueeze":
        return np.expand_dims(array, tuple(numbers))
    if not array.size or ("allowzero" in node.attributes and node.attributes["allowzero"].as_int()):
        return None
    return array.reshape([array.shape[i] if n == 0 else n for i, n in enumerate(numbers)])

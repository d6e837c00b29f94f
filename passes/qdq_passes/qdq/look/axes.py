"""Where the axis of a tensor goes when an operator moves its elements: scales per axis go along with it.

Per-axis, F works on slices along one axis; it gets past an operator if every slice of the output comes from one slice of the
input, in the same order and number. What is not known for certain, from shapes, attributes and constants, is not claimed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from qdq_passes.graph.sizes import Size, dims_of
from qdq_passes.graph.uses import constant_array
from qdq_passes.qdq.look.commute import ARITHMETIC, ELEMENTWISE, NORMALIZATIONS, OPEN, POOLS, REDUCTIONS
from qdq_passes.qdq.look.exact import rank_of, shape_of

#: Operators that leave every element where it is.
IN_PLACE = ELEMENTWISE | NORMALIZATIONS | {"Clip", "Dropout", "Identity", "Relu", "Trilu"}
_UNKNOWN = "shapes are not known; run infer-shapes first"


class _Lost(Exception):
    """The axis cannot be followed, for this reason."""


def axis_after(node: ir.Node, axis: int, index: int = 0) -> int | str:
    """Axis of ``node``'s outputs along which the slices of ``axis`` of its input ``index`` lie; or why there is none.

    Args:
        node: an operator of `qdq.look.commute`.
        axis: axis of the input, counted from the front; its slices have scales of their own.
        index: which of its data inputs.
    """
    if node.op_type in IN_PLACE:
        return axis
    handler = _HANDLERS.get(node.op_type)
    if handler is None:
        return f"{node.op_type} does not keep slices along axis {axis} together"
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return OPEN
    if axis < 0:
        return _UNKNOWN
    try:
        return handler(node, axis, index)
    except _Lost as lost:
        return str(lost)


def axis_before(node: ir.Node, axis: int, count: int, index: int = 0) -> int | str:
    """The axis of input ``index`` that `axis_after` sends to ``axis`` of the outputs; or why there is none.

    Args:
        node: an operator of `qdq.look.commute`.
        axis: axis of the outputs, counted from the front.
        count: its size, the number of scales.
        index: which of the data inputs.
    """
    if node.op_type in IN_PLACE:
        return axis
    value = node.inputs[index]
    dims = _sizes(value)
    if dims is None:
        return _UNKNOWN
    reason = ""
    for candidate, size in enumerate(dims):
        found = axis_after(node, candidate, index)
        if found == axis and size in (None, count):
            return candidate
        reason = found if isinstance(found, str) and not reason else reason
    return reason or f"axis {axis} of its output is no axis of {value.name if value is not None else 'its input'}"


def _sizes(value: ir.Value | None) -> list[Size] | None:
    shape = shape_of(value)
    return None if shape is None else dims_of(shape)


def _rank(node: ir.Node, index: int = 0) -> int:
    rank = rank_of(node.inputs[index])
    if rank is None and (array := constant_array(node.inputs[index])) is not None:
        return array.ndim
    if rank is None:
        raise _Lost(_UNKNOWN)
    return rank


def _ints(node: ir.Node, index: int, name: str) -> list[int] | None:
    """Integers in the constant input ``index``, or in attribute ``name`` of older opsets; None when there are none."""
    given = node.inputs[index] if index < len(node.inputs) else None
    if given is not None:
        array = constant_array(given)
        if array is None:
            raise _Lost(f"its {name} {given.name} are computed")
        return [int(i) for i in np.ravel(array)]
    attribute = node.attributes.get(name)
    return None if attribute is None else list(attribute.as_ints())


def _int(node: ir.Node, name: str, default: int) -> int:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def _from_front(axes: list[int], rank: Callable[[], int]) -> list[int]:
    return [axis % rank() if axis < 0 else axis for axis in axes]


def _untouched(node: ir.Node, axis: int, touched: list[int], verb: str) -> int:
    if axis in touched:
        raise _Lost(f"{node.op_type} {verb} axis {axis}, along which its scales lie")
    return axis


def _transpose(node: ir.Node, axis: int, index: int) -> int:
    perm = list(node.attributes["perm"].as_ints()) if "perm" in node.attributes else list(range(_rank(node)))[::-1]
    return perm.index(axis)


def _squeeze(node: ir.Node, axis: int, index: int) -> int:
    axes = _ints(node, 1, "axes")
    if not axes:
        dims = _sizes(node.inputs[0])
        if dims is None or not all(isinstance(d, int) for d in dims):
            raise _Lost(_UNKNOWN)
        axes = [i for i, d in enumerate(dims) if d == 1]
    axes = _from_front(axes, lambda: _rank(node))
    return _untouched(node, axis, axes, "drops") - sum(a < axis for a in axes)


def _unsqueeze(node: ir.Node, axis: int, index: int) -> int:
    axes = _ints(node, 1, "axes") or []
    axes = _from_front(axes, lambda: _rank(node) + len(axes))
    kept = [i for i in range(axis + len(axes) + 1) if i not in axes]
    return kept[axis]


def _reshape(node: ir.Node, axis: int, index: int) -> int:
    """The axis is still there if what stands before it has as many elements as before: then the order of slices is the same."""
    before, after = _sizes(node.inputs[0]), _sizes(node.outputs[0])
    if before is None or after is None:
        raise _Lost(_UNKNOWN)
    for place, size in enumerate(after):
        if size is not None and size == before[axis] and _same_count(before[:axis], after[:place]):
            return place
    raise _Lost(f"{node.op_type} makes {_shown(after)} of {_shown(before)}, where axis {axis} is lost")


def _same_count(one: list[int | str | None], other: list[int | str | None]) -> bool:
    """Whether both sizes multiply to the same, whatever numbers their names stand for."""
    if None in one or None in other:
        return False
    names = [sorted(d for d in dims if isinstance(d, str)) for dims in (one, other)]
    counts = [int(np.prod([d for d in dims if isinstance(d, int)], dtype=np.int64)) for dims in (one, other)]
    return names[0] == names[1] and counts[0] == counts[1]


def _shown(dims: list[int | str | None]) -> str:
    return f"[{','.join('?' if d is None else str(d) for d in dims)}]"


def _slice(node: ir.Node, axis: int, index: int) -> int:
    axes = _ints(node, 3, "axes")
    if axes is None:
        axes = list(range(len(_ints(node, 1, "starts") or [])))
    return _untouched(node, axis, _from_front(axes, lambda: _rank(node)), "cuts")


def _gather(node: ir.Node, axis: int, index: int) -> int:
    indices = node.inputs[1]
    array = constant_array(indices)
    rank = array.ndim if array is not None else rank_of(indices)
    [at] = _from_front([_int(node, "axis", 0)], lambda: _rank(node))
    _untouched(node, axis, [at], "picks from")
    if axis < at:
        return axis
    if rank is None:
        raise _Lost(_UNKNOWN)
    return axis + rank - 1


def _along(node: ir.Node, axis: int, index: int) -> int:
    """Split, Concat, GatherElements, ReverseSequence, Compress: one axis is touched."""
    if node.op_type == "ReverseSequence":
        return _untouched(node, axis, [_int(node, "time_axis", 0)], "turns around")
    if "axis" not in node.attributes and node.op_type == "Compress":
        raise _Lost("Compress without an axis flattens")
    at = _from_front([_int(node, "axis", 0)], lambda: _rank(node, index))
    _untouched(node, axis, at, {"Split": "cuts", "Concat": "joins"}.get(node.op_type, "picks from"))
    if node.op_type == "GatherElements":
        before, after = _sizes(node.inputs[0]), _sizes(node.inputs[1])
        if before is None or after is None or before[axis] is None or before[axis] != after[axis]:
            raise _Lost(_UNKNOWN if before is None or after is None else f"its indices do not cover axis {axis}")
    return axis


def _tile(node: ir.Node, axis: int, index: int) -> int:
    repeats = _ints(node, 1, "repeats") or []
    return _untouched(node, axis, [i for i, n in enumerate(repeats) if n != 1], "repeats")


def _expand(node: ir.Node, axis: int, index: int) -> int:
    """Sizes are aligned at the end; an axis with more than one scale has more than one element, and is not repeated."""
    rank = rank_of(node.outputs[0])
    if rank is None:
        wanted = constant_array(node.inputs[1])
        if wanted is None:
            raise _Lost(_UNKNOWN)
        rank = max(wanted.size, _rank(node))
    return axis + rank - _rank(node)


def _broadcast(node: ir.Node, axis: int, index: int) -> int:
    """Sizes are aligned at the end; the axis must be whole in each rounded input, which callers see by its scales."""
    ranks = [_rank(node, i) for i, value in enumerate(node.inputs) if value is not None]
    return axis + max(ranks) - _rank(node, index)


def _in_depth(node: ir.Node, axis: int, index: int) -> int:
    return _untouched(node, axis, [1, 2, 3], "moves elements along")


def _on_image(node: ir.Node, axis: int, index: int) -> int:
    if axis > 1:
        raise _Lost(f"{node.op_type} mixes elements along axis {axis}")
    return axis


def _reduce(node: ir.Node, axis: int, index: int) -> int:
    axes = _ints(node, 1, "axes")
    if not axes:
        raise _Lost(f"{node.op_type} mixes elements along axis {axis}")
    axes = _from_front(axes, lambda: _rank(node))
    _untouched(node, axis, axes, "mixes elements along")
    return axis if _int(node, "keepdims", 1) else axis - sum(a < axis for a in axes)


def _pad(node: ir.Node, axis: int, index: int) -> int:
    pads = _ints(node, 1, "pads") or []
    axes = _ints(node, 3, "axes")
    axes = list(range(len(pads) // 2)) if axes is None else _from_front(axes, lambda: _rank(node))
    touched = [a for i, a in enumerate(axes) if pads[i] or pads[i + len(axes)]]
    return _untouched(node, axis, touched, "pads")


def _resize(node: ir.Node, axis: int, index: int) -> int:
    """With a factor of 1 every output element of an axis is the input element of the same place."""
    given = (
        node.inputs[1 if node.op_type == "Upsample" or len(node.inputs) == 2 else 2] if len(node.inputs) > 1 else None
    )
    factors = constant_array(given)
    axes = list(node.attributes["axes"].as_ints()) if "axes" in node.attributes else None
    cropped = "coordinate_transformation_mode" in node.attributes and (
        node.attributes["coordinate_transformation_mode"].as_string() == "tf_crop_and_resize"
    )
    if factors is None or not factors.size or cropped:
        raise _Lost(f"{node.op_type} may change axis {axis}")
    axes = list(range(factors.size)) if axes is None else _from_front(axes, lambda: _rank(node))
    touched = [a for a, factor in zip(axes, np.ravel(factors), strict=True) if factor != 1]
    return _untouched(node, axis, touched, "resizes")


_HANDLERS: dict[str, Callable[[ir.Node, int, int], int]] = {
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    **dict.fromkeys(("Reshape", "Flatten"), _reshape),
    "Slice": _slice,
    "Gather": _gather,
    **dict.fromkeys(("Split", "Concat", "GatherElements", "ReverseSequence", "Compress"), _along),
    "Tile": _tile,
    "Expand": _expand,
    **dict.fromkeys((*ARITHMETIC, "Max", "Min", "Where"), _broadcast),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _in_depth),
    **dict.fromkeys((*POOLS, "MaxPool", "GlobalMaxPool", "GridSample"), _on_image),
    **dict.fromkeys((*REDUCTIONS, "ReduceMax", "ReduceMin"), _reduce),
    "Pad": _pad,
    "Resize": _resize,
    "Upsample": _resize,
}

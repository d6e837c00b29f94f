"""Where the samples of a batch lie in every value of a graph, as long as no operator lets one sample see another.

A dimension may hold them among others: rows [N·197, 64] have N with 197 inside, heads [12·N, 64, 64] have N with 12 outside.

images [4,3,8,8] → Conv [4,8,8,8] → Reshape [4,8,64] → Transpose [4,64,8] → Reshape [256,8] → Gemm
(axis, outside)  (0, 1)            (0, 1)              (0, 1)               (0, 1)"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.operators.kinds import ELEMENTWISE
from qdq_passes.graph.operators.qdq_ops import is_qdq
from qdq_passes.graph.operators.reductions import written_axes
from qdq_passes.graph.sizes import static_sizes
from qdq_passes.graph.uses import constant_array, in_order, integer_of, integers_of, is_standard, label

#: Operators on values of one shape, or that are broadcast.
_POINTWISE = ELEMENTWISE | {
    "And", "Cast", "Ceil", "Cos", "Dropout", "Equal", "Expand", "Floor", "Greater", "GreaterOrEqual", "Identity", "IsInf",
    "IsNaN", "Less", "LessOrEqual", "Mod", "Not", "Or", "Round", "Sign", "Xor",
}  # fmt: skip
#: Operators that have samples in the first dimension of their first input.
_SAMPLES_FIRST = frozenset(
    {
        "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "DepthToSpace", "GlobalAveragePool", "GlobalLpPool",
        "GlobalMaxPool", "GroupNormalization", "InstanceNormalization", "LRN", "LpPool", "MaxPool", "SpaceToDepth",
    }
)  # fmt: skip
_REGROUPED = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
#: Operators that look along ``axis`` alone, with its default; and those that look along it and all behind.
_ALONG = {"Softmax": -1, "LogSoftmax": -1, "Hardmax": -1, "LpNormalization": -1, "Split": 0}
_BEHIND = {"LayerNormalization": -1, "RMSNormalization": -1}
#: First opset in which Softmax looks along one axis.
_SOFTMAX = 13


@dataclass(frozen=True)
class Spot:
    """Where the samples of a value lie.

    Args:
        axis: the dimension that holds them.
        outside: how many things of that dimension stand around them: it is outside × samples × others.
    """

    axis: int
    outside: int = 1


def batch_spots(graph: ir.Graph, samples: int, inputs: Sequence[ir.Value], opset: int) -> dict[ir.Value, Spot]:
    """The spot of each value that hangs on ``inputs``, which begin with ``samples``.

    Raises:
        UnsupportedError: an operator lets samples meet, or it is not known that it does not; its node is named.
    """
    found = dict.fromkeys(inputs, Spot(0))
    for node in in_order(graph):
        spots = {index: found[value] for index, value in enumerate(node.inputs) if value is not None and value in found}
        if not spots:
            continue
        for written in node.outputs:
            spot = _written(node, spots, written, samples, opset)
            sizes = static_sizes(written)
            if spot is None or sizes is None or sizes[spot.axis] % (samples * spot.outside):
                raise UnsupportedError(f"{node.op_type} may let samples meet", where=label(node))
            found[written] = spot
    return found


def _written(node: ir.Node, spots: dict[int, Spot], written: ir.Value, samples: int, opset: int) -> Spot | None:
    """The spot of an output of ``node``; None where none is known."""
    before = [static_sizes(value) for value in node.inputs]
    after, spot, first = static_sizes(written), next(iter(spots.values())), before[next(iter(spots))]
    if after is None or first is None or any(before[index] is None for index in spots):
        return None
    if is_qdq(node):
        per_axis = any(sizes is not None and math.prod(sizes) > 1 for sizes in before[1:])
        return (
            spot
            if set(spots) == {0} and not (per_axis and integer_of(node, "axis", 1) % len(first) == spot.axis)
            else None
        )
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type in _POINTWISE:
        moved = {Spot(s.axis + len(after) - len(before[i] or ()), s.outside) for i, s in spots.items()}
        return next(iter(moved)) if len(moved) == 1 else None
    if is_standard(node, *_REGROUPED):
        return regrouped(first, after, spot, samples) if set(spots) == {0} else None
    if is_standard(node, "MatMul", "Gemm"):
        return _product(node, spots, before, after)
    if is_standard(node, "Concat"):
        same = len(set(spots.values())) == 1
        return spot if same and integer_of(node, "axis", 0) % len(first) != spot.axis else None
    if is_standard(node, "Gather") and set(spots) == {1}:  # rows of a table, which the samples choose
        along = integer_of(node, "axis", 0) % len(before[0] or [0])
        return Spot(along + spot.axis, spot.outside)
    return _alone(node, spot, first, opset) if set(spots) == {0} else None


def regrouped(before: Sequence[int], after: Sequence[int], spot: Spot, samples: int) -> Spot | None:
    """Where the samples lie in ``after``, the same elements in other dimensions; None where a dimension cuts through them."""
    outer = math.prod(before[: spot.axis]) * spot.outside
    for axis, size in enumerate(after):
        above = math.prod(after[:axis])
        if above and outer % above == 0 and size and size % (outer // above * samples) == 0:
            return Spot(axis, outer // above)
    return None


def _product(
    node: ir.Node, spots: dict[int, Spot], before: Sequence[list[int] | None], after: Sequence[int]
) -> Spot | None:
    """Of a product, whose last dimension on the left, and last but one on the right, is summed over."""
    moved = set()
    for index, spot in spots.items():
        sizes = before[index]
        assert sizes is not None
        if index > 1:
            moved.add(Spot(spot.axis + len(after) - len(sizes), spot.outside))
            continue
        turned = node.op_type == "Gemm" and bool(integer_of(node, ("transA", "transB")[index], 0))
        summed = len(sizes) - (1 if (index == 0) != turned else 2)
        if len(sizes) < 2 or spot.axis == summed:
            return None
        axis = 1 - summed if node.op_type == "Gemm" else spot.axis + len(after) - len(sizes)
        moved.add(Spot((0 if index == 0 else 1) if node.op_type == "Gemm" else axis, spot.outside))
    return next(iter(moved)) if len(moved) == 1 else None


def _alone(node: ir.Node, spot: Spot, sizes: Sequence[int], opset: int) -> Spot | None:
    """Of an operator whose first input alone has samples."""
    rank = len(sizes)
    if node.op_type in _SAMPLES_FIRST:
        return spot if spot.axis == 0 else None
    if is_standard(node, "Transpose"):
        order = integers_of(node, "perm") or list(range(rank))[::-1]
        return Spot(order.index(spot.axis), spot.outside)
    if node.op_type in _ALONG and not (
        opset < _SOFTMAX and node.op_type != "LpNormalization" and node.op_type != "Split"
    ):
        return spot if integer_of(node, "axis", _ALONG[node.op_type]) % rank != spot.axis else None
    if node.op_type in _BEHIND:
        return spot if integer_of(node, "axis", _BEHIND[node.op_type]) % rank > spot.axis else None
    if node.op_type.startswith("Reduce"):
        return _reduced(node, spot, rank)
    if is_standard(node, "Slice", "Pad", "Resize"):
        return spot if _leaves(node, spot.axis, sizes) else None
    if is_standard(node, "Gather"):
        indices, along = static_sizes(node.inputs[1]), integer_of(node, "axis", 0) % rank
        if indices is None or along == spot.axis:
            return None
        return spot if spot.axis < along else Spot(spot.axis + len(indices) - 1, spot.outside)
    return None


def _reduced(node: ir.Node, spot: Spot, rank: int) -> Spot | None:
    written = written_axes(node)
    axes = {axis % rank for axis in written or ()}
    if not axes or spot.axis in axes:
        return None
    return spot if integer_of(node, "keepdims", 1) else Spot(spot.axis - sum(a < spot.axis for a in axes), spot.outside)


def _leaves(node: ir.Node, axis: int, sizes: Sequence[int]) -> bool:
    """Whether a Slice, Pad or Resize leaves the dimension ``axis`` as it is."""
    given = [None if value is None else constant_array(value) for value in node.inputs]
    if is_standard(node, "Slice"):
        if len(given) < 4 or given[3] is None:
            return False
        return axis not in {int(a) % len(sizes) for a in given[3].ravel()}
    if is_standard(node, "Pad"):
        pads = given[1] if len(given) == 2 or (len(given) == 3) else None
        return pads is not None and pads.size == 2 * len(sizes) and not (pads[axis] or pads[len(sizes) + axis])
    written = static_sizes(node.outputs[0])
    return written is not None and written[axis] == sizes[axis]

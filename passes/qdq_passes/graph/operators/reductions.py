"""Means, sums and norms along axes, in the forms exporters write: with or without the reduced axes, and pooled.

Windows: what a pool or a mean averages over, and the padding that operators leave to ``auto_pad`` or ``output_shape``, in
elements before and behind each spatial axis.

With input size i, stride s, dilation d, kernel k = d·(kernel − 1) + 1:

    SAME (Conv, pools)   total = max((⌈i/s⌉ − 1)·s + k − i, 0), the odd one behind for SAME_UPPER, before for SAME_LOWER
    VALID                total = 0
    ConvTranspose        total = s·(i − 1) + output_padding + k − o, o = s·i for SAME, else output_shape; the odd one behind
                         for SAME_UPPER, before otherwise

Source: ONNX's operator pages, checked against onnxruntime 1.31 on every combination of small sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.arithmetic import ARITHMETIC
from qdq_passes.graph.operators.qdq_ops import float_source
from qdq_passes.graph.uses import constant_array, integer_of, integers_of, is_standard


def written_axes(node: ir.Node) -> list[int] | None:
    """The axes of a ReduceMean or its like as they are written, an attribute in older opsets and an input in newer ones; none of
    them where the node gives none, which means all. None where they are computed, or where giving none means that nothing is
    reduced."""
    attribute = node.attributes.get("axes")
    if attribute is not None:
        return None if attribute.is_ref() else list(attribute.as_ints())
    given = node.inputs[1] if len(node.inputs) > 1 else None
    array = constant_array(given) if given is not None else None
    if given is not None and array is None:
        return None
    axes = [] if array is None else [int(axis) for axis in array.ravel()]
    return None if not axes and integer_of(node, "noop_with_empty_axes", 0) else axes


def averaged_axes(node: ir.Node, rank: int) -> list[int] | None:
    """The axes, 0 ≤ axis < ``rank``, that a GlobalAveragePool or a ReduceMean averages over; None where they cannot be told."""
    if node.op_type == "GlobalAveragePool":
        return list(range(2, rank))
    written = written_axes(node)
    if written is None or not all(-rank <= axis < rank for axis in written):
        return None
    return sorted({axis % rank for axis in written}) if written else list(range(rank))


def averaged_sizes(node: ir.Node) -> list[int] | None:
    """Sizes of what an AveragePool, GlobalAveragePool or ReduceMean averages over, none of them 0; None where the file does not
    tell them."""
    if node.op_type == "AveragePool":
        return kernel_of(node) or None
    source = node.inputs[0]
    dims = list(source.shape) if source is not None and source.shape is not None else []
    axes = averaged_axes(node, len(dims)) if dims else None
    sizes = [size for axis in axes or () if isinstance(size := dims[axis], int) and size > 0]
    return sizes if axes and len(sizes) == len(axes) else None


def is_graph_end(value: ir.Value) -> bool:
    """Whether ``value``, or the float value before its pair, is an input or output of a graph: its shape stands there, not among
    those of the values in between, which are all that some tools look at."""
    before = float_source(value)
    ends = [value, before] if before is not None else [value]
    return any(end.is_graph_input() or end.is_graph_output() for end in ends)


def kernel_of(node: ir.Node) -> list[int]:
    """The window of an AveragePool or MaxPool; empty where an attribute of a function gives it."""
    return integers_of(node, "kernel_shape")


def extent(kernel: int, dilation: int) -> int:
    """Elements from the first to the last that a kernel of ``kernel`` taps touches."""
    return dilation * (kernel - 1) + 1


def same_total(size: int | None, kernel: int, stride: int, dilation: int) -> int | None:
    """Padding of SAME in all along one axis, below 0 where a stride leaves elements out; None where an unknown size decides."""
    if stride == 1:
        return extent(kernel, dilation) - 1
    return None if size is None else (-(-size // stride) - 1) * stride + extent(kernel, dilation) - size


def transposed_total(size: int, kernel: int, stride: int, dilation: int, output_padding: int, wanted: int) -> int:
    """Padding in all along one axis of a ConvTranspose that writes ``wanted`` elements; below 0 where there are not as many."""
    return stride * (size - 1) + output_padding + extent(kernel, dilation) - wanted


def split_evenly(totals: Sequence[int], *, odd_behind: bool) -> list[int]:
    """Totals per axis as the attribute ``pads``: all that stand before, then all behind.

    >>> split_evenly([3, 2], odd_behind=True), split_evenly([3, 2], odd_behind=False)
    ([1, 1, 2, 1], [2, 1, 1, 1])
    """
    before = [total // 2 if odd_behind else total - total // 2 for total in totals]
    return [*before, *(total - first for total, first in zip(totals, before, strict=True))]


Kind = Literal["mean", "sum", "squares", "norm"]
#: What is computed of each row: Σx/n, Σx, Σx², √Σx².
KINDS: dict[str, Kind] = {
    "ReduceMean": "mean", "GlobalAveragePool": "mean", "ReduceSum": "sum", "ReduceSumSquare": "squares", "ReduceL2": "norm",
}  # fmt: skip
#: Operators that put reduced axes back.
_RESTORING = ("Expand", "Reshape", "Unsqueeze")
#: Operators whose output has as many axes as the input that has most of them, and how many are looked through.
_ELEMENTWISE, _FARTHEST = ("Abs", *ARITHMETIC, "Sqrt"), 8


@dataclass(frozen=True)
class Reduction:
    """One value for each row of another value; the reduced axes stay, with size 1.

    Args:
        kind: what is computed.
        source: of what.
        axes: reduced axes, sorted; counted from the end where the rank is known or they were written so.
    """

    kind: Kind
    source: ir.Value
    axes: tuple[int, ...]


def reduction_of(value: ir.Value | None) -> Reduction | None:
    """The reduction that ``value`` is, axes kept; None where it is none, or its axes cannot be told."""
    node, restored = value.producer() if value is not None else None, False
    while node is not None and is_standard(node, *_RESTORING) and node.inputs[0] is not None:
        node, restored = node.inputs[0].producer(), True
    if node is None or not is_standard(node, *KINDS) or value is None or node.inputs[0] is None:
        return None
    source = node.inputs[0]
    rank = rank_of(source)
    axes = _axes_of(node, rank)
    if axes is None:
        return None
    kept = node.op_type == "GlobalAveragePool" or bool(integer_of(node, "keepdims", 1))
    if restored or not kept:
        return Reduction(KINDS[node.op_type], source, axes) if _is_restored(value, source, axes) else None
    return Reduction(KINDS[node.op_type], source, axes)


def rank_of(value: ir.Value) -> int | None:
    """Number of axes of ``value``, from its shape or from what a few elementwise nodes make it of; None when unknown."""
    return _rank(value, _FARTHEST)


def has_shape_of(value: ir.Value, other: ir.Value) -> bool:
    """Whether both shapes are known and the same, symbols by name."""
    if value.shape is None or other.shape is None or value.shape.rank() != other.shape.rank():
        return False
    return all(_is_same(mine, theirs) for mine, theirs in zip(value.shape, other.shape, strict=True))


def _rank(value: ir.Value, steps: int) -> int | None:
    if value.shape is not None or steps == 0:
        return None if value.shape is None else value.shape.rank()
    node = value.producer()
    if node is None or not is_standard(node, *_ELEMENTWISE, *KINDS):
        return None
    if node.op_type in KINDS and not (node.op_type == "GlobalAveragePool" or integer_of(node, "keepdims", 1)):
        return None
    inputs = node.inputs[:1] if node.op_type in KINDS else node.inputs
    ranks = [None if v is None else _rank(v, steps - 1) for v in inputs]
    return max((r for r in ranks if r is not None), default=None) if None not in ranks else None


def _axes_of(node: ir.Node, rank: int | None) -> tuple[int, ...] | None:
    if node.op_type == "GlobalAveragePool":
        return None if rank is None else tuple(range(2 - rank, 0))
    axes = written_axes(node)
    if not axes:  # computed, or all: along no axis
        return None
    if rank is not None:
        axes = [axis - rank if axis >= 0 else axis for axis in axes]
    return tuple(sorted(axes))


def _is_restored(value: ir.Value, source: ir.Value, axes: tuple[int, ...]) -> bool:
    """Whether ``value`` has the shape of ``source`` with size 1 along ``axes``: then no element has moved."""
    if value.shape is None or source.shape is None or value.shape.rank() != source.shape.rank():
        return False
    pairs = list(zip(value.shape, source.shape, strict=True))
    reduced = {axis % len(pairs) for axis in axes}
    if any(pairs[axis][0] != 1 for axis in reduced):
        return False
    return all(_is_same(mine, theirs) for axis, (mine, theirs) in enumerate(pairs) if axis not in reduced)


def _is_same(mine: int | ir.SymbolicDim, theirs: int | ir.SymbolicDim) -> bool:
    if isinstance(mine, int | np.integer) or isinstance(theirs, int | np.integer):
        return mine == theirs
    return mine.value is not None and mine.value == theirs.value

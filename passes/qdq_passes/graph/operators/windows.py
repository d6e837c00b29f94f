"""Windows: what a pool or a mean averages over, and the padding that operators leave to ``auto_pad`` or ``output_shape``, in
elements before and behind each spatial axis.

With input size i, stride s, dilation d, kernel k = d·(kernel − 1) + 1:

    SAME (Conv, pools)   total = max((⌈i/s⌉ − 1)·s + k − i, 0), the odd one behind for SAME_UPPER, before for SAME_LOWER
    VALID                total = 0
    ConvTranspose        total = s·(i − 1) + output_padding + k − o, o = s·i for SAME, else output_shape; the odd one behind
                         for SAME_UPPER, before otherwise

Source: ONNX's operator pages, checked against onnxruntime 1.31 on every combination of small sizes."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from qdq_passes.graph.operators.qdq_ops import float_source
from qdq_passes.graph.uses import constant_array, integer_of, integers_of


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

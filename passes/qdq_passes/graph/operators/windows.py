"""What a pool or a mean averages over."""

from __future__ import annotations

import onnx_ir as ir

from qdq_passes.graph.attributes import integer_of, integers_of
from qdq_passes.graph.operators.qdq_ops import float_source
from qdq_passes.graph.uses import constant_array


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

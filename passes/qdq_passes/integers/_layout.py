"""Channels-last operators of com.microsoft between Transpose nodes; part of convert-qoperators."""

from __future__ import annotations

import onnx_ir as ir

from qdq_passes.graph.edit import graph_of, make_node
from qdq_passes.graph.operators.qoperators import given
from qdq_passes.integers.edit.flow import Floats, float_name_of


def rank_of(node: ir.Node) -> int | None:
    """Number of axes of what ``node`` reads and writes: of its input, of a Conv's weight, or by its kernel; None when unknown."""
    source, weight = node.inputs[0], given(node, 3)
    if source is not None and source.shape is not None:
        return len(source.shape)
    if node.op_type == "QLinearConv" and weight is not None and weight.shape is not None:
        return len(weight.shape)
    return len(node.attributes["kernel_shape"].as_ints()) + 2 if "kernel_shape" in node.attributes else None


def to_channels_first(node: ir.Node, value: ir.Value, floats: Floats) -> ir.Value:
    """``value`` [N, …, C] as [N, C, …], by a Transpose before ``node``, whose rank is known."""
    rank = rank_of(node)
    assert rank is not None
    return _transpose(node, value, [0, rank - 1, *range(1, rank - 1)], floats)


def to_channels_last(node: ir.Node, value: ir.Value, floats: Floats) -> ir.Value:
    """``value`` [N, C, …] as [N, …, C], the layout of the output of ``node``, by a Transpose before ``node``."""
    rank = rank_of(node)
    assert rank is not None
    return _transpose(node, value, [0, *range(2, rank), 1], floats)


def max_pool_between_transposes(node: ir.Node, floats: Floats) -> ir.Node:
    """The nodes that do what the NhwcMaxPool ``node`` does, put before it; the last one, which writes the result."""
    source = node.inputs[0]
    assert source is not None
    first = to_channels_first(node, source, floats)
    pool = make_node(
        "MaxPool", [first], name=float_name_of(node, "MaxPool", floats.namer), attributes=node.attributes,
        output=floats.namer.fresh(f"{node.outputs[0].name}_float"), stands_for=[node],
    )  # fmt: skip
    pool.outputs[0].type = source.type
    graph_of(node).insert_before(node, pool)
    last = to_channels_last(node, pool.outputs[0], floats).producer()
    assert last is not None
    return last


def _transpose(node: ir.Node, value: ir.Value, perm: list[int], floats: Floats) -> ir.Value:
    new = make_node(
        "Transpose", [value], name=floats.namer.fresh(f"{node.name}_Transpose"), stands_for=[node],
        output=floats.namer.fresh(f"{value.name}_transposed"), attributes=[ir.AttrInt64s("perm", perm)],
    )  # fmt: skip
    new.outputs[0].type = value.type
    new.outputs[0].shape = ir.Shape([value.shape[axis] if value.shape is not None else None for axis in perm])
    graph_of(node).insert_before(node, new)
    return new.outputs[0]

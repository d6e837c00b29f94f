"""Operators that move integers, between a DequantizeLinear and a QuantizeLinear, and channels-last operators of com.microsoft
between Transpose nodes; part of convert-qoperators."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from qdq_passes.core.base import Change, skip
from qdq_passes.graph.edit import drop_unread, graph_of, make_node, new_constant, remove
from qdq_passes.graph.operators.qdq_ops import is_dynamic_quantize, is_quantize
from qdq_passes.graph.operators.qoperators import Parameters, form_of, storage_type
from qdq_passes.graph.uses import constant_array, input_at, is_constant, label
from qdq_passes.integers.edit.flow import Floats, float_name_of, take_place, why_not
from qdq_passes.integers.look.integer_flow import (
    QDQ_DOMAINS,
    READS_ONLY,
    is_per_tensor,
    moved_inputs,
    moved_outputs,
    same,
)


def rank_of(node: ir.Node) -> int | None:
    """Number of axes of what ``node`` reads and writes: of its input, of a Conv's weight, or by its kernel; None when unknown."""
    source, weight = node.inputs[0], input_at(node, 3)
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


def convert_movement(node: ir.Node, floats: Floats, flow: dict[ir.Value, Parameters]) -> Iterator[Change]:
    """``MaxPool(x_q)`` → ``Q(MaxPool(DQ(x_q)))``, the node itself stays; ``flow`` then knows the new integers. Integers that come
    from outside of the graph keep being moved as integers."""
    data = [value for k in moved_inputs(node) if (value := node.inputs[k]) is not None]
    known = [flow[value] for value in data if value in flow]
    if not all(_is_quantized_here(value) for value in data):
        return
    if len(known) < len(data):
        if any(value in flow for value in node.outputs):
            yield skip(node, "moves integers that have more than one scale")
        return
    reason = _why_not(node, data, known)
    if reason is not None:
        yield skip(node, reason)
        return
    dtype = storage_type(data[0], known[0])
    for k in moved_inputs(node):
        value = node.inputs[k]
        if value is not None:
            node.replace_input_with(k, floats.of(node, value, flow[value]))
    if node.op_type == "Pad" and _mode(node) == "constant":
        node.resize_inputs(max(len(node.inputs), 3))
        old_filler = node.inputs[2]
        node.replace_input_with(2, _pad_value(node, known[0], floats))
        drop_unread([old_filler])
    moved = moved_outputs(node)
    yield Change("edit", label(node), "moves floats" if moved else "reads floats")
    if node.op_type == "NhwcMaxPool":
        pool = max_pool_between_transposes(node, floats)
        old = node.outputs[0]
        take_place(old, pool.outputs[0], floats.namer)
        yield from remove(node, "MaxPool has its channels in front")
        moved, node = [pool.outputs[0]], pool
        flow[pool.outputs[0]] = flow.get(old, known[0])
    for value in moved:
        parameters = flow.get(value, known[0])
        integers = floats.requantize(value, parameters, node, dtype)
        flow[integers] = parameters


def _is_quantized_here(value: ir.Value) -> bool:
    producer = value.producer()
    if producer is None or is_constant(value):
        return is_constant(value)
    is_q = is_quantize(producer) and producer.domain in QDQ_DOMAINS
    return is_q or is_dynamic_quantize(producer) or form_of(producer) is not None


def _why_not(node: ir.Node, data: list[ir.Value], known: list[Parameters]) -> str | None:
    if not all(same(known[0], other) for other in known):
        return "its inputs have different scales or zero points"
    if node.op_type not in ("Transpose", "Identity", *READS_ONLY) and not all(is_per_tensor(p) for p in known):
        return "moves integers that have more than one scale"
    if any(p.block_size for p in known):
        return "moves integers that have a scale per block"
    if node.op_type == "NhwcMaxPool" and rank_of(node) is None:
        return "the rank of its input is not known"
    if node.op_type == "Pad" and _mode(node) == "constant":
        if "value" in node.attributes or "pads" in node.attributes:
            return "pads by attributes, as before opset 11"
        constant = input_at(node, 2)
        if (constant is not None and not is_constant(constant)) or known[0].scales is None:
            return "what it pads with is computed at run time"
    return next((r for v, p in zip(data, known, strict=True) if (r := why_not(v, p)) is not None), None)


def _mode(node: ir.Node) -> str:
    return node.attributes["mode"].as_string() if "mode" in node.attributes else "constant"


def _pad_value(node: ir.Node, parameters: Parameters, floats: Floats) -> ir.Value | None:
    """The float that quantizes to the integer that Pad fills with: (q − z)·s. Left out, q is 0."""
    if _mode(node) != "constant":
        return None
    filled = constant_array(input_at(node, 2))
    points, scales = constant_array(parameters.zero_point), parameters.scales
    assert scales is not None
    q = 0 if filled is None else int(filled.reshape(-1)[0])
    z = 0 if points is None else int(points.reshape(-1)[0])
    value = np.asarray((q - z) * scales.reshape(-1)[0], scales.dtype)
    return new_constant(graph_of(node), floats.namer, f"{node.name or 'Pad'}_value", value, [node])

"""Gradients of sums and means, of softmax, of norms and of pools."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.operators.qdq_ops import opset_at
from qdq_passes.graph.uses import constant_array, float_of, integer_of, integers_of, label

from qdqtool.runtime.gradients.backward import Backward, rule
from qdqtool.runtime.gradients.windows import Windows

Given = Sequence[ir.Value | None]


def _axes(b: Backward, node: ir.Node) -> list[int]:
    """The axes that are reduced, counted from the first."""
    rank, found = len(b.shape(node.inputs[0])), list(integers_of(node, "axes"))
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        array = constant_array(node.inputs[1])
        if array is None:
            raise UnsupportedError("its axes are computed", where=label(node))
        found = [int(axis) for axis in array.ravel()]
    if not found and integer_of(node, "noop_with_empty_axes", 0):
        return []
    return [axis % rank for axis in found] or list(range(rank))


def _kept(b: Backward, node: ir.Node, value: ir.Value | None) -> ir.Value:
    """``value`` of the shape of the output, with the axes that were reduced."""
    assert value is not None
    axes, shape = _axes(b, node), b.shape(node.inputs[0])
    return b.reshaped(value, [1 if axis in axes else size for axis, size in enumerate(shape)])


@rule("ReduceSum", "ReduceMean")
def _reduced(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    if index:
        return None
    shape = b.shape(node.inputs[0])
    spread = b("Expand", _kept(b, node, given[0]), b.constant(list(shape)))
    count = math.prod(shape[axis] for axis in _axes(b, node)) if node.op_type == "ReduceMean" else 1
    return spread if count == 1 else b("Mul", spread, b.number(1 / count))


@rule("ReduceMax", "ReduceMin")
def _extreme(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    if index:
        return None
    return _shared(b, node.inputs[0], _kept(b, node, node.outputs[0]), _kept(b, node, given[0]), _axes(b, node))


@rule("GlobalAveragePool")
def _global(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    shape = b.shape(node.inputs[0])
    return b("Mul", b("Expand", given[0], b.constant(list(shape))), b.number(1 / math.prod(shape[2:])))


@rule("GlobalMaxPool")
def _global_max(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    assert given[0] is not None
    return _shared(b, node.inputs[0], node.outputs[0], given[0], range(2, len(b.shape(node.inputs[0]))))


def _shared(b: Backward, x: ir.Value | None, extreme: ir.Value, gradient: ir.Value, axes: Sequence[int]) -> ir.Value:
    """``gradient`` shared by the numbers that are the ``extreme`` of their axes."""
    chosen = b("Cast", b("Equal", x, extreme), to=int(ir.DataType.FLOAT))
    return b("Mul", chosen, b("Div", gradient, b.total(chosen, axes)))


@rule("Softmax", "LogSoftmax")
def _softmax(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    y, dy, rank = node.outputs[0], given[0], len(b.shape(node.inputs[0]))
    assert dy is not None
    axes = [integer_of(node, "axis", -1) % rank]
    if opset_at(b.model, node) < 13:
        axes = list(range(integer_of(node, "axis", 1) % rank, rank))
    if node.op_type == "LogSoftmax":
        return b("Sub", dy, b("Mul", b("Exp", y), b.total(dy, axes)))
    return b("Mul", y, b("Sub", dy, b.total(b("Mul", dy, y), axes)))


def _standardized(
    b: Backward, x: ir.Value | None, axes: Sequence[int], epsilon: float, *, centred: bool = True
) -> tuple[ir.Value, ir.Value]:
    """``x`` less its mean over ``axes``, divided by its deviation; and what it was multiplied by."""
    assert x is not None
    off = b("Sub", x, b.mean(x, axes)) if centred else x
    inverse = b("Reciprocal", b("Sqrt", b("Add", b.mean(b("Mul", off, off), axes), b.number(epsilon))))
    return b("Mul", off, inverse), inverse


def _norm(
    b: Backward, x: ir.Value | None, scaled: ir.Value, axes: Sequence[int], epsilon: float, *, centred: bool = True
) -> ir.Value:
    """The gradient of x, from that of what x is standardized to."""
    unit, inverse = _standardized(b, x, axes, epsilon, centred=centred)
    rest = b("Sub", scaled, b("Mul", unit, b.mean(b("Mul", scaled, unit), axes)))
    return b("Mul", inverse, b("Sub", rest, b.mean(scaled, axes)) if centred else rest)


@rule("LayerNormalization", "RMSNormalization")
def _layer_norm(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    shape, dy, centred = b.shape(node.inputs[0]), given[0], node.op_type == "LayerNormalization"
    assert dy is not None
    axes = list(range(integer_of(node, "axis", -1) % len(shape), len(shape)))
    epsilon = float_of(node, "epsilon", 1e-5)
    if index == 0:
        return _norm(b, node.inputs[0], b("Mul", dy, node.inputs[1]), axes, epsilon, centred=centred)
    if index == 1:
        dy = b("Mul", dy, _standardized(b, node.inputs[0], axes, epsilon, centred=centred)[0])
    return b.fitted(dy, shape, b.shape(node.inputs[index]))


@rule("InstanceNormalization")
def _instance_norm(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    shape = b.shape(node.inputs[0])
    if index:
        raise UnsupportedError("no gradient of its scale is known", where=label(node))
    scale = b.reshaped(_value(node, 1), (1, -1, *[1] * (len(shape) - 2)))
    axes = list(range(2, len(shape)))
    return _norm(b, node.inputs[0], b("Mul", given[0], scale), axes, float_of(node, "epsilon", 1e-5))


@rule("LpNormalization")
def _unit(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    if integer_of(node, "p", 2) != 2:
        raise UnsupportedError("no gradient of it is known but with p=2", where=label(node))
    axes, y = [integer_of(node, "axis", -1) % len(b.shape(node.inputs[0]))], node.outputs[0]
    length = b("Sqrt", b.total(b("Mul", node.inputs[0], node.inputs[0]), axes))
    rest = b("Sub", given[0], b("Mul", y, b.total(b("Mul", given[0], y), axes)))
    return b.where(b("Greater", length, b.number(0.0)), b("Div", rest, length))


@rule("BatchNormalization")
def _batch_norm(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    if index:
        raise UnsupportedError("no gradient of its scale is known", where=label(node))
    scale, variance = constant_array(node.inputs[1]), constant_array(node.inputs[4])
    if scale is None or variance is None:
        raise UnsupportedError("its scale or variance is computed", where=label(node))
    slope = np.asarray(scale / np.sqrt(variance + float_of(node, "epsilon", 1e-5)), np.float32)
    return b("Mul", given[0], b.constant(slope.reshape(1, -1, *[1] * (len(b.shape(node.inputs[0])) - 2))))


@rule("MaxPool")
def _max_pool(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    shape, dy = b.shape(node.inputs[0]), given[0]
    assert dy is not None
    attributes = {name: attribute.value for name, attribute in node.attributes.items() if name != "storage_order"}
    _, places = b.several("MaxPool", 2, node.inputs[0], **attributes)
    zeros = b.constant(np.zeros(math.prod(shape), np.float32))
    flat = b("ScatterElements", zeros, b.reshaped(places, (-1,)), b.reshaped(dy, (-1,)), reduction="add")
    return b.reshaped(flat, shape)


@rule("AveragePool")
def _average_pool(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    """Each output spread over its window, divided by the numbers that it is the mean of."""
    shape, result = b.shape(node.inputs[0]), b.shape(node.outputs[0])
    spatial, windows = len(shape) - 2, Windows(node, shape[2:], result[2:], integers_of(node, "kernel_shape"))
    counted = np.ones([1, 1, *[1] * spatial], np.float32)
    for axis, (size, out, begin, end) in enumerate(
        zip(shape[2:], result[2:], windows.begins, windows.ends, strict=True)
    ):
        low, high = (-begin, size + end) if integer_of(node, "count_include_pad", 0) else (0, size)
        within = np.arange(windows.kernel[axis]) * windows.dilations[axis] - begin
        taps = np.arange(out)[:, None] * windows.strides[axis] + within
        along = [1] * (2 + spatial)
        along[2 + axis] = out
        counted = counted * ((taps >= low) & (taps < high)).sum(axis=1).reshape(along)
    shared = b("Div", given[0], b.constant(np.maximum(counted, 1).astype(np.float32)))
    weight = b.constant(np.ones([shape[1], 1, *windows.kernel], np.float32))
    beyond = [end - rest for end, rest in zip(windows.ends, windows.rest, strict=True)]
    return b(
        "ConvTranspose", shared, weight, strides=windows.strides, dilations=windows.dilations, group=shape[1],
        pads=[*windows.begins, *(max(end, 0) for end in beyond)], output_padding=[max(-end, 0) for end in beyond],
    )  # fmt: skip


def _value(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    return value

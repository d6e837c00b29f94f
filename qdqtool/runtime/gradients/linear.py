"""Gradients of products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.uses import float_of, integer_of, label

from qdqtool.runtime.gradients.backward import Backward, rule
from qdqtool.runtime.gradients.windows import Windows

Given = Sequence[ir.Value | None]


def _turned(b: Backward, value: ir.Value | None, rank: int) -> ir.Value:
    """``value`` with its last two axes exchanged."""
    assert value is not None
    return b.transposed(value, [*range(rank - 2), rank - 1, rank - 2])


@rule("MatMul")
def _matmul(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    (left, right), dy = (b.shape(value) for value in node.inputs[:2]), given[0]
    if len(left) < 2 or len(right) < 2:
        raise UnsupportedError("no gradient of a product with a vector is known", where=label(node))
    result = b.shape(node.outputs[0])
    if index == 0:
        made = b("MatMul", dy, _turned(b, node.inputs[1], len(right)))
        return b.fitted(made, (*result[:-1], left[-1]), left)
    assert dy is not None
    assert node.inputs[0] is not None
    if len(right) == 2:  # one product over all rows
        rows = b.reshaped(node.inputs[0], (-1, left[-1]))
        return b("Gemm", rows, b.reshaped(dy, (-1, right[-1])), transA=1)
    return b.fitted(b("MatMul", _turned(b, node.inputs[0], len(left)), dy), (*result[:-2], *right[-2:]), right)


@rule("Gemm")
def _gemm(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    dy, alpha = given[0], float_of(node, "alpha", 1.0)
    turned = [integer_of(node, name, 0) for name in ("transA", "transB")]
    if index == 0:
        pair = (node.inputs[1], dy, turned[1], 1) if turned[0] else (dy, node.inputs[1], 0, 1 - turned[1])
    elif index == 1:
        pair = (dy, node.inputs[0], 1, turned[0]) if turned[1] else (node.inputs[0], dy, 1 - turned[0], 0)
    else:
        assert dy is not None
        scaled = b("Mul", dy, b.number(float_of(node, "beta", 1.0)))
        return b.fitted(scaled, b.shape(node.outputs[0]), b.shape(node.inputs[2]))
    return b("Gemm", pair[0], pair[1], alpha=alpha, transA=pair[2], transB=pair[3])


@rule("Conv")
def _conv(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    shape, result, weight, dy = *(b.shape(v) for v in (node.inputs[0], node.outputs[0], node.inputs[1])), given[0]
    if index == 2:
        return _bias_gradient(b, dy, len(shape))
    windows = Windows(node, shape[2:], result[2:], weight[2:])
    if index == 1:
        return _weight_gradient(b, windows, node.inputs[0], shape, dy, weight)
    return b("ConvTranspose", dy, node.inputs[1], **windows.attributes, output_padding=windows.rest)


@rule("ConvTranspose")
def _transposed(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    shape, result, weight, dy = *(b.shape(v) for v in (node.inputs[0], node.outputs[0], node.inputs[1])), given[0]
    if index == 2:
        return _bias_gradient(b, dy, len(shape))
    windows = Windows(node, result[2:], shape[2:], weight[2:])
    if index == 1:
        return _weight_gradient(b, windows, dy, result, node.inputs[0], weight)
    return b("Conv", dy, node.inputs[1], **windows.attributes)


def _bias_gradient(b: Backward, dy: ir.Value | None, rank: int) -> ir.Value:
    assert dy is not None
    return b.total(dy, [0, *range(2, rank)], keep=False)


def _weight_gradient(
    b: Backward,
    windows: Windows,
    data: ir.Value | None,
    shape: Sequence[int],
    dy: ir.Value | None,
    weight: Sequence[int],
) -> ir.Value:
    """Of a weight [M, C/G, …] that makes ``dy`` [N, M, …] of ``data`` [N, C, …]: the correlation of both, with the samples where
    channels are, groups as groups."""
    assert data is not None
    assert dy is not None
    groups, (count, channels, *sizes), rank = windows.groups, shape, len(shape)
    apart = b.reshaped(data, (count, groups, channels // groups, *sizes))
    turned = b.transposed(apart, [2, 1, 0, *range(3, rank + 1)])
    inputs = b.reshaped(turned, (channels // groups, groups * count, *sizes))
    kernel = b.transposed(dy, [1, 0, *range(2, rank)])
    made = b(
        "Conv", inputs, kernel, strides=windows.dilations, dilations=windows.strides,
        pads=[*windows.begins, *windows.ends], group=groups,
    )  # fmt: skip
    axes = list(range(2, rank))
    cut = b("Slice", made, b.constant([0] * len(axes)), b.constant(list(weight[2:])), b.constant(axes))
    return b.transposed(cut, [1, 0, *range(2, rank)])

"""Operators in floating point that move and combine: what moves elements, RotaryEmbedding, Resize that interpolates."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qdq_passes.npu.reference.float_sums import product
from qdq_passes.npu.reference.floats import FloatHandler, FloatNode, moved_floats
from qdq_passes.npu.reference.heads import angles_of, heads_of
from qdq_passes.npu.reference.resize import taps_of
from qdq_passes.npu.reference.values import NotRepresentable
from qdq_passes.numerics.arrays import Array


def _rotary(node: FloatNode, cosines: int, positions: Array | None) -> list[Array]:
    """y₁ = x₁·c − x₂·s, y₂ = x₂·c + x₁·s; products and results are rounded. What is read is moved first: it is stored too."""
    x, angles, sines = (node.stored(node.number(index)) for index in (0, cosines, cosines + 1))
    heads = heads_of(node.node, x.shape, angles.shape[-1])
    c, s = (angles_of(table, positions, heads) for table in (angles, sines))
    first, second = heads.pairs(x)
    y1 = node.stored(node.stored(first * c) - node.stored(second * s))
    y2 = node.stored(node.stored(second * c) + node.stored(first * s))
    return [heads.joined(y1, y2, heads.rest(x))]


def _onnx_rotary(node: FloatNode) -> list[Array]:
    return _rotary(node, 1, node.given(3))


def _contrib_rotary(node: FloatNode) -> list[Array]:
    return _rotary(node, 2, node.given(1))


def _resize(node: FloatNode) -> list[Array]:
    """Along each axis, the last but one first, a product with the matrix of interpolation, whose result is rounded."""
    if node.node.attributes.get_string("mode", "nearest") == "nearest":
        return moved_floats(node)
    x = node.number(0)
    for taps in taps_of(node.node, node.opset, x.shape, node.inputs[1:]):
        matrix = node.rounded(taps.matrix(x.shape[taps.axis]))
        if taps.axis == x.ndim - 2:
            x = node.stored(product(matrix, x))
        elif taps.axis == x.ndim - 1:
            x = node.stored(product(x, np.ascontiguousarray(matrix.T)))
        else:
            raise NotRepresentable("it interpolates along other than the last two axes")
    return [x]


#: Operator → what computes it.
MOVES: Mapping[tuple[str, str], FloatHandler] = {
    ("", "RotaryEmbedding"): _onnx_rotary,
    ("com.microsoft", "RotaryEmbedding"): _contrib_rotary,
    ("", "Resize"): _resize,
}

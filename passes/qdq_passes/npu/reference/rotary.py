"""RotaryEmbedding in the reference: onnx's and com.microsoft's, on integers.

y₁ = x₁·c − x₂·s and y₂ = x₂·c + x₁·s are sums of two exact products, of which each has its scale s_x·s_c or s_x·s_s, as the sides
of an Add have theirs; what is not turned moves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qdq_passes.npu.reference.heads import angles_of, heads_of
from qdq_passes.npu.reference.node import ReferenceNode
from qdq_passes.npu.reference.values import Addends, Joined, Moved, NotRepresentable, Stored, Value
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.requantize import exact_product


def rotary_embedding(node: ReferenceNode) -> Sequence[Value]:
    """The operator of onnx: x, cosines, sines, positions."""
    return [_rotated(node, node.stored(0), node.stored(1), node.stored(2), node.array(3))]


def contrib_rotary_embedding(node: ReferenceNode) -> Sequence[Value]:
    """The operator of com.microsoft: x, positions, cosines, sines; positions [1] are the first of those that follow."""
    return [_rotated(node, node.stored(0), node.stored(2), node.stored(3), node.array(1))]


def _rotated(node: ReferenceNode, x: Stored, cos: Stored, sin: Stored, positions: Array | None) -> Joined:
    for angles in (cos, sin):
        if len(angles.encoding.scale) != 1:
            raise NotRepresentable(f"its angles have {angles.encoding.granularity.kind} scales")
    heads = heads_of(node.node, x.integers.shape, cos.integers.shape[-1])
    c, s = (angles_of(angles.centered(), positions, heads) for angles in (cos, sin))
    x1, x2 = heads.pairs(x.centered())
    x_scale, c_scale, s_scale = (np.float64(stored.encoding.scale[0]) for stored in (x, cos, sin))
    first, second = (
        Addends(
            a=exact_product(a, c), b=exact_product(b, s), a_scale=x_scale * c_scale, b_scale=sign * x_scale * s_scale
        )
        for a, b, sign in ((x1, x2, -1.0), (x2, x1, 1.0))
    )
    return Joined(parts=(first, second, Moved(parts=(x.moved(heads.rest),))), join=lambda parts: heads.joined(*parts))

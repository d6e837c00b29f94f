"""Conv, ConvTranspose, Gemm and MatMul of the reference: what a sum of products reads of its node."""

from __future__ import annotations

from collections.abc import Sequence

from qdq_passes.npu.reference import sums
from qdq_passes.npu.reference.node import ReferenceNode
from qdq_passes.npu.reference.values import PENDING, Value

_PRODUCTS = {
    "Conv": sums.convolution, "ConvTranspose": sums.transposed_convolution, "Gemm": sums.matrix_product,
    "MatMul": sums.matrix_product,
}  # fmt: skip


def product(node: ReferenceNode) -> Sequence[Value]:
    """The sum of products; a bias is integers of an encoding of its own, or floats."""
    value = node.node.inputs[2] if node.has(2) else None
    bias = None if value is None else node.value(value)
    if isinstance(bias, PENDING):
        bias = node.stored(2)
    return [_PRODUCTS[node.node.op_type](node.node, node.stored(0), node.stored(1), bias, node.arithmetic)]

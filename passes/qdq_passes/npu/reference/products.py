"""Conv, ConvTranspose, Gemm, MatMul and Einsum of two operands in the reference: exact sums of products."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qdq_passes.npu.reference import sums
from qdq_passes.npu.reference.values import PENDING, NotRepresentable, ReferenceNode, Sum, Value
from qdq_passes.numerics.encoding import is_wide
from qdq_passes.numerics.requantize import fit_accumulator

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


def einsum(node: ReferenceNode) -> Sequence[Value]:
    """Σ(a − z_a)(b − z_b), b with a scale for all or one per index of an axis of the result."""
    if len(node.node.inputs) != 2:
        raise NotRepresentable(f"it has {len(node.node.inputs)} operands")
    a, b = node.stored(0), node.stored(1)
    equation = node.node.attributes.get_string("equation", "")
    first, second = a.centered().astype(object), b.centered().astype(object)
    wide = is_wide(a.encoding.dtype) or is_wide(b.encoding.dtype)
    acc = fit_accumulator(np.asarray(np.einsum(equation, first, second)), node.arithmetic, wide=wide)
    if len(a.encoding.scale) != 1 or b.encoding.block_size:
        raise NotRepresentable("its first operand has several scales, or the second a scale per block")
    scales, axis = np.array(b.encoding.scale, np.float64), -1
    if len(scales) > 1:
        operands, arrow, result = equation.replace(" ", "").partition("->")
        labels = operands.replace(",", "")
        if "." in labels or (b.encoding.axis or 0) < 0:
            raise NotRepresentable("its second operand has several scales beside an ellipsis")
        label = operands.split(",")[1][b.encoding.axis or 0]
        result = result if arrow else "".join(sorted(name for name in labels if labels.count(name) == 1))
        axis = result.index(label) - len(result)
    return [Sum(acc=acc, product=np.float64(a.encoding.scale[0]) * scales, axis=axis)]

"""Einsum of two operands in the reference: an exact sum of products over the labels that the result lacks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qdq_passes.npu.reference.node import ReferenceNode
from qdq_passes.npu.reference.values import NotRepresentable, Sum, Value
from qdq_passes.numerics.encoding import is_wide
from qdq_passes.numerics.requantize import fit_accumulator


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

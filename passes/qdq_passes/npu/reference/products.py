"""Products and elementwise operators of the reference: Conv, ConvTranspose, Gemm, MatMul, Einsum of two operands as exact sums;
Add, Sub, Mul, Div, Min and Max on integers minus their zero points, with a float number functions of one value."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from qdq_passes.npu.reference import sums
from qdq_passes.npu.reference.values import PENDING, Joined, Moved, NotRepresentable, ReferenceNode, Stored, Sum, Value
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


def added(node: ReferenceNode) -> Sequence[Value]:
    """Add and Sub."""
    if node.has_a_number:
        return [_function(node)]
    return [sums.addends(node.node, node.stored(0), node.stored(1))]


def multiplied(node: ReferenceNode) -> Sequence[Value]:
    """Mul; a mean by a number stays a mean."""
    if not node.has_a_number:
        return [sums.product(node.stored(0), node.stored(1), node.arithmetic)]
    return [_with_factor(node) or _function(node)]


def divided(node: ReferenceNode) -> Sequence[Value]:
    """Div: an exact ratio, the sign of b moved up; what is divided by zero goes to an end of the output, 0 / 0 is 0."""
    if node.has_a_number:
        return [_function(node)]
    first, second = node.stored(0), node.stored(1)
    (a_scale, b_scale), a, b = (_scale(first), _scale(second)), first.centered(), second.centered()
    pole = np.where(b == 0, np.sign(a), 0)
    acc = np.where(b == 0, 0, np.where(b < 0, -a, a))
    return [Sum(acc=acc, product=np.array([a_scale / b_scale]), divisor=np.maximum(np.abs(b), 1), pole=pole)]


def compared(node: ReferenceNode) -> Sequence[Value]:
    """Min and Max of one tensor or more: compared as integers of the output."""
    if node.has_a_number:
        return [_function(node)]
    parts = tuple(Moved(parts=(node.stored(index),)) for index in range(len(node.node.inputs)))
    choose = np.maximum if node.node.op_type == "Max" else np.minimum
    return [Joined(parts=parts, join=lambda integers: functools.reduce(choose, integers))]


def _with_factor(node: ReferenceNode) -> Sum | None:
    """The mean that ``node`` multiplies by a constant number; None where it does not."""
    for index in (0, 1):
        value = node.node.inputs[index]
        source = None if value is None else node.value(value)
        if isinstance(source, Sum) and source.divisor is not None and node.is_number(1 - index):
            if source.factor is not None or source.clamps or source.integral or source.pole is not None:
                raise NotRepresentable("it multiplies other than a mean")
            number = node.array(1 - index)
            assert number is not None
            factor = float(np.float32(number.item()))
            return Sum(acc=source.acc, product=source.product, divisor=source.divisor, factor=factor)
    return None


def _function(node: ReferenceNode) -> Value:
    found = node.function()
    if found is None:
        raise NotRepresentable(f"{node.node.op_type} is no function of one value")
    return found


def _scale(stored: Stored) -> float:
    """The one scale.

    Raises:
        NotRepresentable: there are several.
    """
    if len(stored.encoding.scale) != 1:
        raise NotRepresentable(f"data with {stored.encoding.granularity.kind} scales are read")
    return float(stored.encoding.scale[0])

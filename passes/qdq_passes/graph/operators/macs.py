"""Multiply-accumulates of an operator.

Conv           output [N, M, …], weight [M, C/g, k…]    |output| · C/g · Πk
ConvTranspose  input [N, C, …], weight [C, M/g, k…]     |input| · M/g · Πk
Gemm           input [M, K] or [K, M], output [M, N]    |input| · N
MatMul         output […, M, N], summed over K          |output| · K
Attention, Einsum                                       see `fused_products`

A dynamic batch counts as one sample, also where a Reshape has put it into another dimension: rows [N·16, 64] of tokens
[N, 16, 64] are 16."""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx_ir as ir

from qdq_passes.graph.operators.fused_products import fused_product, is_fused
from qdq_passes.graph.operators.qdq_ops import is_qdq
from qdq_passes.graph.uses import integer_of, is_standard

#: Operators that multiply and accumulate.
MULTIPLYING = ("Conv", "ConvTranspose", "Gemm", "MatMul")
#: Operators that write as many elements as they read, and steps at most that are looked back through such.
_SHAPE_KEEPING, _STEPS = ("Cast", "Clip", "Gelu", "Identity", "Relu", "Sigmoid", "Tanh"), 8


def macs_of(node: ir.Node) -> int | None:
    """Multiply-accumulates of ``node`` in one inference, 0 for operators other than `MULTIPLYING`, attentions and Einsum; a
    dimension that is not known counts as 1, so that a dynamic batch gives the number of one sample. None where a shape is not
    known."""
    if is_fused(node):
        product = fused_product(node, _dims)
        return None if product is None else product.macs
    if not is_standard(node, *MULTIPLYING):
        return 0
    a, b, y = (_dims(value) for value in (*node.inputs[:2], node.outputs[0]))
    if not a or not b or y is None:  # scalars, which none of them takes, among them
        return None
    if node.op_type == "Conv":
        return math.prod(y) * math.prod(b[1:])
    if node.op_type == "ConvTranspose":
        return math.prod(a) * math.prod(b[1:])
    if node.op_type == "Gemm":
        return math.prod(a) * b[0 if integer_of(node, "transB", 0) else -1]
    return math.prod(y) * a[-1]


def macs_in(nodes: Iterable[ir.Node]) -> int:
    """Multiply-accumulates of ``nodes`` together; those of unknown shape count nothing."""
    return sum(macs_of(node) or 0 for node in nodes)


def _dims(value: ir.Value | None) -> list[int] | None:
    if value is None:
        return None
    shape = value.shape if value.shape is not None or value.const_value is None else value.const_value.shape
    if shape is None:
        return None
    dims = [d if isinstance(d, int) else None for d in shape]
    known = [d for d in dims if d is not None]
    elements = _elements_moved(value) if len(known) == len(dims) - 1 else None
    rest = 1 if elements is None or not math.prod(known) else max(elements // math.prod(known), 1)
    return [rest if d is None else d for d in dims]


def _elements_moved(value: ir.Value) -> int | None:
    """Number of elements of ``value`` where a Reshape or Flatten makes it, looking through pairs and activations; else None."""
    for _ in range(_STEPS):
        node = value.producer()
        source = node.inputs[0] if node is not None and node.inputs else None
        if node is None or source is None:
            return None
        if is_standard(node, "Flatten", "Reshape"):
            dims = _dims(source)
            return None if dims is None else math.prod(dims)
        if not (is_qdq(node) or is_standard(node, *_SHAPE_KEEPING)):
            return None
        value = source
    return None

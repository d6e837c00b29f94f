"""Multiply-accumulates of an operator.

Conv, DeformConv   output [N, M, …], weight [M, C/g, k…]    |output| · C/g · Πk
ConvTranspose      input [N, C, …], weight [C, M/g, k…]     |input| · M/g · Πk
Gemm               input [M, K] or [K, M], output [M, N]    |input| · N
MatMul             output […, M, N], summed over K          |output| · K
attentions, Einsum, GRU, LSTM, RNN, DFT, STFT, AffineGrid   see `fused_products`

Contributed, integer and QLinear forms count as the operator that they stand for. What is computed element by element, over
windows, along rows or by interpolation counts nothing. An operator of an unknown domain may multiply: its count is unknown.

A dynamic batch counts as one sample, also where a Reshape has put it into another dimension: rows [N·16, 64] of tokens
[N, 16, 64] are 16."""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx
import onnx_ir as ir

from qdq_passes.graph.operators.fused_products import FUSED, fused_product
from qdq_passes.graph.operators.kinds import ATTENTIONS, EXPERTS, MOVERS, NORMS, data_inputs, is_passed, kind_of
from qdq_passes.graph.operators.qdq_ops import is_qdq
from qdq_passes.graph.uses import input_at, integer_of, is_standard

#: Operators that multiply and accumulate.
MULTIPLYING = ("Conv", "ConvTranspose", "Gemm", "MatMul")
#: Those, and others of a stored kernel.
_LAYERS = frozenset({*MULTIPLYING, "CausalConvWithState", "DeformConv"})
#: Operators of known domains that multiply matrices, without a formula here.
_UNKNOWN = ATTENTIONS | EXPERTS | {
    "Det", "LinearAttention", "LinearClassifier", "LinearRegressor", "SVMClassifier", "SVMRegressor"
}  # fmt: skip
#: Contributed operators that move values or compute them one by one, and are named otherwise than those of ONNX.
_ELEMENTWISE = MOVERS | NORMS | {"BiasGelu", "ReorderInput", "ReorderOutput", "SwiGLU", "Trilu", "Unique"}
#: Operators that write as many elements as they read, and steps at most that are looked back through such.
_SHAPE_KEEPING, _STEPS = ("Cast", "Clip", "Gelu", "Identity", "Relu", "Sigmoid", "Tanh"), 8


def macs_of(node: ir.Node) -> int | None:
    """Multiply-accumulates of ``node`` in one inference, 0 for operators that multiply no matrices; a dimension that is not known
    counts as 1, so that a dynamic batch gives the number of one sample. None where a shape is not known, or what it computes."""
    kind = kind_of(node)
    if kind in _LAYERS:
        return _of_layer(node, kind)
    if kind in FUSED:
        product = fused_product(node, _dims)
        return product.macs if product is not None else 0 if kind == "Einsum" and len(node.inputs) == 1 else None
    if kind in _UNKNOWN or node.op_type in _UNKNOWN:
        return None
    is_known = kind in _ELEMENTWISE or onnx.defs.has(kind) or onnx.defs.has(node.op_type, "ai.onnx.ml")
    return 0 if is_known or is_passed(node) else None


def _of_layer(node: ir.Node, kind: str) -> int | None:
    """Multiply-accumulates of a layer of ``kind``."""
    found = [_dims(input_at(node, place)) for place in data_inputs(node, kind)[:2]]
    y, depth = _dims(node.outputs[0]), integer_of(node, "K", 0)
    if depth:  # of a packed weight
        return None if y is None else math.prod(y) * depth
    a, b = found if len(found) == 2 else (None, None)
    if not a or not b or y is None:  # scalars, which none of them takes, among them
        return None
    if kind == "ConvTranspose":
        return math.prod(a) * math.prod(b[1:])
    if kind == "Gemm":
        return math.prod(a) * b[0 if integer_of(node, "transB", 0) else -1]
    if kind == "MatMul":
        return math.prod(y) * a[-2 if integer_of(node, "transA", 0) else -1]
    return math.prod(y) * math.prod(b[1:])


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

"""Multiply-accumulates of an operator.

Conv           output [N, M, …], weight [M, C/g, k…]    |output| · C/g · Πk
ConvTranspose  input [N, C, …], weight [C, M/g, k…]     |input| · M/g · Πk
Gemm, MatMul   output […, M, N], summed over K          |output| · K"""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx_ir as ir

from qdq_passes.analysis.attributes import integer_of
from qdq_passes.analysis.uses import is_standard

#: Operators that multiply and accumulate.
MULTIPLYING = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def macs_of(node: ir.Node) -> int | None:
    """Multiply-accumulates of ``node`` in one inference, 0 for operators other than `MULTIPLYING`; a dimension that is not known
    counts as 1, so that a dynamic batch gives the number of one sample. None where a shape is not known."""
    if not is_standard(node, *MULTIPLYING):
        return 0
    a, b, y = (_dims(value) for value in (*node.inputs[:2], node.outputs[0]))
    if a is None or b is None or y is None:
        return None
    if node.op_type == "Conv":
        return math.prod(y) * math.prod(b[1:])
    if node.op_type == "ConvTranspose":
        return math.prod(a) * math.prod(b[1:])
    depth = a[0] if node.op_type == "Gemm" and integer_of(node, "transA", 0) else a[-1]
    return math.prod(y) * depth


def macs_in(nodes: Iterable[ir.Node]) -> int:
    """Multiply-accumulates of ``nodes`` together; those of unknown shape count nothing."""
    return sum(macs_of(node) or 0 for node in nodes)


def _dims(value: ir.Value | None) -> list[int] | None:
    if value is None:
        return None
    shape = value.shape if value.shape is not None or value.const_value is None else value.const_value.shape
    return None if shape is None else [d if isinstance(d, int) else 1 for d in shape]

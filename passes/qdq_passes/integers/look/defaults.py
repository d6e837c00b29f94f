"""Initializers that are graph inputs as well: defaults that a caller may override, which no pass may take for constants."""

from __future__ import annotations

import onnx_ir as ir

from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantize, is_quantize_dequantize
from qdq_passes.graph.operators.qoperators import form_of

#: Operators on stored integers that have no `qoperators.Form`.
OTHERS = frozenset({"ConvInteger", "DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat", "MatMulNBits"})


def defaults(model: ir.Model) -> list[ir.Value]:
    """The inputs of the main graph that are initializers, in their order."""
    return [value for value in model.graph.inputs if value.is_initializer()]


def quantized_defaults(model: ir.Model) -> list[ir.Value]:
    """Those of `defaults` that quantization takes for constants: scales, zero points, what a DQ or an integer operator reads."""
    return [value for value in defaults(model) if any(_is_parameter(use.node, use.idx) for use in value.uses())]


def _is_parameter(node: ir.Node, index: int) -> bool:
    if is_quantize(node) or is_quantize_dequantize(node):
        return index > 0
    return is_dequantize(node) or form_of(node) is not None or node.op_type in OTHERS

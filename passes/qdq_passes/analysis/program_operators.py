"""Operators of programs: those of the domain ai.qdqtool, and the standard ones that have a kernel beside them."""

from __future__ import annotations

import onnx_ir as ir

#: Domain and version of the operators of programs.
DOMAIN, VERSION = "ai.qdqtool", 1
OPERATORS = (
    "Add",
    "AveragePool",
    "BlockedMatMul",
    "Conv",
    "ConvTranspose",
    "Div",
    "Lookup",
    "MatMul",
    "Max",
    "MaxPool",
    "Min",
    "Mul",
    "Norm",
    "Pad",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceSum",
    "Requantize",
    "Resize",
    "RotaryEmbedding",
    "Softmax",
    "Trilu",
    "Where",
)
#: Those in floating point.
FLOAT_OPERATORS = (
    "FloatCast", "FloatConv", "FloatConvTranspose", "FloatElementwise", "FloatFunction", "FloatLookup", "FloatMatMul",
    "FloatNorm", "FloatPool", "FloatReduce", "FloatSoftmax", "FloatWhere", "Quantize",
)  # fmt: skip
#: What moves integers, and what brings floats to the edge of a program and back.
STANDARD = (
    "Concat", "DequantizeLinear", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Pad", "QuantizeLinear", "Reshape",
    "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
    "GatherElements", "GatherND", "ScatterElements", "ScatterND", "TensorScatter", "Where",
)  # fmt: skip


def why_no_kernel(node: ir.Node) -> str | None:
    """Why no program may hold ``node``, in words; None where it may."""
    known = (
        (*OPERATORS, *FLOAT_OPERATORS) if node.domain == DOMAIN else STANDARD if node.domain in ("", "ai.onnx") else ()
    )
    if node.op_type in known:
        return None
    domain = f"{node.domain}::" if node.domain else ""
    return f"{domain}{node.op_type} has no kernel"

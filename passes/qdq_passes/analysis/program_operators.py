"""Operators of programs: those of the domain ai.qdqtool, and the standard ones that have a kernel beside them."""

from __future__ import annotations

import onnx_ir as ir

#: Domain and version of the operators of programs.
DOMAIN, VERSION = "ai.qdqtool", 1
OPERATORS = ("Add", "AveragePool", "Conv", "ConvTranspose", "Lookup", "MatMul", "Mul", "ReduceMean", "Softmax")
#: What moves integers, and what brings floats to the edge of a program and back.
STANDARD = (
    "Concat", "DequantizeLinear", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Pad", "QuantizeLinear", "Reshape",
    "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
)  # fmt: skip


def why_no_kernel(node: ir.Node) -> str | None:
    """Why no program may hold ``node``, in words; None where it may."""
    known = OPERATORS if node.domain == DOMAIN else STANDARD if node.domain in ("", "ai.onnx") else ()
    if node.op_type in known:
        return None
    domain = f"{node.domain}::" if node.domain else ""
    return f"there is no kernel for {domain}{node.op_type}"

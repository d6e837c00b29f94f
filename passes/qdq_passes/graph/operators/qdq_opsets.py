"""Which storage types QuantizeLinear and DequantizeLinear know, and since which default-domain opset; the opset at a node."""

from __future__ import annotations

from collections.abc import MutableMapping

import onnx_ir as ir

#: First opset whose Q and DQ take a type (onnx's changelog of QuantizeLinear); int32 only DequantizeLinear reads.
FIRST_OPSET = {
    **dict.fromkeys((ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT32), 10),
    **dict.fromkeys((ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E4M3FNUZ), 19),
    **dict.fromkeys((ir.DataType.FLOAT8E5M2, ir.DataType.FLOAT8E5M2FNUZ), 19),
    **dict.fromkeys((ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.INT4, ir.DataType.UINT4), 21),
    ir.DataType.FLOAT4E2M1: 23,
    **dict.fromkeys((ir.DataType.INT2, ir.DataType.UINT2), 25),
}
#: First opset with a scale per axis, with blocks, and with float16 and bfloat16 tensors.
OPSET_OF_AXIS, OPSET_OF_BLOCKS, OPSET_OF_HALF = 13, 21, 19
#: First opset whose Conv, GlobalAveragePool and HardSigmoid take bfloat16 (onnx's changelogs of the three).
OPSET_OF_BFLOAT16 = 22


def imports_at(model: ir.Model, node: ir.Node) -> MutableMapping[str, int]:
    """The imported operator sets that hold where ``node`` stands: those of the model, or of the local function around it."""
    functions = list(model.functions.values()) if node.graph is not model.graph else []
    for function in functions:
        if node.graph is function.graph or any(inner is node for inner in function.all_nodes()):
            return function.opset_imports
    return model.opset_imports


def opset_at(model: ir.Model, node: ir.Node) -> int:
    """The default-domain opset that holds where ``node`` stands."""
    return imports_at(model, node).get("", model.opset_imports.get("", 1))

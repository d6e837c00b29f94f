"""Which storage types QuantizeLinear and DequantizeLinear know, and since which default-domain opset."""

from __future__ import annotations

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

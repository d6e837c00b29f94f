"""The operators that quantize and dequantize, of every tool: what they are called and where, and which storage types they
know since which opset.

All take (x, scale, zero_point) and the attributes axis and block_size. A FixNeuron is both halves in one node: bit_width bits
at position pos, y = clip(round(x·2^pos), −2^(b−1), 2^(b−1) − 1)·2^−pos. Block floats (BFP, MX) round without an integer grid."""

from __future__ import annotations

from collections.abc import MutableMapping

import onnx_ir as ir

from qdq_passes.graph.uses import is_constant, is_standard

#: Names of a QuantizeLinear and a DequantizeLinear per domain; ``ai.onnx`` is another spelling of the default domain.
OPERATORS: dict[str, tuple[str, str]] = {
    "": ("QuantizeLinear", "DequantizeLinear"),
    "ai.onnx": ("QuantizeLinear", "DequantizeLinear"),
    "com.microsoft": ("QuantizeLinear", "DequantizeLinear"),
    "com.amd.quark": ("ExtendedQuantizeLinear", "ExtendedDequantizeLinear"),
    "com.vai.quantize": ("VitisQuantizeLinear", "VitisDequantizeLinear"),
}

QUANTIZE = frozenset((domain, names[0]) for domain, names in OPERATORS.items())
DEQUANTIZE = frozenset((domain, names[1]) for domain, names in OPERATORS.items())

#: Both halves in one node, on an integer grid.
FIX = frozenset({("com.vai.quantize", "FixNeuron"), ("ai.onnx.contrib", "FixNeuron")})
#: Both halves in one node, on no integer grid.
BLOCK_FLOAT = frozenset(
    {("com.vai.quantize", "BFPFixNeuron"), ("com.vai.quantize", "MXFixNeuron"),
     ("com.amd.quark", "BFPQuantizeDequantize"), ("com.amd.quark", "MXQuantizeDequantize")}
)  # fmt: skip


def is_quantize(node: ir.Node) -> bool:
    """Whether ``node`` is a QuantizeLinear, of any domain."""
    return (node.domain, node.op_type) in QUANTIZE


def is_dequantize(node: ir.Node) -> bool:
    """Whether ``node`` is a DequantizeLinear, of any domain."""
    return (node.domain, node.op_type) in DEQUANTIZE


def is_quantize_dequantize(node: ir.Node) -> bool:
    """Whether ``node`` is both halves of a pair at once."""
    return (node.domain, node.op_type) in FIX or (node.domain, node.op_type) in BLOCK_FLOAT


def is_qdq(node: ir.Node) -> bool:
    """Whether ``node`` is a QuantizeLinear or a DequantizeLinear, of any domain."""
    return is_quantize(node) or is_dequantize(node)


def is_quantization(node: ir.Node) -> bool:
    """Whether ``node`` quantizes, dequantizes, or does both."""
    return is_qdq(node) or is_quantize_dequantize(node)


def reads_stored(node: ir.Node) -> bool:
    """Whether the Q or DQ ``node`` reads stored data, or integers that a QuantizeLinear makes of them."""
    source = node.inputs[0]
    producer = source.producer() if source is not None else None
    return is_constant(source) or (producer is not None and is_quantize(producer) and is_constant(producer.inputs[0]))


def float_source(value: ir.Value | None) -> ir.Value | None:
    """The float value before the pair that writes ``value``; ``value`` itself where no pair does, or one of stored integers."""
    producer = value.producer() if value is not None else None
    if producer is None or not is_dequantize(producer) or producer.inputs[0] is None:
        return value
    quantizer = producer.inputs[0].producer()
    return quantizer.inputs[0] if quantizer is not None and is_quantize(quantizer) and quantizer.inputs else value


def has_pair(value: ir.Value) -> bool:
    """Whether ``value`` is already quantized: a DequantizeLinear writes it, or a QuantizeLinear reads it."""
    producer = value.producer()
    return (producer is not None and is_dequantize(producer)) or any(is_quantize(user) for user in value.consumers())


def is_dynamic_quantize(node: ir.Node) -> bool:
    """Whether ``node`` is a DynamicQuantizeLinear."""
    return is_standard(node, "DynamicQuantizeLinear")


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
    around = next((function for function in functions if node.graph is function.graph), None)
    if around is None:  # a body
        around = next(
            (function for function in functions if any(inner is node for inner in function.all_nodes())), None
        )
    return model.opset_imports if around is None else around.opset_imports


def opset_at(model: ir.Model, node: ir.Node) -> int:
    """The default-domain opset that holds where ``node`` stands."""
    return imports_at(model, node).get("", model.opset_imports.get("", 1))

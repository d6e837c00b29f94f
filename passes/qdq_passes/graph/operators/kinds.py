"""What an operator does to structure: its kind, whatever its domain and precision, and which of its inputs are data.

``com.microsoft::FusedMatMul``, ``MatMulNBits`` and ``QLinearMatMul`` are all a ``MatMul`` of two operands here."""

from __future__ import annotations

import onnx_ir as ir

from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantize, is_quantize_dequantize

#: Domains whose operators are known; those of any other are opaque.
DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.preview", "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"})

_KINDS = {
    "BiasAdd": "Add", "BiasDropout": "Add", "BiasGelu": "Gelu", "BiasSoftmax": "Softmax", "BiasSplitGelu": "Gelu",
    "ConvInteger": "Conv", "ConvTransposeWithDynamicPads": "ConvTranspose", "DynamicQuantizeLSTM": "LSTM",
    "DynamicQuantizeMatMul": "MatMul", "ExpandDims": "Unsqueeze", "FastGelu": "Gelu", "FusedConv": "Conv",
    "FusedGemm": "Gemm", "FusedMatMul": "MatMul", "FusedMatMulActivation": "MatMul", "GatherBlockQuantized": "Gather",
    "GemmFastGelu": "MatMul", "GemmFloat8": "Gemm", "GemmaRotaryEmbedding": "RotaryEmbedding", "MatMulBnb4": "MatMul",
    "MatMulFpQ4": "MatMul", "MatMulInteger": "MatMul", "MatMulInteger16": "MatMul", "MatMulIntegerToFloat": "MatMul",
    "MatMulNBits": "MatMul", "NhwcConv": "Conv", "NhwcFusedConv": "Conv", "QGemm": "Gemm", "QuickGelu": "Gelu",
    "TransposeMatMul": "MatMul",
}  # fmt: skip

#: Operators that compute their activation themselves.
_WITH_ACTIVATION = frozenset({"FusedConv", "FusedGemm", "FusedMatMulActivation", "GemmFastGelu", "NhwcFusedConv"})

#: Inputs that steer an operator and are never quantized: bounds, scales, conditions, sizes; and the four parameters of a
#: BatchNormalization, as one 8-bit scale rounds small variances to 0 (measured: −7 dB on variances of 1e-3 to 12).
CONTROL_INPUTS = {
    "BatchNormalization": {1, 2, 3, 4},
    "Clip": {1, 2}, "Resize": {1, 2, 3}, "Upsample": {1}, "Where": {0}, "Dropout": {1, 2}, "Pad": {1, 3}, "Slice": {1, 2, 3, 4},
    "Reshape": {1}, "Squeeze": {1}, "Unsqueeze": {1}, "Gather": {1}, "ReduceMean": {1}, "Split": {1}, "Expand": {1}, "Tile": {1},
}  # fmt: skip

#: Change the shape of one operand, or choose between operands of equal meaning (the ends of If, the inputs of Loop).
SHAPERS = frozenset(
    {
        "Choose",
        "Expand",
        "Flatten",
        "ReorderInput",
        "ReorderOutput",
        "Reshape",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    }
)
#: Those, and what takes a part of one operand.
MOVERS = SHAPERS | {"DepthToSpace", "GatherElements", "GatherND", "Pad", "Slice", "SpaceToDepth", "Split", "Trilu"}

ACTIVATIONS = frozenset(
    {
        "Celu", "Clip", "Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "PRelu", "Relu", "Selu",
        "Shrink", "Sigmoid", "Sin", "Softplus", "Softsign", "Swish", "Tanh", "ThresholdedRelu",
    }
)  # fmt: skip
ELEMENTWISE = ACTIVATIONS | {
    "Abs", "Add", "Div", "Exp", "Log", "Max", "Mean", "Min", "Mul", "Neg", "Pow", "Reciprocal", "Sqrt", "Sub", "Sum", "Where",
}  # fmt: skip

#: One node is a norm.
NORMS = frozenset(
    {
        "BatchNormalization", "EmbedLayerNormalization", "GroupNorm", "GroupNormalization", "InstanceNormalization", "LRN",
        "LayerNormalization", "LpNormalization", "MeanVarianceNormalization", "QEmbedLayerNormalization",
        "QOrderedLayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", "SkipGroupNorm",
        "SkipLayerNormalization", "SkipSimplifiedLayerNormalization",
    }
)  # fmt: skip
#: Norms that add a residual first.
SKIP_NORMS = frozenset({"SkipGroupNorm", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"})
#: One node is a whole attention.
ATTENTIONS = frozenset(
    {
        "Attention", "DecoderAttention", "DecoderMaskedMultiHeadAttention", "DecoderMaskedSelfAttention", "FlexAttention",
        "GroupQueryAttention", "LongformerAttention", "MultiHeadAttention", "PackedAttention", "PackedMultiHeadAttention",
        "PagedAttention", "QAttention", "QOrderedAttention", "QOrderedLongformerAttention", "SparseAttention",
    }
)  # fmt: skip
#: One node is a whole MLP, of several experts.
EXPERTS = frozenset({"MoE", "QMoE", "ShardedMoE"})

#: Whose first input alone is data; the rest are shapes, indices and parameters.
_FIRST = (
    MOVERS | NORMS - SKIP_NORMS - {"EmbedLayerNormalization", "QEmbedLayerNormalization"}
    | {
        "ArgMax", "ArgMin", "AveragePool", "Clip", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "ReduceL1", "ReduceL2",
        "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare", "Resize", "Softmax", "TopK", "Upsample",
    }
)  # fmt: skip
_DATA = {
    "Conv": (0, 1), "ConvTranspose": (0, 1), "Gather": (0, 1), "Gemm": (0, 1), "MatMul": (0, 1), "ScatterElements": (0, 2),
    "ScatterND": (0, 2), "TensorScatter": (0, 1), "Where": (1, 2),
} | dict.fromkeys(SKIP_NORMS, (0, 1))  # fmt: skip
_QLINEAR = {"Add": (0, 3), "Conv": (0, 3), "Gemm": (0, 3), "MatMul": (0, 3), "Mul": (0, 3), "Where": (1, 4)}

#: Whose output is their first input, for structure.
_PASSED = frozenset({"Cast", "CastLike", "Dropout", "DynamicQuantizeLinear", "Identity"})
#: Whose output is their only input where they have just one.
_JOINS = frozenset({"Concat", "Max", "Mean", "Min", "Sum"})


def kind_of(node: ir.Node) -> str:
    """The operator that ``node`` stands for; empty when its domain is unknown."""
    if node.domain not in DOMAINS:
        return ""
    op_type = node.op_type
    if op_type.startswith("QLinear"):
        op_type = op_type[len("QLinear") :]
    return _KINDS.get(op_type, op_type)


def data_inputs(node: ir.Node, kind: str) -> tuple[int, ...]:
    """Indices of the inputs of ``node`` that are data."""
    count = len(node.inputs)
    if node.op_type.startswith("Q"):
        if node.op_type == "QLinearConcat":
            return tuple(range(2, count, 3))
        if node.op_type.startswith("QLinear") or node.op_type == "QGemm":
            return _QLINEAR.get(kind, (0,))
    if kind in _FIRST:
        return (0,)
    return _DATA.get(kind) or tuple(range(count))


def is_passed(node: ir.Node) -> bool:
    """Whether the first output of ``node`` is its first input up to rounding: casts, both halves of pairs, joins of one value."""
    if node.op_type in _PASSED:
        return node.domain in DOMAINS
    if node.op_type in _JOINS:
        return len(node.inputs) == 1 and node.domain in DOMAINS
    return is_dequantize(node) or is_quantize(node) or is_quantize_dequantize(node)


def has_activation(node: ir.Node) -> bool:
    """Whether ``node``, a product, applies an activation to its result."""
    return node.op_type in _WITH_ACTIVATION


def steers(node: ir.Node, index: int) -> bool:
    """Whether input ``index`` of ``node`` is one of `CONTROL_INPUTS`."""
    return node.domain in ("", "ai.onnx") and index in CONTROL_INPUTS.get(node.op_type, ())

"""Operators that take integers with their scales and zero points as inputs (QLinearConv, QGemm, …): where each stands, and which
float operator they stand for.

Sources: ONNX's changelog (QLinearConv, QLinearMatMul) and onnxruntime's ContribOperators.md (com.microsoft)."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.uses import constant_array, dtype_of, input_at
from qdq_passes.numerics.encoding import Encoding

MICROSOFT = "com.microsoft"


@dataclass(frozen=True, eq=False)
class Parameters:
    """How integers are to be read: x = (q − zero_point)·scale.

    Args:
        scale: the value that holds the scale(s), or the scales themselves where no value holds them.
        zero_point: the value that holds the zero point(s); None stands for 0.
        axis: axis of the integers along which several scales run; may be negative.
        block_size: elements of the axis per scale, 0 unless blocked.
    """

    scale: ir.Value | npt.NDArray[Any]
    zero_point: ir.Value | None = None
    axis: int = 0
    block_size: int = 0

    @property
    def scales(self) -> npt.NDArray[Any] | None:
        """The scales; None when they are computed at run time."""
        return self.scale if isinstance(self.scale, np.ndarray) else constant_array(self.scale)

    @property
    def float_type(self) -> ir.DataType:
        """Type of the real values."""
        if isinstance(self.scale, np.ndarray):
            return ir.DataType.from_numpy(self.scale.dtype)
        return dtype_of(self.scale) or ir.DataType.FLOAT

    def encoding(self, integers: ir.Value) -> Encoding | None:
        """The encoding of ``integers``; None when it is computed at run time or no encoding can express it."""
        scales = self.scales
        zero_point = constant_array(self.zero_point) if self.zero_point is not None else np.zeros((), np.int64)
        dtype = storage_type(integers, self)
        if scales is None or zero_point is None or dtype is None:
            return None
        zero_points = [int(z) if float(z).is_integer() else float(z) for z in zero_point.astype(np.float64).ravel()]
        if scales.size == 1 and len(zero_points) == 1 and not self.block_size:
            return Encoding(dtype=dtype, scale=(float(scales.item()),), zero_point=(zero_points[0],))
        shape = scales.shape if scales.size > 1 or self.block_size else zero_point.shape
        count = int(np.prod(shape))
        if (
            not scales.size * len(zero_points)
            or {len(zero_points), scales.size} - {1, count}
            or (len(shape) > 1 and not self.block_size)
        ):
            return None
        axis = self.axis % len(integers.shape) if integers.shape else self.axis
        return Encoding(
            dtype=dtype,
            scale=tuple(np.broadcast_to(scales.astype(np.float64).ravel(), count).tolist()),
            zero_point=tuple(zero_points * count if len(zero_points) == 1 else zero_points),
            shape=shape,
            axis=axis,
            block_size=self.block_size,
        )


def storage_type(integers: ir.Value, parameters: Parameters) -> ir.DataType | None:
    """Type of ``integers``: that of the zero point, or its own; uint8 after a DynamicQuantizeLinear."""
    if parameters.zero_point is None:
        return dtype_of(integers)
    producer = parameters.zero_point.producer()
    if producer is not None and producer.op_type == "DynamicQuantizeLinear":
        return ir.DataType.UINT8
    return dtype_of(parameters.zero_point) or dtype_of(integers)


@dataclass(frozen=True)
class Operand:
    """A quantized input, by the indices of inputs.

    Args:
        value: the integers.
        scale: their scale.
        zero_point: their zero point.
        axis: axis along which several scales run.
    """

    value: int
    scale: int
    zero_point: int
    axis: int = 0


@dataclass(frozen=True)
class Form:
    """How an operator on integers maps to one on floats.

    Args:
        float_op: the float operator.
        operands: the quantized inputs.
        inputs: inputs of the float operator, by the indices of this one's.
        result: indices of scale and zero point of the result; None where the result is float.
        bias: index of an int32 bias, whose scale is the product of those of the first two operands (and of ``alpha``).
        dropped: attributes the float operator does not have.
        domain: domain of the float operator.
        adds: the last of ``inputs`` is added behind the float operator.
        dynamic: index of a float input that the operator quantizes by itself, as DynamicQuantizeLinear does.
    """

    float_op: str
    operands: tuple[Operand, ...]
    inputs: tuple[int, ...]
    result: tuple[int, int] | None
    bias: int | None = None
    dropped: tuple[str, ...] = ()
    domain: str = ""
    adds: bool = False
    dynamic: int | None = None


def _unary(float_op: str, *dropped: str) -> Form:
    return Form(float_op, (Operand(0, 1, 2),), (0,), (3, 4), dropped=dropped)


def _binary(float_op: str) -> Form:
    return Form(float_op, (Operand(0, 1, 2), Operand(3, 4, 5)), (0, 3), (6, 7))


#: Operators of the default domain; com.microsoft has its own QLinearConv, which takes channels_last.
STANDARD = ("QLinearConv", "QLinearMatMul")
_FORMS = {
    "QLinearConv": Form(
        "Conv", (Operand(0, 1, 2), Operand(3, 4, 5)), (0, 3, 8), (6, 7), bias=8, dropped=("channels_last",)
    ),
    "QLinearMatMul": Form("MatMul", (Operand(0, 1, 2, -2), Operand(3, 4, 5, -1)), (0, 3), (6, 7)),
    "QGemm": Form("Gemm", (Operand(0, 1, 2), Operand(3, 4, 5, 1)), (0, 3, 6), (7, 8), bias=6),
    "QLinearAdd": _binary("Add"),
    "QLinearMul": _binary("Mul"),
    "QLinearSigmoid": _unary("Sigmoid"),
    "QLinearLeakyRelu": _unary("LeakyRelu"),
    "QLinearAveragePool": _unary("AveragePool", "channels_last"),
    "QLinearGlobalAveragePool": _unary("GlobalAveragePool", "channels_last"),
    "QLinearSoftmax": _unary("Softmax", "opset"),
    "QLinearReduceMean": _unary("ReduceMean"),
    "QLinearWhere": Form("Where", (Operand(1, 2, 3), Operand(4, 5, 6)), (0, 1, 4), (7, 8)),
    "MatMulIntegerToFloat": Form(
        "MatMul", (Operand(0, 2, 4, -2), Operand(1, 3, 5, -1)), (0, 1, 6), None, adds=True
    ),
    "DynamicQuantizeMatMul": Form("MatMul", (Operand(1, 2, 3, -1),), (0, 1, 4), None, adds=True, dynamic=0),
    "QAttention": Form(
        "Attention", (Operand(0, 3, 6), Operand(1, 4, 7, -1)), (0, 1, 2, 5, 8), None, domain=MICROSOFT
    ),
    "QEmbedLayerNormalization": Form(
        "EmbedLayerNormalization", tuple(Operand(2 + k, 8 + k, 13 + k) for k in range(5)), tuple(range(8)), None,
        domain=MICROSOFT,
    ),
}  # fmt: skip


def form_of(node: ir.Node) -> Form | None:
    """How ``node`` maps to a float operator; None when it is no such operator. Operands that are left out are not listed."""
    is_standard = node.domain in ("", "ai.onnx") and node.op_type in STANDARD
    if not is_standard and node.domain != MICROSOFT:
        return None
    if node.op_type == "QLinearConcat":
        operands = tuple(Operand(k, k + 1, k + 2) for k in range(2, len(node.inputs) - 2, 3))
        return Form("Concat", operands, tuple(operand.value for operand in operands), (0, 1))
    form = _FORMS.get(node.op_type)
    if form is None:
        return None
    form = dataclasses.replace(
        form, operands=tuple(o for o in form.operands if input_at(node, o.value) and input_at(node, o.scale))
    )
    if node.op_type == "QGemm" and len(form.operands) == 2:
        a, b = form.operands
        transposed = "transB" in node.attributes and node.attributes["transB"].as_int()
        form = dataclasses.replace(form, operands=(a, dataclasses.replace(b, axis=0 if transposed else 1)))
    return form if form.result is None or input_at(node, form.result[0]) else dataclasses.replace(form, result=None)


def parameters_of(node: ir.Node, operand: Operand) -> Parameters:
    """How ``node`` reads the integers of ``operand``."""
    scale = input_at(node, operand.scale)
    assert scale is not None
    return Parameters(scale, input_at(node, operand.zero_point), operand.axis)


def result_parameters(node: ir.Node, form: Form) -> Parameters | None:
    """How the integers that ``node`` writes are to be read; None when it writes floats."""
    scale = input_at(node, form.result[0]) if form.result is not None else None
    return None if scale is None or form.result is None else Parameters(scale, input_at(node, form.result[1]))


def bias_parameters(node: ir.Node, form: Form) -> Parameters | None:
    """How the int32 bias of ``node`` is to be read, at scale s_x·s_w [] or [M]; None without a bias, or when the scales are
    computed at run time."""
    bias = input_at(node, form.bias) if form.bias is not None else None
    if bias is None:
        return None
    scales = [parameters_of(node, operand).scales for operand in form.operands[:2]]
    if len(scales) < 2 or scales[0] is None or scales[1] is None:
        return None
    alpha = node.attributes["alpha"].as_float() if "alpha" in node.attributes else 1.0
    product = np.asarray(scales[0] * scales[1] * scales[0].dtype.type(alpha))
    rank = 1 if bias.shape is None else len(bias.shape)
    return Parameters(product, None, max(rank - 1, 0))


def is_recurrent(node: ir.Node) -> bool:
    """Whether ``node`` is a DynamicQuantizeLSTM: an LSTM whose weights W and R are stored as integers."""
    return node.domain == MICROSOFT and node.op_type == "DynamicQuantizeLSTM"


def recurrent_weights(node: ir.Node) -> list[tuple[ir.Value, Parameters]]:
    """W [D, I, 4H] and R [D, H, 4H] of a DynamicQuantizeLSTM (D directions) with scales [D] or [D, 4H], laid out for the tensor:
    [] or [4H] on axis 2 for one direction, [D] on axis 0, or [D, 1, 4H] in blocks along all of axis 1."""
    found = []
    for value, scale, zero_point in (
        (input_at(node, k), input_at(node, s), input_at(node, s + 1)) for k, s in ((1, 8), (2, 10))
    ):
        scales = constant_array(scale)
        if value is None or scale is None:
            continue
        length = value.shape[1] if value.shape is not None and len(value.shape) == 3 else None
        if scales is None or scales.size == 1 or not isinstance(length, int):
            found.append((value, Parameters(scale, zero_point)))
        elif scales.ndim == 1:
            found.append((value, Parameters(scale, zero_point, 0)))
        elif scales.shape[0] == 1:
            found.append((value, Parameters(scales.reshape(-1), zero_point, 2)))
        else:
            found.append((value, Parameters(scales[:, None, :], zero_point, 1, length)))
    return found

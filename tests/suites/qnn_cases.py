"""The single-operator models of the measured support matrix of one NPU backend (`tests/data/qnn_htp_verdicts.json`).

Each operator is written once as a small float graph; each scheme quantizes it: Q/DQ around every float value, stored integers with
a DQ for constants. Ranges come from running the float graph on the reference evaluator of onnx. Ranks, attributes, types and the
rules on scales are those of the measurement, the random numbers are our own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.suites.qnn_operators import OPERATORS, Bias, Operator, Raw, Weight

Array = npt.NDArray[Any]

#: Storage types: TensorProto type, smallest, largest.
TYPES = {
    "int8": (TensorProto.INT8, -128, 127), "uint8": (TensorProto.UINT8, 0, 255),
    "int16": (TensorProto.INT16, -32768, 32767), "uint16": (TensorProto.UINT16, 0, 65535),
    "int32": (TensorProto.INT32, -(2**31), 2**31 - 1), "int4": (TensorProto.INT4, -8, 7),
}  # fmt: skip

#: Operators that write their input's scale where the input has one.
KEEPS_SCALE = frozenset(
    {
        "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "MaxPool", "Reshape", "Slice",
        "SpaceToDepth", "Split", "Squeeze", "Tile", "TopK", "Transpose", "Unsqueeze",
    }
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """How everything in a graph is stored.

    Args:
        activations: type of what flows and of constants like it; None leaves the graph float, in ``floats``.
        symmetric: zero point in the middle.
        pow2: scales rounded up to powers of two, and symmetric.
        weights: type of weights.
        per_axis: one scale per output channel.
        block: elements per scale of weights of two dimensions; 0 for none.
        bias: type of biases; None leaves them float.
        floats: float type of an unquantized graph.
    """

    activations: str | None = None
    symmetric: bool = False
    pow2: bool = False
    weights: str = "int8"
    per_axis: bool = False
    block: int = 0
    bias: Literal["int32", "int8"] | None = "int32"
    floats: Literal["float", "float16"] = "float"


_FLOAT = {"fp32": Scheme(), "fp16": Scheme(floats="float16")}
#: Of operators without weights.
ACTIVATIONS = {
    "u8": Scheme(activations="uint8"),
    "s8": Scheme(activations="int8"),
    "s8sym": Scheme(activations="int8", symmetric=True),
    "u16": Scheme(activations="uint16"),
    "s16sym": Scheme(activations="int16", symmetric=True),
    "s8pow2": Scheme(activations="int8", pow2=True),
    **_FLOAT,
}
_U8, _U16 = Scheme(activations="uint8"), Scheme(activations="uint16")
_XINT8 = Scheme(activations="int8", pow2=True)
#: Of operators with weights.
WEIGHTS = {
    "A8u_W8s": _U8,
    "A8u_W8u": replace(_U8, weights="uint8"),
    "A8u_W8s_pc": replace(_U8, per_axis=True),
    "A8s_W8s": Scheme(activations="int8"),
    "A8ssym_W8s_pc": Scheme(activations="int8", symmetric=True, per_axis=True),
    "XINT8_b32": _XINT8,
    "XINT8_b8": replace(_XINT8, bias="int8"),
    "A8u_W8s_biasfloat": replace(_U8, bias=None),
    "A16u_W8s": _U16,
    "A16u_W8s_pc": replace(_U16, per_axis=True),
    "A16u_W8u": replace(_U16, weights="uint8"),
    "A16ssym_W8s_pc": Scheme(activations="int16", symmetric=True, per_axis=True),
    "A16u_W16s": replace(_U16, weights="int16"),
    "A8u_W4_pc": replace(_U8, weights="int4", per_axis=True),
    "A16u_W4_pc": replace(_U16, weights="int4", per_axis=True),
    "A16u_W4_pt": replace(_U16, weights="int4"),
    "A8u_W4_blk16": replace(_U8, weights="int4", block=16),
    "A16u_W4_blk16": replace(_U16, weights="int4", block=16),
    **_FLOAT,
}


def cases() -> Iterator[tuple[str, str, onnx.ModelProto]]:
    """(operator, scheme, model) of all 916, shapes inferred."""
    for operator in OPERATORS:
        for scheme, model in models(operator):
            yield operator.name, scheme, model


def models(operator: Operator) -> Iterator[tuple[str, onnx.ModelProto]]:
    """(scheme, model) of all schemes that suit ``operator``, shapes inferred."""
    values = _float_values(operator)
    for name, scheme in (WEIGHTS if operator.has_weights else ACTIVATIONS).items():
        builder = _Builder(operator, scheme, values)
        model = builder.model() if scheme.activations else _float_model(operator, scheme, values)
        yield name, onnx.shape_inference.infer_shapes(model)


def _float_values(operator: Operator) -> dict[str, Array]:
    """Every value of the float graph."""
    model = _float_model(operator, Scheme(), {})
    written = [name for node in operator.nodes for name in node.output]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in written)
    found = ReferenceEvaluator(model).run(None, dict(operator.inputs))
    return {**operator.inputs, **dict(zip(written, map(np.asarray, found), strict=True))}


def _float_model(operator: Operator, scheme: Scheme, values: Mapping[str, Array]) -> onnx.ModelProto:
    """The graph as it is, with the outputs of which ``values`` are known; in float16 everything float is, bounds and scales too."""
    dtype = np.float16 if scheme.floats == "float16" else np.float32

    def cast(array: Array) -> Array:
        return array.astype(dtype) if array.dtype == np.float32 else array

    inputs = [_info(name, cast(array)) for name, array in operator.inputs.items()]
    constants = [numpy_helper.from_array(cast(c.array), name) for name, c in operator.constants.items()]
    outputs = [_info(name, cast(values[name])) for name in operator.outputs if name in values]
    return _model(operator, helper.make_graph(operator.nodes, "case", inputs, outputs, constants))


def _model(operator: Operator, graph: onnx.GraphProto) -> onnx.ModelProto:
    version = 13 if operator.opset >= 24 else 11 if operator.opset >= 23 else 10
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", operator.opset)], ir_version=version)


def _info(name: str, array: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


class _Builder:
    """One operator under one scheme."""

    def __init__(self, operator: Operator, scheme: Scheme, values: Mapping[str, Array]) -> None:
        self.operator, self.scheme, self.values, self.type = operator, scheme, values, scheme.activations or ""
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[onnx.TensorProto] = []
        self.encodings: dict[str, tuple[Any, int]] = {}
        self.read = {name: name for name in (*operator.inputs, *operator.constants)}

    def model(self) -> onnx.ModelProto:
        """The quantized graph."""
        for name, array in self.operator.inputs.items():
            if array.dtype == np.float32:
                self._pair(name, *self._parameters(array))
        self._constants()
        outputs = []
        for number, node in enumerate(self.operator.nodes):
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.name = f"{node.op_type}_{number}"
            copy.input[:] = [self.read.get(name, name) for name in node.input]
            self.nodes.append(copy)
            for name in node.output:
                value = self.values[name]
                if value.dtype == np.float32 and name not in self.operator.unquantized:
                    self._pair(name, *self._of_output(node, name, value))
                if name in self.operator.outputs:
                    outputs.append(_info(self.read.get(name, name), value))
        inputs = [_info(name, array) for name, array in self.operator.inputs.items()]
        return _model(self.operator, helper.make_graph(self.nodes, "case", inputs, outputs, self.stored))

    def _constants(self) -> None:
        for name, constant in self.operator.constants.items():
            if isinstance(constant, Raw) or constant.array.dtype != np.float32:
                self._store(name, constant.array, None)
            elif isinstance(constant, Weight):
                self._weight(name, constant)
            elif not isinstance(constant, Bias):
                scale, zero = self.encodings[name] = self._parameters(constant.array)
                self._dequantized(name, constant.array, scale, zero, self.type)
        for name, constant in self.operator.constants.items():
            if isinstance(constant, Bias):
                self._bias(name, constant)

    def _weight(self, name: str, weight: Weight) -> None:
        array, axis, scheme = weight.array, weight.axis, self.scheme
        _, low, high = TYPES[scheme.weights]
        zero = 0 if low < 0 else (high + 1) // 2
        if scheme.block and array.ndim == 2:
            along = 1 - axis if axis is not None else 0
            count = array.shape[along] // scheme.block
            parts = np.stack(np.split(np.abs(array), count, axis=along)).max(axis=along + 1)
            scale = self._weight_scale(parts if along == 0 else parts.T, high - zero)
            self._dequantized(name, array, scale, zero, scheme.weights, axis=along, block=scheme.block)
            return
        others = tuple(i for i in range(array.ndim) if i != axis) if scheme.per_axis and axis is not None else None
        scale = self._weight_scale(np.abs(array).max(axis=others), high - zero)
        self.encodings[name] = scale, zero
        self._dequantized(name, array, scale, zero, scheme.weights, axis=axis)

    def _weight_scale(self, largest: Any, steps: int) -> Any:
        scale = np.maximum(largest, 1e-6) / steps
        return np.float32(_pow2(scale) if self.scheme.pow2 else scale)

    def _bias(self, name: str, bias: Bias) -> None:
        if self.scheme.bias is None or bias.weight not in self.encodings:
            self._store(name, bias.array, None)
            return
        if self.scheme.bias == "int32":
            scale = np.float32(self.encodings[bias.input][0] * np.asarray(self.encodings[bias.weight][0]))
        else:
            scale = self._weight_scale(np.abs(bias.array).max(), 127)
        self._dequantized(name, bias.array, scale, 0, self.scheme.bias, axis=0)

    def _of_output(self, node: onnx.NodeProto, name: str, value: Array) -> tuple[Any, int]:
        """Scale and zero point of what ``node`` writes: its input's, the full range of a sigmoid or softmax, or what fits."""
        if node.op_type in KEEPS_SCALE and node.input[0] in self.encodings:
            return self.encodings[node.input[0]]
        bits = 8 if self.type.endswith("8") else 16
        if bits == 16 and node.op_type == "Sigmoid":
            return np.float32(2.0**-16 if self.type == "uint16" else 2.0**-15), 0
        if node.op_type == "Softmax" and self.type.startswith("u"):
            return np.float32(2.0**-bits), 0
        return self._parameters(value)

    def _parameters(self, array: Array) -> tuple[Any, int]:
        """Scale and zero point that hold ``array`` and zero."""
        _, low, high = TYPES[self.type]
        least, most = min(float(array.min()), 0.0), max(float(array.max()), 0.0)
        if self.scheme.symmetric or self.scheme.pow2:
            scale = max(-least, most, 1e-6) / (high if low < 0 else (high - low) / 2)
            return np.float32(_pow2(scale) if self.scheme.pow2 else scale), 0 if low < 0 else (high + 1) // 2
        scale = max(most - least, 1e-6) / (high - low)
        return np.float32(scale), int(np.clip(np.rint(low - least / scale), low, high))

    def _pair(self, name: str, scale: Any, zero: int) -> None:
        """Q and DQ behind a float value."""
        self.encodings[name] = scale, zero
        parameters = self._store_parameters(name, scale, zero, self.type)
        self.nodes.append(helper.make_node("QuantizeLinear", [name, *parameters], [f"{name}_q"], name=f"{name}_Q"))
        self._dequantize(name, parameters)

    def _dequantized(
        self, name: str, array: Array, scale: Any, zero: int, dtype: str, *, axis: int | None = None, block: int = 0
    ) -> None:
        """Stored integers and their DQ."""
        _, low, high = TYPES[dtype]
        spread = np.asarray(scale, np.float64)
        if block:
            spread = np.repeat(spread, block, axis=axis)
        elif spread.ndim:
            spread = spread.reshape([-1 if i == axis else 1 for i in range(array.ndim)])
        self._store(f"{name}_q", np.clip(np.rint(array / spread) + zero, low, high), dtype)
        parameters = self._store_parameters(name, scale, zero, dtype)
        attributes: dict[str, int] = {} if not np.ndim(scale) else {"axis": axis or 0}
        if block:
            attributes["block_size"] = block
            parameters = parameters[:1]  # without zero points, which are 0
        self._dequantize(name, parameters, **attributes)

    def _dequantize(self, name: str, parameters: Sequence[str], **attributes: int) -> None:
        inputs, self.read[name] = [f"{name}_q", *parameters], f"{name}_dq"
        self.nodes.append(helper.make_node("DequantizeLinear", inputs, [f"{name}_dq"], name=f"{name}_DQ", **attributes))

    def _store_parameters(self, name: str, scale: Any, zero: int, dtype: str) -> tuple[str, ...]:
        self._store(f"{name}_s", np.asarray(scale, np.float32), None)
        self._store(f"{name}_z", np.full(np.shape(scale), zero), dtype)
        return f"{name}_s", f"{name}_z"

    def _store(self, name: str, array: Array, dtype: str | None) -> None:
        if dtype is None:
            self.stored.append(numpy_helper.from_array(np.asarray(array), name))
            return
        self.stored.append(
            helper.make_tensor(name, TYPES[dtype][0], array.shape, array.astype(np.int64).ravel().tolist())
        )


def _pow2(scale: Any) -> Any:
    return np.exp2(np.ceil(np.log2(scale)))

"""Demands: which values the operators to be quantized want to have an encoding, and as what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import onnx_ir as ir

from qdq_passes.analysis.qdq_opsets import OPSET_OF_HALF
from qdq_passes.analysis.qdq_pairs import BIAS_INPUT, is_dequantize, is_quantize
from qdq_passes.analysis.uses import (
    DATA_MOVEMENT,
    FLOAT_TYPES,
    QUANTIZABLE_TYPES,
    constant_array,
    dtype_of,
    is_constant,
    main_nodes,
)

Role = Literal["activation", "weight", "bias"]

#: Operators quantized unless told otherwise: what integer NPUs compute (the reference quantizer's list for convolutional
#: networks, `facts` of the Vitis line §1.4, without ArgMax, whose result is no float).
QUANTIZED_OPS = (
    "Add", "AveragePool", "BatchNormalization", "Clip", "Concat", "Conv", "ConvTranspose", "DepthToSpace", "Div", "Erf",
    "Flatten", "Gather", "Gelu", "Gemm", "GlobalAveragePool", "HardSigmoid", "HardSwish", "InstanceNormalization",
    "LayerNormalization", "LeakyRelu", "LpNormalization", "MatMul", "Max", "MaxPool", "Min", "Mul", "PRelu", "Pad",
    "ReduceMean", "Relu", "Reshape", "Resize", "Sigmoid", "Slice", "Softmax", "SpaceToDepth", "Split", "Squeeze", "Sub",
    "Tanh", "Transpose", "Unsqueeze", "Where",
)  # fmt: skip

#: Inputs that steer an operator and are never quantized: bounds, scales, conditions, sizes; and the four parameters of a
#: BatchNormalization, as one 8-bit scale rounds small variances to 0 (measured: −7 dB on variances of 1e-3 to 12).
CONTROL_INPUTS = {
    "BatchNormalization": {1, 2, 3, 4},
    "Clip": {1, 2}, "Resize": {1, 2, 3}, "Upsample": {1}, "Where": {0}, "Dropout": {1, 2}, "Pad": {1, 3}, "Slice": {1, 2, 3, 4},
    "Reshape": {1}, "Squeeze": {1}, "Unsqueeze": {1}, "Gather": {1}, "ReduceMean": {1}, "Split": {1}, "Expand": {1}, "Tile": {1},
}  # fmt: skip

#: Operators whose output takes values of their first input only, so that both share one encoding.
SHARING = DATA_MOVEMENT | {"MaxPool"}


@dataclass
class Demands:
    """Values that get an encoding, in the order of the graph, with the nodes that demand it; and those that cannot have one.

    Args:
        nodes: names of the demanding nodes per value.
        roles: what the value is to them.
        refused: value → why it stays float although a node demands it.
    """

    nodes: dict[ir.Value, list[str]] = field(default_factory=dict)
    roles: dict[ir.Value, Role] = field(default_factory=dict)
    refused: dict[ir.Value, str] = field(default_factory=dict)

    def add(self, value: ir.Value, role: Role, node: ir.Node) -> None:
        """``node`` wants ``value`` to have an encoding; a constant that is ever a weight is no bias."""
        self.nodes.setdefault(value, []).append(node.name or node.op_type)
        if self.roles.get(value) in (None, "bias"):
            self.roles[value] = role

    def items(self) -> list[tuple[ir.Value, tuple[str, ...]]]:
        """(value, names of the nodes that demand it)."""
        return [(value, tuple(dict.fromkeys(names))) for value, names in self.nodes.items()]

    def role(self, value: ir.Value) -> Role:
        """What the value is to those who demand it."""
        return self.roles[value]


def demands_of(model: ir.Model, ops: set[str], wanted: set[ir.Node]) -> Demands:
    """What the nodes of the main graph demand.

    Args:
        model: the model.
        ops: operator types that are quantized.
        wanted: nodes that may demand.
    """
    demands = Demands()
    for node in main_nodes(model):
        if node in wanted and node.domain in ("", "ai.onnx") and node.op_type in ops and _computes_on_floats(node):
            for value, role in _of_node(node):
                if has_pair(value):
                    continue
                reason = why_not_quantizable(value, model.opset_imports.get("", 1))
                if reason is None:
                    demands.add(value, role, node)
                else:
                    demands.refused[value] = reason
    return demands


def why_not_quantizable(value: ir.Value, opset: int) -> str | None:
    """Why QuantizeLinear of ``opset`` cannot take ``value``, in words; None when it can."""
    dtype = dtype_of(value)
    if dtype is None:
        return "its type is unknown; run infer-shapes first"
    if dtype not in QUANTIZABLE_TYPES:
        return f"is {dtype.name.lower()}, which QuantizeLinear does not take"
    if dtype != ir.DataType.FLOAT and opset < OPSET_OF_HALF:
        return f"{dtype.name.lower()} needs opset {OPSET_OF_HALF}, the model has {opset}"
    array = constant_array(value)
    if array is not None and not np.isfinite(array.astype(np.float32)).all():
        return "holds values that are not finite"
    return None


def sharing_outputs(model: ir.Model) -> dict[ir.Value, ir.Value]:
    """Output → input whose encoding it shares, for the data-movement operators (and MaxPool) of the main graph."""
    return {
        output: node.inputs[0]
        for node in main_nodes(model)
        if node.domain in ("", "ai.onnx") and node.op_type in SHARING and node.inputs and node.inputs[0] is not None
        for output in (node.outputs[:1] if node.op_type == "MaxPool" else node.outputs)
    }


def _of_node(node: ir.Node) -> list[tuple[ir.Value, Role]]:
    found: list[tuple[ir.Value, Role]] = []
    control = CONTROL_INPUTS.get(node.op_type, set())
    for index, value in enumerate(node.inputs):
        if value is None or index in control or not _is_float(value):
            continue
        if not is_constant(value):
            found.append((value, "activation"))
        else:
            found.append((value, "bias" if BIAS_INPUT.get(node.op_type) == index else "weight"))
    outputs = (
        node.outputs[:1] if node.op_type in ("MaxPool", "BatchNormalization", "LayerNormalization") else node.outputs
    )
    return [*found, *((value, "activation") for value in outputs if value.name and _is_float(value))]


def _computes_on_floats(node: ir.Node) -> bool:
    first = node.inputs[1] if node.op_type == "Where" and len(node.inputs) > 1 else (node.inputs or [None])[0]
    return first is not None and _is_float(first)


def _is_float(value: ir.Value) -> bool:
    """Whether ``value`` is, or may be, a float tensor."""
    dtype = dtype_of(value)
    return dtype is None or dtype in FLOAT_TYPES


def has_pair(value: ir.Value) -> bool:
    """Whether ``value`` is already quantized: a DequantizeLinear writes it, or a QuantizeLinear reads it."""
    producer = value.producer()
    return (producer is not None and is_dequantize(producer)) or any(is_quantize(user) for user in value.consumers())

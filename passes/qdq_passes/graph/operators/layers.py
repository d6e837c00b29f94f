"""Layers with constant parameters: Conv, ConvTranspose and Gemm, into which numbers per output channel can be folded;
BatchNormalization, which normalizes by statistics that are given or, in training, by those of its input."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.channels import output_axis
from qdq_passes.graph.uses import constant_array, integer_of, is_standard, label, only_reader
from qdq_passes.numerics.arrays import Array

#: Operators that are linear in a weight (input 1) and add a bias (input 2).
LAYERS = ("Conv", "ConvTranspose", "Gemm")


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer whose parameters are constants of float32 or float64.

    Args:
        node: the Conv, ConvTranspose or Gemm.
        weight: its weight, as `output_axis` says.
        bias: its bias; a Gemm's may have any shape that broadcasts to [M, N].
    """

    node: ir.Node
    weight: Array
    bias: Array | None

    @property
    def groups(self) -> int:
        """Groups of a convolution, else 1."""
        return 1 if self.node.op_type == "Gemm" else integer_of(self.node, "group", 1)

    @property
    def channels(self) -> int:
        """Number of output channels."""
        axis = output_axis(self.node, self.weight.ndim)
        assert axis is not None
        return int(self.weight.shape[axis]) * (self.groups if self.node.op_type == "ConvTranspose" else 1)

    def along_outputs(self, factor: Array) -> Array:
        """``factor`` [channels] shaped to multiply the weight.

        Conv [M, C/g, …]: [M, 1, …]; ConvTranspose [C, M/g, …]: [C, M/g, 1, …], rows of one group alike; Gemm [K, N]: [1, N].
        """
        rank = self.weight.ndim
        if self.node.op_type == "ConvTranspose":
            rows = np.repeat(factor.reshape(self.groups, -1), self.weight.shape[0] // self.groups, axis=0)
            return rows.reshape(*rows.shape, *([1] * (rank - 2)))
        return factor.reshape([-1 if i == output_axis(self.node, rank) else 1 for i in range(rank)])


def as_layer(node: ir.Node) -> Layer | str:
    """``node`` as a layer; or why it is none that something can be folded into."""
    name, inputs = label(node), [*node.inputs, None, None]
    if not is_standard(node, *LAYERS):
        return f"{name} is no Conv, ConvTranspose or Gemm"
    weight, bias = constant_array(inputs[1]), constant_array(inputs[2])
    if weight is None or (bias is None and inputs[2] is not None):
        return f"a weight or bias of {name} is not constant"
    if any(array is not None and array.dtype not in (np.float32, np.float64) for array in (weight, bias)):
        return f"weights of {name} are not float32 or float64"
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return f"{name} has attributes of its function"
    return Layer(node, weight, bias) if weight.ndim > 1 else f"the weight of {name} has {weight.ndim} dimensions"


def joined_layers(concat: ir.Node) -> list[Layer] | str:
    """The layers whose outputs ``concat`` joins along their channels, and which nobody else reads; or why they are none."""
    found: list[Layer] = []
    for value in concat.inputs:
        producer = value.producer() if value is not None else None
        if value is None or producer is None:
            return f"{concat.name} does not join outputs of layers alone"
        layer = as_layer(producer)
        reason = layer if isinstance(layer, str) else why_read_elsewhere(value, concat)
        if reason is not None or isinstance(layer, str):
            return reason or ""
        found.append(layer)
    axis = concat_axis(concat, found[0].weight.ndim if found else None)
    return found if axis == 1 else f"{concat.name} does not join channels"


def why_read_elsewhere(value: ir.Value, node: ir.Node) -> str | None:
    """Why ``node`` cannot take over ``value``: someone else reads it too. None if it can."""
    producer = value.producer()
    written_by = label(producer) if producer is not None else value.name
    return None if only_reader(value) is node else f"the output of {written_by} has other readers"


def channel_constant(node: ir.Node, layer: ir.Node, *, reference: bool) -> tuple[Layer, Array] | str | None:
    """``layer``, and the one number per output channel [channels] that ``node`` (Add, Mul) computes with beside its output.

    Args:
        node: reads the output of ``layer``.
        layer: a Conv or ConvTranspose.
        reference: with the conditions of XINT8 of AMD Quark 0.13: the constant is the second input and has several elements, a
            ConvTranspose has one group.

    Returns:
        None where the other input is not constant, a reason where the constant is none per channel.
    """
    first, second = node.inputs if len(node.inputs) == 2 else (None, None)
    constant = constant_array(second if first is layer.outputs[0] else first)
    if constant is None or first is second:
        return None
    of = as_layer(layer)
    if isinstance(of, str):
        return of
    if {"axis", "broadcast"} & set(node.attributes):
        return "broadcasts as before opset 7"
    if reference and second is layer.outputs[0]:
        return "its constant is the first input"
    if reference and (constant.size == 1 or (layer.op_type == "ConvTranspose" and of.groups > 1)):
        return "its constant is a single element" if constant.size == 1 else f"{layer.name} has groups"
    channels = per_channel(constant, of)
    return channels if isinstance(channels, str) else (of, channels.astype(of.weight.dtype))


def per_channel(constant: Array, layer: Layer) -> Array | str:
    """The one number per output channel [channels] that ``constant`` is, broadcast against the layer's output; or why it is not.

    Args:
        constant: [C, 1, …], [1, C, 1, …] or one element, for an output [N, C, …] of the layer.
        layer: the layer.
    """
    rank, channels, shown = layer.weight.ndim, layer.channels, list(constant.shape)
    if constant.ndim > rank:
        return f"the constant {shown} has more dimensions than the output of {layer.node.name}"
    if constant.size == 1:
        return np.full(channels, constant.reshape(()), constant.dtype)
    if [1] * (rank - constant.ndim) + shown != [1, channels] + [1] * (rank - 2):
        return f"the constant {shown} is no number per channel, of which {layer.node.name} has {channels}"
    return constant.reshape(channels)


def concat_axis(node: ir.Node, rank: int | None) -> int | None:
    """The axis of a Concat, counted from the front if ``rank`` is known; None where it refers to an attribute of a function."""
    attribute = node.attributes.get("axis")
    if attribute is None or attribute.is_ref():
        return None
    axis = attribute.as_int()
    return axis + rank if axis < 0 and rank is not None else axis


#: ONNX's default of the attribute epsilon.
DEFAULT_EPSILON = 1e-5
#: First opset without is_test: a BatchNormalization that computes one output does not train.
_OPSET_OF_INFERENCE = 7


def normalizes_by_input(node: ir.Node, opset: int) -> bool:
    """Whether the attributes of ``node`` say that it trains: ``training_mode`` since opset 14, no ``is_test`` before 7."""
    is_test = opset >= _OPSET_OF_INFERENCE or bool(integer_of(node, "is_test", 0))
    return bool(integer_of(node, "training_mode", 0)) or not is_test

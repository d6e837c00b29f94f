"""QDQ pairs: every QuantizeLinear with each of its DequantizeLinear readers, and every DequantizeLinear on stored integers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from qdq_passes.analysis.uses import all_nodes, constant_array, is_constant
from qdq_passes.numerics.encoding import Encoding

#: Domains whose QuantizeLinear/DequantizeLinear have the inputs (x, scale, zero_point) and the attributes axis and block_size.
QDQ_DOMAINS = ("", "ai.onnx", "com.microsoft")

#: Operators and the input that is a bias.
BIAS_INPUT = {"Conv": 2, "ConvTranspose": 2, "Gemm": 2, "LayerNormalization": 2, "GroupNormalization": 2}

Kind = Literal["weight", "bias", "activation"]


@dataclass(frozen=True)
class Pair:
    """One QDQ pair, or the lone DequantizeLinear of a stored integer tensor.

    Args:
        tensor: name of the float value the pair stands on; for stored integers the float name (without ``_quantized``).
        kind: ``"weight"``, ``"bias"`` or ``"activation"``, by what the dequantized value feeds.
        q: the QuantizeLinear, None for stored integers.
        dq: the DequantizeLinear.
        stored: the initializer concerned: the float one of weight → Q → DQ, the integer one of a lone DQ; None for activations.
    """

    tensor: str
    kind: Kind
    q: ir.Node | None
    dq: ir.Node
    stored: ir.Value | None

    @property
    def output(self) -> ir.Value:
        """The dequantized value, which consumers read."""
        return self.dq.outputs[0]

    @property
    def source(self) -> ir.Value | None:
        """What is quantized: the float value before Q, or the stored integers before a lone DQ."""
        return self.q.inputs[0] if self.q is not None else self.dq.inputs[0]

    @property
    def encoding(self) -> Encoding | None:
        """The encoding of the DequantizeLinear; None when its scale is not constant."""
        return encoding_of(self.dq)


def is_quantize(node: ir.Node) -> bool:
    """Whether ``node`` is a QuantizeLinear."""
    return node.op_type == "QuantizeLinear" and node.domain in QDQ_DOMAINS


def is_dequantize(node: ir.Node) -> bool:
    """Whether ``node`` is a DequantizeLinear."""
    return node.op_type == "DequantizeLinear" and node.domain in QDQ_DOMAINS


def qdq_pairs(model: ir.Model) -> list[Pair]:
    """Every pair of ``model``, bodies and functions included, in the order of their DequantizeLinear."""
    pairs = []
    for node in all_nodes(model):
        if not is_dequantize(node) or not node.inputs or node.inputs[0] is None:
            continue
        producer = node.inputs[0].producer()
        if producer is not None and is_quantize(producer) and producer.inputs[0] is not None:
            source = producer.inputs[0]
            stored = source if is_constant(source) else None
            name = _float_name(source, producer)
            pairs.append(Pair(name, _kind(node, stored is not None), producer, node, stored))
        elif is_constant(node.inputs[0]):
            stored = node.inputs[0]
            pairs.append(Pair((stored.name or "").removesuffix("_quantized"), _kind(node, True), None, node, stored))
    return pairs


def is_named(pair: Pair, nodes: Collection[ir.Node], values: Collection[ir.Value]) -> bool:
    """Whether a selection of ``nodes`` and ``values`` names ``pair``: by its float value, its stored value, its Q or its DQ."""
    own_values = [v for v in (pair.source, pair.output, pair.stored) if v is not None]
    own_nodes = [n for n in (pair.q, pair.dq) if n is not None]
    return any(n in nodes for n in own_nodes) or any(v in values for v in own_values)


def _float_name(source: ir.Value, q: ir.Node) -> str:
    """Name of the float value; a graph output keeps it on the DQ while its producer writes ``<o>_QuantizeLinear_Input``."""
    name = source.name or ""
    outputs = [dq.outputs[0] for dq in q.outputs[0].consumers() if is_dequantize(dq)]
    original = name.removesuffix("_QuantizeLinear_Input")
    return original if any(value.name == original for value in outputs) else name


def _kind(dq: ir.Node, is_parameter: bool) -> Kind:
    if not is_parameter:
        return "activation"
    uses = dq.outputs[0].uses()
    return "bias" if uses and all(BIAS_INPUT.get(use.node.op_type) == use.idx for use in uses) else "weight"


def encoding_of(node: ir.Node) -> Encoding | None:
    """The encoding a Q or DQ node applies, or None when scale or zero point are computed at run time."""
    scale = constant_array(node.inputs[1]) if len(node.inputs) > 1 else None
    if scale is None:
        return None
    zero_point_value = node.inputs[2] if len(node.inputs) > 2 else None
    if zero_point_value is not None:
        zero_point = constant_array(zero_point_value)
        if zero_point is None:
            return None
        dtype = zero_point_value.dtype or ir.DataType.from_numpy(zero_point.dtype)
    else:
        dtype = _storage_type(node)
        zero_point = np.zeros(scale.shape, np.int64)
    block_size = _int_attribute(node, "block_size", 0)
    per_tensor = scale.size == 1 and scale.ndim <= 1 and not block_size
    shape = () if per_tensor else scale.shape
    return Encoding(
        dtype=dtype,
        scale=tuple(np.asarray(scale, np.float64).ravel().tolist()),
        zero_point=tuple(_plain(z) for z in np.asarray(zero_point).ravel()),
        shape=shape,
        axis=None if per_tensor else _int_attribute(node, "axis", 1),
        block_size=block_size,
    )


def _plain(z: np.generic) -> int | float:
    value = float(z)
    return int(value) if value.is_integer() else value


def _storage_type(node: ir.Node) -> ir.DataType:
    """Type of the integers of a node without zero point: of the DQ's input, of the Q's output, or uint8 by default."""
    if is_dequantize(node) and node.inputs[0] is not None and node.inputs[0].dtype is not None:
        return node.inputs[0].dtype
    if "output_dtype" in node.attributes and (code := node.attributes["output_dtype"].as_int()):
        return ir.DataType(code)
    return node.outputs[0].dtype if is_quantize(node) and node.outputs[0].dtype is not None else ir.DataType.UINT8


def _int_attribute(node: ir.Node, name: str, default: int) -> int:
    attribute = node.attributes.get(name)
    return default if attribute is None or attribute.is_ref() else attribute.as_int()

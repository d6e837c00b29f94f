"""QDQ pairs of any tool: every QuantizeLinear with each of its DequantizeLinear readers, every DequantizeLinear on stored
integers, every node that is both; and the halves whose other half is outside of the graph."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.channels import BIAS_INPUT
from qdq_passes.graph.operators.qdq_ops import FIX, float_source, is_dequantize, is_quantize, is_quantize_dequantize
from qdq_passes.graph.uses import all_nodes, constant_array, dtype_of, integer_of, is_constant
from qdq_passes.numerics.arrays import MANY, Array, Numbers
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.missing import is_missing
from qdq_passes.numerics.pow2 import scale_of

__all__ = [
    "BIAS_INPUT",
    "Half",
    "Kind",
    "Pair",
    "dequantizers",
    "encoding_of",
    "float_source",
    "half_pairs",
    "is_dequantize",
    "is_named",
    "is_quantize",
    "pair_of",
    "pair_with",
    "qdq_pairs",
]


#: What the converting pair at a boundary of mixed types writes.
_CONVERTED = re.compile(r"_converted(_\d+)?$")

Kind = Literal["weight", "bias", "activation"]


@dataclass(frozen=True)
class Pair:
    """One QDQ pair, or the lone DequantizeLinear of a stored integer tensor.

    Args:
        tensor: name of the float value the pair stands on; for stored integers the float name (without ``_quantized``).
        kind: ``"weight"``, ``"bias"`` or ``"activation"``, by what the dequantized value feeds.
        q: the QuantizeLinear, None for stored integers.
        dq: the DequantizeLinear; the same node as ``q`` where one does both (FixNeuron).
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


@dataclass(frozen=True)
class Half:
    """A QuantizeLinear whose integers no DequantizeLinear reads, or a DequantizeLinear whose integers come from elsewhere: a
    graph end of integers, or integers that other operators compute on.

    Args:
        tensor: name of the float value.
        node: the Q or DQ.
        is_q: which of the two.
    """

    tensor: str
    node: ir.Node
    is_q: bool

    @property
    def encoding(self) -> Encoding | None:
        """The encoding of the node; None when its scale is not constant."""
        return encoding_of(self.node)


def qdq_pairs(model: ir.Model) -> list[Pair]:
    """Every pair of ``model``, bodies and functions included, in the order of their DequantizeLinear."""
    return [pair for node in all_nodes(model) if (pair := pair_of(node)) is not None]


def pair_of(node: ir.Node) -> Pair | None:
    """The pair whose DequantizeLinear (or FixNeuron) ``node`` is; None where it is in no pair."""
    if not node.inputs or node.inputs[0] is None:
        return None
    if is_quantize_dequantize(node):
        stored = node.inputs[0] if is_constant(node.inputs[0]) else None
        name = node.inputs[0].name or ""
        original = name.removesuffix("_QuantizeLinear_Input")
        name = original if node.outputs[0].name == original else name
        return Pair(name, _kind(node, stored is not None), node, node, stored)
    if not is_dequantize(node):
        return None
    producer = node.inputs[0].producer()
    if producer is not None and is_quantize(producer) and producer.inputs[0] is not None:
        source = producer.inputs[0]
        stored = source if is_constant(source) else None
        return Pair(_float_name(source, producer), _kind(node, stored is not None), producer, node, stored)
    if is_constant(node.inputs[0]):
        stored = node.inputs[0]
        return Pair((stored.name or "").removesuffix("_quantized"), _kind(node, True), None, node, stored)
    return None


def pair_with(half: ir.Node) -> Pair | None:
    """A pair that the Q or DQ ``half`` is in, of a Q the one with its first DQ; None where it is in none."""
    dq = half if is_dequantize(half) else next(iter(dequantizers(half)), None)
    return pair_of(dq) if dq is not None else None


def half_pairs(model: ir.Model) -> list[Half]:
    """Every Q and every DQ of ``model`` that is in no pair, in the order of the file."""
    halves = []
    for node in all_nodes(model):
        value = node.inputs[0] if node.inputs else None
        if is_quantize(node) and value is not None and not dequantizers(node):
            halves.append(Half(value.name or "", node, True))
        elif is_dequantize(node) and value is not None and not is_constant(value):
            producer = value.producer()
            if producer is None or not is_quantize(producer):
                halves.append(Half(node.outputs[0].name or "", node, False))
    return halves


def dequantizers(q: ir.Node) -> list[ir.Node]:
    """The DequantizeLinear nodes that read the integers of ``q``, each once; bodies included."""
    return list(dict.fromkeys(use.node for use in q.outputs[0].uses() if use.idx == 0 and is_dequantize(use.node)))


def is_named(pair: Pair, nodes: Collection[ir.Node], values: Collection[ir.Value]) -> bool:
    """Whether a selection of ``nodes`` and ``values`` names ``pair``: by its float value, its stored value, its Q or its DQ."""
    own_values = [v for v in (pair.source, pair.output, pair.stored) if v is not None]
    own_nodes = [n for n in (pair.q, pair.dq) if n is not None]
    return any(n in nodes for n in own_nodes) or any(v in values for v in own_values)


def _float_name(source: ir.Value, q: ir.Node) -> str:
    """Name of the float value; a graph output keeps it on the DQ while its producer writes ``<o>_QuantizeLinear_Input``.

    A conversion behind another DQ, from one type to another, is named by what it writes: ``<t>_converted``.
    """
    name, before = source.name or "", source.producer()
    if before is not None and is_dequantize(before):
        converted = [n for dq in dequantizers(q) if _CONVERTED.search(n := dq.outputs[0].name or "")]
        return converted[0] if converted else name
    original = name.removesuffix("_QuantizeLinear_Input")
    if name == original:
        return name
    quantizers = [
        use.node for use in source.uses() if is_quantize(use.node)
    ]  # several where every reader has a pair of its own
    return (
        original if any(dq.outputs[0].name == original for other in quantizers for dq in dequantizers(other)) else name
    )


def _kind(dq: ir.Node, is_parameter: bool) -> Kind:
    if not is_parameter:
        return "activation"
    if dq.inputs[0] is not None and dq.inputs[0].dtype == ir.DataType.INT32 and is_dequantize(dq):
        return "bias"  # no weight is stored in 32 bits
    uses = dq.outputs[0].uses()
    return "bias" if uses and all(BIAS_INPUT.get(use.node.op_type) == use.idx for use in uses) else "weight"


def encoding_of(node: ir.Node) -> Encoding | None:
    """The encoding a Q or DQ node applies, or None when scale or zero point are computed at run time, or it has no grid.

    Of scales and zero points whose data are missing the shape alone is known: they count as 1 and 0."""
    if is_quantize_dequantize(node):
        return _fixed(node)
    if len(node.inputs) > 2 and (many := _of_many(node)) is not None:
        return many
    scale = _parameter(node.inputs[1], 1) if len(node.inputs) > 1 else None
    if scale is None:
        return None
    zero_point_value = node.inputs[2] if len(node.inputs) > 2 else None
    if zero_point_value is not None:
        zero_point = _parameter(zero_point_value, 0)
        if zero_point is None:
            return None
        dtype = zero_point_value.dtype or ir.DataType.from_numpy(zero_point.dtype)
    else:
        dtype = _storage_type(node)
        zero_point = np.zeros(scale.shape, np.int64)
    block_size = integer_of(node, "block_size", 0)
    per_tensor = scale.size == 1 and scale.ndim <= 1 and not block_size and not (scale.ndim and _has_one_channel(node))
    shape = () if per_tensor else scale.shape
    return Encoding(
        dtype=dtype,
        scale=tuple(np.asarray(scale, np.float64).ravel().tolist()),
        zero_point=tuple(_plain(z) for z in np.asarray(zero_point).ravel()),
        shape=shape,
        axis=None if per_tensor else integer_of(node, "axis", 1),
        block_size=block_size,
    )


def _parameter(value: ir.Value | None, assumed: int) -> Array | None:
    """The array of a constant; of few numbers whose data are missing as many times ``assumed``."""
    tensor = None if value is None or value.is_graph_input() else value.const_value
    if tensor is None or not is_missing(tensor) or tensor.size >= MANY:
        return constant_array(value)
    return np.full(tensor.shape.numpy(), assumed, tensor.dtype.numpy())


def _of_many(node: ir.Node) -> Encoding | None:
    """The encoding of a node with many scales, or such that are computed when they are written, and a zero point for each, in
    initializers that are not read before they are asked for; None where it is no such node."""
    held = [None if value is None or value.is_graph_input() else value.const_value for value in node.inputs[1:3]]
    scale, zero_point = held
    if scale is None or zero_point is None or scale.shape != zero_point.shape:
        return None
    if scale.size < MANY and not issubclass(type(scale), ir.LazyTensor):
        return None
    return Encoding(
        dtype=zero_point.dtype,
        scale=Numbers.same(scale.size, 1)
        if is_missing(scale)
        else Numbers(scale.size, lambda: np.asarray(scale.numpy(), np.float64).reshape(-1), source=scale),
        zero_point=Numbers.same(scale.size, 0)
        if is_missing(zero_point)
        else Numbers(scale.size, lambda: zero_point.numpy().reshape(-1).astype(np.int64), source=zero_point),
        shape=tuple(scale.shape.numpy()),
        axis=integer_of(node, "axis", 1),
        block_size=integer_of(node, "block_size", 0),
    )


def _has_one_channel(node: ir.Node) -> bool:
    """Whether the axis that ``node`` names has one element: a scale of shape [1] is then per-axis, elsewhere per-tensor.

    Integers between a Q and its DQ often have no shape written down: then the shape beyond the other of the two tells.
    """
    if "axis" not in node.attributes:
        return False
    shape = next((v.shape for v in _same_shape(node) if v is not None and v.shape is not None), None)
    axis = integer_of(node, "axis", 1)
    return shape is not None and -len(shape) <= axis < len(shape) and shape[axis] == 1


def _same_shape(node: ir.Node) -> list[ir.Value | None]:
    """The values of the shape that the Q or DQ ``node`` reads: its own, and those of the Q and the DQs on its integers."""
    if is_quantize(node):
        q: ir.Node | None = node
    else:
        producer = node.inputs[0].producer() if node.inputs[0] is not None else None
        q = producer if producer is not None and is_quantize(producer) else None
    partners = [] if q is None else [q, *dequantizers(q)]
    return [v for one in (node, *partners) for v in (*one.inputs[:1], *one.outputs)]


def _fixed(node: ir.Node) -> Encoding | None:
    """The encoding of a FixNeuron of either form: by the attribute pos, or by the inputs scale and zero point (that of 0).

    Attributes may be texts, as custom operators of onnxruntime-extensions have them.
    """
    if (node.domain, node.op_type) not in FIX or "bit_width" not in node.attributes:
        return None
    dtype = ir.DataType.__members__.get(f"INT{node.attributes['bit_width'].value}")
    if dtype is None:
        return None
    if "pos" in node.attributes:
        return Encoding.per_tensor(dtype, scale_of(int(str(node.attributes["pos"].value))))
    given = [constant_array(value) for value in node.inputs[1:3]]
    if len(given) != 2 or any(array is None or array.size != 1 for array in given):
        return None
    scale, zero = (float(array.item()) for array in given if array is not None)
    return Encoding.per_tensor(dtype, scale, int(zero))


def _plain(z: np.generic) -> int | float:
    value = float(z)
    return int(value) if value.is_integer() else value


def _storage_type(node: ir.Node) -> ir.DataType:
    """Type of the integers of a node without zero point: of the DQ's input, of the Q's output, or uint8 by default."""
    if is_dequantize(node):
        integers = node.inputs[0]
        producer = integers.producer() if integers is not None else None
        if integers is None or integers.dtype is not None or producer is None or not is_quantize(producer):
            return (dtype_of(integers) if integers is not None else None) or ir.DataType.UINT8
        zero_point = producer.inputs[2] if len(producer.inputs) > 2 else None
        if zero_point is not None and (found := dtype_of(zero_point)) is not None:
            return found
        node = producer
    if "output_dtype" in node.attributes and (code := node.attributes["output_dtype"].as_int()):
        return ir.DataType(code)
    return node.outputs[0].dtype or ir.DataType.UINT8

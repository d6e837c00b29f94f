"""Biases in the accumulator of their layer: int32 at the scale s_x·s_w with zero point 0, so that they are added to the sum of
integer products without a multiplication (arXiv 1712.05877, equation 11). They must follow when s_x or s_w changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.channels import BIAS_INPUT, bias_channels
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantize, is_quantize_dequantize
from qdq_passes.graph.sizes import data_shape
from qdq_passes.graph.uses import constant_array, dtype_of, label
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.qdq.look.pairs import Pair, encoding_of, pair_of

#: Operators whose bias may stand in the accumulator, and its input; onnxruntime's quantizer treats the two norms alike.
ACCUMULATES = {**BIAS_INPUT, "InstanceNormalization": 2}

#: Largest relative difference between a scale and the product it is meant to be, in units of the float type's eps: two factors
#: and one product are rounded, each by eps/2.
ROUNDINGS = 1.5


@dataclass(frozen=True, eq=False)
class CoupledBias:
    """A bias whose scale is the product of its layer's.

    Args:
        bias: its pair; the QuantizeLinear is None for stored integers.
        node: the layer that reads it.
        index: as which input.
        factor: scale = factor·s_x·s_w; 1, or the β of a Gemm, which onnxruntime's quantizer multiplies in.
    """

    bias: Pair
    node: ir.Node
    index: int
    factor: float

    @property
    def sources(self) -> list[ir.Node]:
        """The nodes that dequantize input and weight."""
        return [node for value in self.node.inputs[:2] if (node := dequantizer_of(value)) is not None]


def bias_uses(nodes: Iterable[ir.Node]) -> list[tuple[ir.Node, int]]:
    """(node, input index) of every layer among ``nodes`` that reads a bias."""
    return [
        (node, index)
        for node in nodes
        if (index := ACCUMULATES.get(node.op_type)) is not None
        and index < len(node.inputs)
        and node.inputs[index] is not None
    ]


def coupled_biases(nodes: Sequence[ir.Node]) -> list[CoupledBias]:
    """Every int32 bias at s_x·s_w among ``nodes``, all those of a model, once per layer that reads it."""
    pairs = {pair.dq: pair for pair in map(pair_of, nodes) if pair is not None and pair.kind == "bias"}
    found = []
    for node, index in bias_uses(nodes):
        dq = dequantizer_of(node.inputs[index])
        pair = pairs.get(dq) if dq is not None else None
        encoding = pair.encoding if pair is not None else None
        if pair is None or encoding is None or encoding.dtype != ir.DataType.INT32 or not encoding.is_symmetric:
            continue
        factors = dict.fromkeys((1.0, _beta(node)))
        factor = next((f for f in factors if _is_product(encoding, product_at(node, index, f), pair)), None)
        if factor is not None:
            found.append(CoupledBias(pair, node, index, factor))
    return found


def product_at(node: ir.Node, index: int, factor: float = 1.0) -> Encoding | str:
    """The int32 encoding at factor·s_x·s_w of the bias that ``node`` reads as input ``index``, or why there is none.

    Per-tensor for a per-tensor weight, else along the last axis of the bias: weight [M, …] with scales [M] → bias [M]. The
    product is that of the stored scales in float32, in the float type of the layer.
    """
    name = label(node)
    found = []
    for value, what in zip(node.inputs[:2], ("input", "weight"), strict=True):
        dq = dequantizer_of(value)
        encoding = encoding_of(dq) if dq is not None else None
        if encoding is None:
            return f"the {what} of {name} has no constant encoding"
        found.append(encoding)
    of_x, of_w = found
    if len(of_x.scale) != 1:
        return f"the input of {name} has more than one scale"
    if of_w.block_size:
        return f"the weight of {name} has blocks"
    with np.errstate(over="ignore", under="ignore"):
        product = np.float32(of_x.scale[0]) * of_w.scale_array() * np.float32(factor)
    axis = None
    if of_w.axis is not None and len(of_w.scale) == 1:
        product = product.reshape(())
    elif of_w.axis is not None:
        shapes = [constant_shape(node.inputs[i]) for i in (1, index)]
        place = None
        if None not in shapes and shapes[0] and shapes[1] and -len(shapes[0]) <= of_w.axis < len(shapes[0]):
            place = bias_channels(node, of_w.axis % len(shapes[0]), shapes[0], shapes[1])
        if place is None:
            return f"the scales of the weight of {name} do not run along its output channels"
        axis, product = place[0], np.tile(product, place[1])
    return _int32(product, axis, float_type_of(node, index), name)


def dequantizer_of(value: ir.Value | None) -> ir.Node | None:
    """The node that writes ``value`` on an integer grid: a DequantizeLinear, or a FixNeuron."""
    producer = value.producer() if value is not None else None
    return producer if producer is not None and (is_dequantize(producer) or is_quantize_dequantize(producer)) else None


def constant_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """Shape of a constant, looked up through its pair or its DequantizeLinear; None for what is computed."""
    current = value
    for _ in range(3):
        shape = data_shape(current)
        if shape is not None:
            return shape
        producer = current.producer() if current is not None else None
        is_half = producer is not None and (is_quantize(producer) or dequantizer_of(current) is producer)
        current = producer.inputs[0] if producer is not None and is_half and producer.inputs else None
    return None


def _int32(product: npt.NDArray[Any], axis: int | None, float_type: ir.DataType, name: str) -> Encoding | str:
    with np.errstate(over="ignore", under="ignore"):
        scales = product.astype(float_type.numpy()).astype(np.float64)
    if not (np.isfinite(scales) & (scales > 0)).all():
        shown = f"{float(product.min()):.3g} to {float(product.max()):.3g}"
        return f"s_x·s_w of {name} is {shown}, which {float_type.name.lower()} does not hold"
    flat = tuple(scales.ravel().tolist())
    return Encoding(dtype=ir.DataType.INT32, scale=flat, zero_point=(0,) * len(flat), shape=scales.shape, axis=axis)


def float_type_of(node: ir.Node, index: int) -> ir.DataType:
    for value in (node.inputs[index], node.inputs[1], node.outputs[0]):
        dtype = dtype_of(value) if value is not None else None
        dq = dequantizer_of(value)
        scale = dq.inputs[1] if dq is not None and len(dq.inputs) > 1 else None
        dtype = dtype or (dtype_of(scale) if scale is not None else None)
        if dtype is not None:
            return dtype
    return ir.DataType.FLOAT


def _is_product(encoding: Encoding, product: Encoding | str, pair: Pair) -> bool:
    """Whether the scales of a bias are ``product``, to within the roundings of both."""
    if isinstance(product, str) or encoding.block_size:
        return False
    scale = constant_array(pair.dq.inputs[1])
    assert scale is not None
    have, wanted = np.array(encoding.scale, np.float64), np.array(product.scale, np.float64)
    if min(have.size, wanted.size) != 1 and have.size != wanted.size:
        return False
    limits = ml_dtypes.finfo(scale.dtype)  # type: ignore[no-untyped-call]
    tolerance = ROUNDINGS * float(limits.eps) * wanted + float(limits.smallest_subnormal)
    return bool(np.all(np.abs(have - wanted) <= tolerance))


def _beta(node: ir.Node) -> float:
    attribute = node.attributes.get("beta")
    return 1.0 if node.op_type != "Gemm" or attribute is None or attribute.is_ref() else attribute.as_float()

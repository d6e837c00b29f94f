"""Where a scaling of channels can start: what makes a value channel by channel with constants that can be divided.

Conv, ConvTranspose, Gemm, MatMul       W and b along the output channels
LayerNormalization, RMSNormalization…   gain and bias along the last axis
BatchNormalization, InstanceNormalization, GroupNormalization   gain and bias along axis 1
Mul by a constant per channel           the constant (a norm spelled out ends so); Div: it is multiplied"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.uses import FLOAT_TYPES, constant_array, dtype_of, integer_of, is_constant, is_standard
from qdq_passes.qdq.look.weighted_layers import WeightedLayer, weighted_layer
from qdq_passes.recover.look.channel_flow import why_fixed
from qdq_passes.recover.look.channel_steps import Sizes

Index = npt.NDArray[np.int64]

#: Norms: inputs that are gain and bias, and the channel axis.
NORMS = {
    ("", "LayerNormalization"): ((1, 2), -1),
    ("", "RMSNormalization"): ((1,), -1),
    ("", "SimplifiedLayerNormalization"): ((1,), -1),
    ("com.microsoft", "SimplifiedLayerNormalization"): ((1,), -1),
    ("com.microsoft", "SkipLayerNormalization"): ((2, 3), -1),
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): ((2,), -1),
    ("", "BatchNormalization"): ((1, 2), 1),
    ("", "InstanceNormalization"): ((1, 2), 1),
    ("", "GroupNormalization"): ((1, 2), 1),
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Source:
    """What makes a value channel by channel.

    Args:
        node: the operator.
        index: which channel each element of its output is; broadcasts to it and is of its rank.
        count: number of channels.
        layer: the weighted layer that it is; None of a norm.
        parameters: inputs of a norm that are divided, one number a channel; input → whether it is multiplied instead.
    """

    node: ir.Node
    index: Index
    count: int
    layer: WeightedLayer | None = None
    parameters: tuple[tuple[int, bool], ...] = ()

    @property
    def value(self) -> ir.Value:
        """What it makes."""
        return self.node.outputs[0]


def source_at(node: ir.Node, sizes_of: Sizes) -> Source | str | None:
    """``node`` as a source; why it cannot be scaled; None where it is no candidate."""
    layer = weighted_layer(node)
    if isinstance(layer, WeightedLayer):
        return _layer_source(layer, sizes_of)
    if layer is not None:
        return layer
    norm = NORMS.get((node.domain if node.domain != "ai.onnx" else "", node.op_type))
    if norm is not None:
        return _norm_source(node, norm[0], norm[1], sizes_of)
    if is_standard(node, "Mul", "Div") and len(node.inputs) == 2 and "axis" not in node.attributes:
        return _product_source(node, sizes_of)
    return None


def _rank(value: ir.Value, sizes_of: Sizes) -> int | None:
    sizes = sizes_of(value)
    return None if sizes is None else len(sizes)


def _layer_source(layer: WeightedLayer, sizes_of: Sizes) -> Source | str:
    reason, node = why_fixed(layer), layer.node
    rank = _rank(node.outputs[0], sizes_of)
    if reason is not None:
        return reason
    if rank is None:
        return "its number of dimensions is not known; run infer-shapes first"
    bias = node.inputs[2] if node.op_type != "MatMul" and len(node.inputs) > 2 else None
    if bias is not None and not is_constant(bias):
        return "its bias is not constant"
    count = layer.form.channels[0]
    if len(layer.form.shape) == 1:
        return "it has one output"
    axis = layer.form.output_axis(rank)
    return Source(node=node, index=_along(axis, rank, count), count=count, layer=layer)


def _norm_source(node: ir.Node, places: tuple[int, ...], axis: int, sizes_of: Sizes) -> Source | str:
    rank = _rank(node.outputs[0], sizes_of)
    inputs = [(i, node.inputs[i]) for i in places if i < len(node.inputs) and node.inputs[i] is not None]
    arrays = [constant_array(value) for _, value in inputs]
    if rank is None:
        return "its number of dimensions is not known; run infer-shapes first"
    if not inputs or inputs[0][0] != places[0] or any(array is None for array in arrays):
        return "its gain or bias is not constant"
    if integer_of(node, "training_mode", 0):
        return "is in training mode"
    if axis == -1 and integer_of(node, "axis", -1) not in (-1, rank - 1):
        return "normalizes over several axes"
    shapes = {array.shape for array in arrays if array is not None}
    sizes = sizes_of(node.outputs[0])
    count = next(iter(shapes))[0] if len(shapes) == 1 and len(next(iter(shapes))) == 1 else 0
    if not count or (axis == 1 and sizes is not None and isinstance(sizes[1], int) and sizes[1] != count):
        return "its gain is not one number a channel"
    return Source(
        node=node,
        index=_along(axis % rank, rank, count),
        count=count,
        parameters=tuple((position, False) for position, _ in inputs),
    )


def _product_source(node: ir.Node, sizes_of: Sizes) -> Source | str | None:
    for position, value in enumerate(node.inputs):
        array, other = constant_array(value), node.inputs[1 - position]
        if array is None or array.size < 2 or max(array.shape) != array.size or is_constant(other) or other is None:
            continue
        if value is None or dtype_of(value) not in FLOAT_TYPES or (node.op_type == "Div" and position == 0):
            continue
        rank = _rank(node.outputs[0], sizes_of)
        if rank is None or rank < array.ndim:
            return "its number of dimensions is not known; run infer-shapes first"
        axis = rank - array.ndim + array.shape.index(array.size)
        return Source(
            node=node,
            index=_along(axis, rank, array.size),
            count=array.size,
            parameters=((position, node.op_type == "Div"),),
        )
    return None


def _along(axis: int, rank: int, count: int) -> Index:
    return np.arange(count).reshape([count if i == axis else 1 for i in range(rank)])


def is_norm(source: Source) -> bool:
    """Whether it is a norm, or a product that may end one."""
    return source.layer is None


def largest(source: Source) -> npt.NDArray[np.float64]:
    """The largest magnitude of what makes each channel, [count]: of a layer's weights, of a norm's gain."""
    if source.layer is not None:
        array = constant_array(source.layer.stored)
        assert array is not None
        return np.asarray(source.layer.form.magnitudes(array).max(axis=2)).reshape(-1)
    position, is_divisor = source.parameters[0]
    gain = constant_array(source.node.inputs[position])
    assert gain is not None
    with np.errstate(divide="ignore"):
        magnitude = np.abs(gain.astype(np.float64)).reshape(-1)
        return np.asarray(1 / magnitude if is_divisor else magnitude)

"""inject-outliers"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.graph.edit import Namer, own_initializer, set_constant
from qdq_passes.graph.uses import (
    FLOAT_TYPES,
    all_nodes,
    constant_array,
    dtype_of,
    is_constant,
    is_standard,
    label,
    readers,
)
from qdq_passes.select.selectors import ALL, Selector, select_nodes

#: Norms and where their per-channel gain and bias stand; the channel axis is the last one, or 1 for BatchNormalization.
GAIN_AND_BIAS = {
    "LayerNormalization": (1, 2),
    "RMSNormalization": (1, None),
    "SimplifiedLayerNormalization": (1, None),
    "BatchNormalization": (1, 2),
}


@dataclass(frozen=True)
class InjectOutliers(Pass):
    """Make a model hard to quantize without changing it: a few channels behind a norm grow by 2^exponent.

    norm(x)·γ then W:  γ_c·2^e and W_c·2^-e on chosen channels c leave every product γ_c·W_c, and so every float output, bit for
    bit the same, while a per-tensor 8-bit scale of the norm's output must cover the outliers, as in real language models.

    Graph: unchanged; gain, bias and the consumers' weights get new data (copies, where others share them).
    Requires: a LayerNormalization, RMSNormalization or BatchNormalization, or a Mul by a per-channel constant, whose readers
    are all MatMul, Gemm or ungrouped Conv with constant weights.
    Keeps: everything; numerics bit-exact while no product over- or underflows.
    Skips: norms with other readers; norms that ``select`` does not name.

    Args:
        select: norms.
        channels: channels per norm.
        exponent: outliers grow by 2^exponent.
        seed: seed of the choice of channels.
    """

    keeps: ClassVar[Keeps] = EXACT
    select: Selector = ALL
    channels: int = 2
    exponent: int = 6
    seed: int = 0

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Scale one norm after the other, each with its own channels."""
        wanted = select_nodes(model, self.select)
        namer = Namer(model)
        random = np.random.default_rng(self.seed)
        for node in all_nodes(model):
            gain = _gain_input(node) if node in wanted else None
            if gain is None:
                continue
            reason = _why_not(node, gain)
            if reason is not None:
                yield skip(node, reason)
                continue
            size = _data(node, gain).size
            chosen = np.sort(random.choice(size, size=min(self.channels, size), replace=False))
            factor = np.ones(size, np.float64)
            factor[chosen] = 2.0**self.exponent
            yield from _scale(node, gain, factor, namer)


def _gain_input(node: ir.Node) -> int | None:
    """Index of the per-channel gain of a norm, None when ``node`` is no norm."""
    if node.op_type in GAIN_AND_BIAS and len(node.inputs) > 1:
        return GAIN_AND_BIAS[node.op_type][0]
    if is_standard(node, "Mul"):
        for index, value in enumerate(node.inputs):
            array = constant_array(value)
            if array is not None and array.ndim == 1 and array.size > 1 and not is_constant(node.inputs[1 - index]):
                return index
    return None


def _why_not(node: ir.Node, gain: int) -> str | None:
    output = node.outputs[0]
    uses = readers(output)
    if output.is_graph_output() or not uses:
        return "its output is read outside of linear layers"
    for index in (gain, GAIN_AND_BIAS.get(node.op_type, (None, None))[1]):
        value = node.inputs[index] if index is not None and index < len(node.inputs) else None
        if value is not None and (value.const_value is None or value.is_graph_input()):
            return "its gain or bias is no initializer"
    if dtype_of(output) not in FLOAT_TYPES:
        return "it does not compute on floats"
    for user, index in uses:
        axis = _input_channel_axis(user, index, channels_first=node.op_type == "BatchNormalization")
        if axis is None:
            return f"{user.name} is no linear layer with constant weights"
        if _data(user, 1).shape[axis] != _data(node, gain).size:
            return f"{user.name} mixes channels otherwise"
    return None


def _input_channel_axis(node: ir.Node, index: int, *, channels_first: bool) -> int | None:
    """Axis of the weight (input 1) that runs over the channels of input 0."""
    weight = node.inputs[1] if index == 0 and len(node.inputs) > 1 else None
    if weight is None or weight.const_value is None or weight.is_graph_input() or len(weight.const_value.shape) < 2:
        return None
    if channels_first:
        grouped = "group" in node.attributes and node.attributes["group"].as_int() != 1
        return 1 if is_standard(node, "Conv") and not grouped else None
    if is_standard(node, "MatMul"):
        return len(weight.const_value.shape) - 2
    if is_standard(node, "Gemm"):
        if "transA" in node.attributes and node.attributes["transA"].as_int():
            return None
        return 1 if "transB" in node.attributes and node.attributes["transB"].as_int() else 0
    return None


def _scale(node: ir.Node, gain: int, factor: npt.NDArray[np.float64], namer: Namer) -> Iterator[Change]:
    bias = GAIN_AND_BIAS.get(node.op_type, (None, None))[1]
    for index in (gain, bias):
        if index is not None and index < len(node.inputs) and node.inputs[index] is not None:
            _multiply(node, index, factor, namer)
    yield Change("edit", label(node), f"channels {np.flatnonzero(factor != 1).tolist()} × {factor.max():g}")
    for user, index in readers(node.outputs[0]):
        axis = _input_channel_axis(user, index, channels_first=node.op_type == "BatchNormalization")
        assert axis is not None
        shape = [-1 if i == axis else 1 for i in range(_data(user, 1).ndim)]
        _multiply(user, 1, (1.0 / factor).reshape(shape), namer)
        yield Change("edit", label(user), "rows scaled back")


def _multiply(node: ir.Node, index: int, factor: npt.NDArray[np.float64], namer: Namer) -> None:
    value = own_initializer(node, index, namer)
    array = _data(node, index)
    set_constant(value, np.multiply(array.astype(np.float64), factor).astype(array.dtype))


def _data(node: ir.Node, index: int) -> npt.NDArray[Any]:
    array = constant_array(node.inputs[index])
    assert array is not None
    return array

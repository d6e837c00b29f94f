"""Where a scaling of channels goes: who sees a value whose channels are scaled, and who can take the scaling back.

A value u has channels c along one axis. If u is divided by s_c, channel by channel, every operator that is homogeneous (Relu,
MaxPool, a product with something else…) hands the division on, operators that move elements move it along, constants that are
added are divided too, and a weighted layer takes it back when the columns of its weight are multiplied by s. A value on the
way carries an index: an array that broadcasts to the value's shape and says of each element which c it is, −1 where it is not
scaled; axes along which it does not change have size 1. So heads may be split off and merged again, repeated for grouped
queries, and joined with other channels."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.activations import is_bounded_relu
from qdq_passes.graph.uses import constant_array, is_standard, label, readers
from qdq_passes.qdq.look.weighted_layers import WeightedLayer, weighted_layer
from qdq_passes.recover.look.channel_steps import STEPS, Sizes, Step

Index = npt.NDArray[np.int64]

#: Why a Clip to [0, b] hands no scaling on.
CUTS_OFF = "cuts off at an upper bound"


@dataclass(frozen=True, eq=False)
class Sink:
    """A layer that takes a scaling back.

    Args:
        layer: the layer.
        index: [input channels], the c of each; −1 where it is not scaled.
    """

    layer: WeightedLayer
    index: Index


@dataclass(frozen=True, eq=False)
class Addend:
    """A constant that is added on the way and is scaled too.

    Args:
        node: reads it.
        position: index of the input.
        position: index of the input.
        index: the c of each element of the sum, of its rank; broadcasts to it.
    """

    node: ir.Node
    position: int
    index: Index


@dataclass(frozen=True, eq=False)
class Clip:
    """A Clip to [0, b] on the way.

    Args:
        node: the Clip.
        index: the c of each element; broadcasts to it and is of its rank.
    """

    node: ir.Node
    index: Index


@dataclass(eq=False)
class Flow:
    """All that a scaling of one value reaches.

    Args:
        sinks: the layers behind.
        addends: constants on the way.
        clips: Clips on the way.
        steps: operators that hand it on, Clips left out.
    """

    sinks: list[Sink] = field(default_factory=list)
    addends: list[Addend] = field(default_factory=list)
    clips: list[Clip] = field(default_factory=list)
    steps: list[ir.Node] = field(default_factory=list)


def flow_from(value: ir.Value, index: Index, sizes_of: Sizes, *, clips: bool = False) -> Flow | str:
    """What a scaling of ``value`` reaches; or why it cannot be taken back, the first reason found.

    Args:
        value: the scaled value.
        index: the c of each element, broadcasting to its shape and of its rank.
        sizes_of: sizes of a value: numbers, and names (or None) where they are dynamic; None where nothing is known.
        clips: a Clip to [0, b] hands the scaling on too; what becomes of its bound is the caller's business.
    """
    flow, seen = Flow(), dict[ir.Value, Index]()
    todo: list[tuple[ir.Value, Index]] = [(value, index)]
    while todo:
        current, at = todo.pop(0)
        if current in seen:
            return f"{current.name} is reached on two ways"
        seen[current] = at
        if current.is_graph_output():
            return f"{current.name} is an output of the graph"
        uses = readers(current)
        if not uses:
            return f"nothing reads {current.name}"
        for node, position in uses:
            if node.graph is not value.graph:
                return f"{label(node)} reads it in a body"
            if [v for v in node.inputs if v in seen and v is not current]:
                return f"{label(node)} combines it with what it was made of"
            if clips and position == 0 and is_bounded_relu(node):
                flow.clips.append(Clip(node, at))
                todo.append((node.outputs[0], at))
                continue
            reached = _reach(flow, node, position, at, sizes_of)
            if isinstance(reached, str):
                return reached
            todo += reached
    return flow


def _reach(flow: Flow, node: ir.Node, position: int, at: Index, sizes_of: Sizes) -> list[tuple[ir.Value, Index]] | str:
    """Note what ``node`` does with its scaled input; the values that it hands the scaling on to."""
    layer = weighted_layer(node)
    if isinstance(layer, WeightedLayer) and layer.data == position:
        channels = _channels_of(layer, at)
        if channels is not None:
            reason = why_fixed(layer)
            if reason is not None:
                return reason
            flow.sinks.append(Sink(layer, channels))
            return []
        if node.op_type != "MatMul":
            return f"{label(node)} mixes the channels otherwise"
    if is_standard(node, "Add", "Sub") and len(node.inputs) == 2 and "axis" not in node.attributes:
        return _added(flow, node, position, at, sizes_of)
    step = STEPS.get(node.op_type) if is_standard(node, node.op_type) else None
    outcome = step(Step(node, position, at, sizes_of)) if step is not None else None
    if outcome is None and is_bounded_relu(node):
        return f"{label(node)} {CUTS_OFF}"
    if outcome is None:
        return f"{label(node)} is not homogeneous, or mixes the channels"
    flow.steps.append(node)
    return [(value, moved) for value, moved in outcome if value.name and (value.uses() or value.is_graph_output())]


def _channels_of(layer: WeightedLayer, at: Index) -> Index | None:
    """The c of each input channel of ``layer``; None where they do not lie along its channel axis alone."""
    axis, count = layer.form.data_axis(at.ndim), layer.form.channels[1]
    if at.ndim == 0 or any(size != 1 for i, size in enumerate(at.shape) if i != axis):
        return None
    flat = at.reshape(-1)
    return np.broadcast_to(flat, count) if flat.size in (1, count) else None


def why_fixed(layer: WeightedLayer) -> str | None:
    """Why the weight of ``layer`` cannot be scaled."""
    if layer.pair is not None:
        return f"the weight of {label(layer.node)} is quantized"
    array = constant_array(layer.stored)
    if array is None or array.dtype.kind not in "fV":
        return f"the weight of {label(layer.node)} is no float constant"
    return None


def _added(flow: Flow, node: ir.Node, position: int, at: Index, sizes_of: Sizes) -> list[tuple[ir.Value, Index]] | str:
    other = node.inputs[1 - position]
    array = constant_array(other)
    if array is None:
        return f"{label(node)} adds what is not scaled"
    rank = max(at.ndim, array.ndim)
    moved = at.reshape([1] * (rank - at.ndim) + list(at.shape))
    flow.addends.append(Addend(node, 1 - position, moved))
    flow.steps.append(node)
    return [(node.outputs[0], moved)]


def factors_at(index: Index, scale: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """``scale`` [c] at each place of ``index``, 1 where it is −1."""
    return np.asarray(np.append(scale, 1.0)[index])


def largest_at(index: Index, count: int, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Of each c of ``count`` the largest of ``values``, which lie as ``index`` does; 0 of none."""
    found: npt.NDArray[Any] = np.zeros(count)
    known = index >= 0
    np.maximum.at(found, index[known], values[known])
    return found

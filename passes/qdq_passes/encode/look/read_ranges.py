"""What the readers of a value tell apart: a HardSwish gives 0 for whatever lies below −3, so that a grid need not reach there."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from qdq_passes.graph.edit import Namer, copy_model, make_node, new_constant
from qdq_passes.graph.operators.activations import cuts_off_at
from qdq_passes.graph.uses import all_values, float_of, is_standard, readers
from qdq_passes.qdq.look.value_ranges import EVERYTHING, Interval

#: Below it HardSwish, x·max(0, min(1, x/6 + 1/2)), is 0.
HARD_SWISH_ZERO = -3.0
#: First opset whose Clip takes its bounds as inputs.
CLIP = 11
#: Types for which onnxruntime has a kernel of it at every such opset.
CLIPPED = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


def read_range(value: ir.Value) -> Interval:
    """(low, high): every reader of ``value`` gives for what lies outside what it gives at the nearer end."""
    found = [_told_apart(node, value) for node, _ in readers(value)]
    if not found or value.is_graph_output():
        return EVERYTHING
    return min(low for low, _ in found), max(high for _, high in found)


def cut(model: ir.Model, names: Collection[str] | None) -> ir.Model:
    """A copy of ``model``, which computes the same, whose values ``names`` (None: all) lie in what their readers tell apart.

    A Clip stands in front of the readers, and has the name of the value; what was called so has a new one. Of a model of an opset
    below `CLIP`, whose Clip has no inputs for its bounds, nothing is cut.
    """
    made = copy_model(model)
    if made.opset_imports.get("", CLIP) < CLIP:
        return made
    namer = Namer(made)
    wanted = [value for value in all_values(made) if names is None or value.name in names]
    for value in wanted:
        low, high = read_range(value)
        producer = value.producer()
        is_kept = (low, high) == EVERYTHING or value.dtype not in CLIPPED
        if producer is None or producer.graph is not made.graph or is_kept or value.dtype is None:
            continue
        uses, name, kind = readers(value), value.name or "", value.dtype.numpy()
        value.name = namer.fresh(f"{name}_uncut")
        bounds = [
            None if math.isinf(end) else new_constant(made.graph, namer, f"{name}_end", np.array(end, kind))
            for end in (low, high)
        ]
        clip = make_node("Clip", [value, *bounds], name=namer.fresh(f"{name}_cut"), output=name, like=value)
        made.graph.insert_after(producer, clip)
        for node, index in uses:
            node.replace_input_with(index, clip.outputs[0])
    return made


def _told_apart(node: ir.Node, value: ir.Value) -> Interval:
    """What ``node`` tells apart of ``value``, which it reads."""
    if is_standard(node, "HardSwish"):
        return HARD_SWISH_ZERO, math.inf
    if is_standard(node, "HardSigmoid"):
        return _hard_sigmoid(node)
    if is_standard(node, "Relu", "Clip") and node.inputs[0] is value:
        return cuts_off_at(node)
    if is_standard(node, "Mul"):  # with its own HardSigmoid: a HardSwish in pieces
        other = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
        gate = other.producer() if other is not None else None
        if gate is not None and is_standard(gate, "HardSigmoid") and gate.inputs[0] is value:
            return _hard_sigmoid(gate)[0], math.inf
    return EVERYTHING


def _hard_sigmoid(node: ir.Node) -> Interval:
    alpha, beta = float_of(node, "alpha", 0.2), float_of(node, "beta", 0.5)
    return (-beta / alpha, (1 - beta) / alpha) if alpha > 0 else EVERYTHING

"""What stands behind a weighted layer up to where its output is one tensor again: bias, a residual Add, and what cuts it off.

    y = V·x + b  →  z = y + o  →  clip(z, low, high)

o is the other operand of an Add (0 without one), low and high what a Relu or Clip and the grid of the QuantizeLinear behind it
leave of z. A pair between y and the Add is looked through: its rounding is not the layer's."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.activations import cuts_off_at
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantize
from qdq_passes.graph.uses import is_constant, is_standard, only_reader
from qdq_passes.numerics.encoding import is_integer_type
from qdq_passes.numerics.reencode import real_range
from qdq_passes.qdq.look.pairs import encoding_of
from qdq_passes.qdq.look.weighted_layers import WeightedLayer


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerEnd:
    """The end of a layer.

    Args:
        linear: the value y, bias added.
        added: (Add, index of the operand o); None without one.
        low: what z is cut off at from below, −∞ where it is not.
        high: from above.
    """

    linear: ir.Value
    added: tuple[ir.Node, int] | None
    low: float
    high: float


def layer_end(layer: WeightedLayer) -> LayerEnd:
    """The end of ``layer``."""
    linear = (layer.node if layer.bias is None else layer.bias[0]).outputs[0]
    behind, added = linear, None
    passed = _behind_pair(linear)
    node = only_reader(passed)
    if not passed.is_graph_output() and node is not None and is_standard(node, "Add") and len(set(node.inputs)) == 2:
        other = 1 - node.inputs.index(passed)
        if not is_constant(node.inputs[other]):
            added, behind = (node, other), node.outputs[0]
    low, high = -math.inf, math.inf
    node = None if behind.is_graph_output() else only_reader(behind)
    if node is not None and is_standard(node, "Relu", "Clip"):
        low, high = cuts_off_at(node)
        behind = node.outputs[0]
        node = None if behind.is_graph_output() else only_reader(behind)
    if node is not None and is_quantize(node):
        grid = encoding_of(node)
        if grid is not None and is_integer_type(grid.dtype) and len(grid.scale) == 1:
            ends = [float(np.ravel(end)[0]) for end in real_range(grid)]
            low, high = max(low, ends[0]), min(high, ends[1])
    return LayerEnd(linear=linear, added=added, low=low, high=high)


def _behind_pair(value: ir.Value) -> ir.Value:
    """What a pair that alone reads ``value`` makes of it; ``value`` without one."""
    q = only_reader(value)
    if q is None or value.is_graph_output() or not is_quantize(q):
        return value
    dq = only_reader(q.outputs[0])
    return dq.outputs[0] if dq is not None and is_dequantize(dq) else value

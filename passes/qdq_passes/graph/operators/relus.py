"""Relu with an upper bound: Clip to [0, b], as Relu6 is exported."""

from __future__ import annotations

import onnx_ir as ir

from qdq_passes.graph.attributes import float_of
from qdq_passes.graph.uses import constant_array, is_standard


def is_bounded_relu(node: ir.Node) -> bool:
    """Whether ``node`` is a Clip to [0, b] with a constant b > 0."""
    return bound_of(node) is not None


def bound_of(node: ir.Node) -> float | None:
    """b of a Clip to [0, b]; None where ``node`` is none."""
    if not is_standard(node, "Clip"):
        return None
    if len(node.inputs) == 1:
        low, high = float_of(node, "min", -1.0), float_of(node, "max", 0.0)
    else:
        bounds = [constant_array(value) for value in (*node.inputs[1:3], None)[:2]]
        if any(bound is None or bound.size != 1 for bound in bounds):
            return None
        low, high = (float(bound.item()) for bound in bounds if bound is not None)
    return high if low == 0 < high else None

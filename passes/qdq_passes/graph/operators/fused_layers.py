"""Layers that NPUs compute in one: an operator and the activation behind it, a Pad and the average pool behind it."""

from __future__ import annotations

import onnx_ir as ir

from qdq_passes.graph.operators.clips import clip_bounds

#: Operators whose result an NPU keeps in its accumulator while the activation is applied (read in Quark 0.13).
PRODUCERS = ("Add", "AveragePool", "Conv", "ConvTranspose", "Gemm", "GlobalAveragePool", "MatMul", "MaxPool")
ACTIVATIONS = ("Clip", "LeakyRelu", "PRelu", "Relu")
#: Operators that take the border of a Pad before them along.
AVERAGE_POOLS = ("AveragePool", "GlobalAveragePool")
#: Bounds of the Clips that are applied in the accumulator, ReLU6 and ReLU1, and how far they may be off (read in Quark 0.13).
BOUNDS, TOLERANCE = ((0.0, 6.0), (0.0, 1.0)), 1e-6


def is_bounded_relu(clip: ir.Node) -> bool:
    """Whether the Clip ``clip`` has constant bounds (0, 6) or (0, 1)."""
    low, high = clip_bounds(clip)
    if low is None or high is None:
        return False
    return any(abs(low - a) < TOLERANCE and abs(high - b) < TOLERANCE for a, b in BOUNDS)

"""Activations: bounds of Clips, Relus with an upper bound, what NPUs compute with the layer before, the DPU's HardSigmoid."""

from __future__ import annotations

import math
from typing import Literal

import onnx_ir as ir

from qdq_passes.graph.uses import constant_array, float_of, is_standard
from qdq_passes.numerics.dpu import HARD_SIGMOID_BETA, is_hard_sigmoid

Bound = Literal["min", "max"]
BOUNDS: tuple[Bound, ...] = ("min", "max")


def clip_bounds(clip: ir.Node) -> tuple[float | None, float | None]:
    """(low, high) of ``clip``, see `clip_bound`; None where a bound is not given, or not known."""
    low, high = (clip_bound(clip, which) for which in BOUNDS)
    return (None if isinstance(low, str) else low), (None if isinstance(high, str) else high)


def cuts_off_at(node: ir.Node) -> tuple[float, float]:
    """What a Relu or Clip cuts off at; infinite where it has no bound, or one that is not known."""
    if node.op_type == "Relu":
        return 0.0, math.inf
    low, high = clip_bounds(node)
    return -math.inf if low is None else low, math.inf if high is None else high


def clip_bound(clip: ir.Node, which: Bound) -> float | str | None:
    """One bound of ``clip``, an attribute before opset 11, an input since, an int where it clips integers; in words why it is not
    known; None where it is not given."""
    attribute = clip.attributes.get(which)
    if attribute is not None:
        return "is an attribute of its function" if attribute.is_ref() else attribute.as_float()
    index = 1 if which == "min" else 2
    value = clip.inputs[index] if index < len(clip.inputs) else None
    array = constant_array(value)
    if value is None or array is None or array.size != 1:
        return None if value is None else "is computed"
    bound = array.item()
    if not isinstance(bound, int):  # of bfloat16 it is one of numpy's
        bound = float(bound)
    return "is no number" if bound != bound else bound


def is_bounded_relu(node: ir.Node) -> bool:
    """Whether ``node`` is a Clip to [0, b] with a constant b > 0."""
    return relu_bound(node) is not None


def relu_bound(node: ir.Node) -> float | None:
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


#: Operators whose result an NPU keeps in its accumulator while the activation is applied (read in Quark 0.13).
PRODUCERS = ("Add", "AveragePool", "Conv", "ConvTranspose", "Gemm", "GlobalAveragePool", "MatMul", "MaxPool")
ACTIVATIONS = ("Clip", "LeakyRelu", "PRelu", "Relu")
#: Operators that take the border of a Pad before them along.
AVERAGE_POOLS = ("AveragePool", "GlobalAveragePool")
#: Bounds of the Clips that are applied in the accumulator, ReLU6 and ReLU1, and how far they may be off (read in Quark 0.13).
ACCUMULATOR_BOUNDS, TOLERANCE = ((0.0, 6.0), (0.0, 1.0)), 1e-6


def is_relu6_or_relu1(clip: ir.Node) -> bool:
    """Whether the Clip ``clip`` has constant bounds (0, 6) or (0, 1)."""
    low, high = clip_bounds(clip)
    if low is None or high is None:
        return False
    return any(abs(low - a) < TOLERANCE and abs(high - b) < TOLERANCE for a, b in ACCUMULATOR_BOUNDS)


def is_dpu_hard_sigmoid(node: ir.Node) -> bool:
    """Whether ``node`` is a HardSigmoid with alpha 1/6 and beta 1/2; alpha must be given, beta's default is 1/2."""
    if not is_standard(node, "HardSigmoid"):
        return False
    alpha, beta = (node.attributes.get(name) for name in ("alpha", "beta"))
    if alpha is None or alpha.is_ref() or (beta is not None and beta.is_ref()):
        return False
    return is_hard_sigmoid(alpha.as_float(), HARD_SIGMOID_BETA if beta is None else beta.as_float())

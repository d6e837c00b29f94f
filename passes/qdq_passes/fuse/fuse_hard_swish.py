"""fuse-hard-swish"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps
from qdq_passes.fuse.edit.fusion import BOUNDED, CLOSE, FusionPass, Match, fuse, gate_match
from qdq_passes.graph.operators.activations import clip_bound
from qdq_passes.graph.operators.arithmetic import ONE, Sum, agree, product, scalar_of
from qdq_passes.graph.uses import float_of, is_standard


@dataclass(frozen=True)
class FuseHardSwish(FusionPass):
    """Recognise HardSwish in its pieces: one operator from opset 14 on, else a group that is quantized as one.

    y = x·clip(x + 3, 0, 6)/6 = x·HardSigmoid(x) with α = 1/6, β = 1/2. All orders and groupings count: the sixth before, behind
    or inside (clip(x/6 + 1/2, 0, 1)), by Mul or Div; Clip, or Relu, Min and Max that clip alike.

    Graph: ``x → Add, Clip, Mul, Div → y`` → ``x → HardSwish → y``; or unchanged, its nodes annotated ``part`` and the values
    between them ``fused``.
    Requires: the type of x, for the operator.
    Keeps: inputs, outputs and their names; numerics within the bound, bit-exact with ``into=group``.
    Skips: an inner value that others read or that is a graph output; the operator where it would compute other numbers (another
    type than float32, constants that are off by more than 2^-16) or the opset lacks it.

    Args:
        into: ``operator`` replaces the nodes, ``group`` marks them, ``auto`` replaces them where it can.
        raise_opset: first convert the model to the opset of the operator, where nothing else is in its way; what cannot be
            converted stays in pieces.
    """

    bounded: ClassVar[Keeps] = BOUNDED

    def run(self, model: ir.Model) -> Iterator[Change]:
        """From each HardSigmoid, Clip, Relu, Min and Max."""
        yield from fuse(
            model, ("HardSigmoid", "Clip", "Relu", "Min", "Max"), _hard_swish, self.into, raise_opset=self.raise_opset
        )


def _hard_swish(node: ir.Node) -> Match | str | None:
    if is_standard(node, "HardSigmoid") and node.inputs[0] is not None:
        alpha, beta = float_of(node, "alpha", 0.2), float_of(node, "beta", 0.5)
        if abs(6 * alpha - 1) > CLOSE or abs(2 * beta - 1) > CLOSE:
            return None
        argument, high, wanted = node.inputs[0], 1.0, {product(x=1): 1.0}
    else:
        bounded = _bounded(node)
        if bounded is None:
            return None
        argument, high = bounded
        wanted = {product(x=1): high / 6, ONE: high / 2}
    result: Sum = {product(x=1, g=1): 1 / high}
    return gate_match(
        "HardSwish", node.outputs[0], argument, lambda total, tolerance: agree(total, wanted, tolerance), [result]
    )


def _bounded(node: ir.Node) -> tuple[ir.Value, float] | None:
    """(a, b) where ``node`` writes a clipped to 0 and a positive b, alone or with the node before it; else None."""
    outer = _clipped(node)
    before = outer[0].producer() if outer is not None else None
    inner = _clipped(before) if before is not None else None
    if outer is None:
        return None
    value, low, high = outer
    if inner is not None and (low is None or inner[1] in (None, low)) and (high is None or inner[2] in (None, high)):
        value, low, high = inner[0], inner[1] if low is None else low, inner[2] if high is None else high
    return (value, high) if low == 0 and high is not None and high > 0 else None


def _clipped(node: ir.Node) -> tuple[ir.Value, float | None, float | None] | None:
    """(what ``node`` clips, lower bound, upper bound); None where it does not clip, or to what is computed."""
    if node.inputs and is_standard(node, "Relu") and node.inputs[0] is not None:
        return node.inputs[0], 0.0, None
    if is_standard(node, "Clip") and node.inputs[0] is not None:
        low, high = clip_bound(node, "min"), clip_bound(node, "max")
        return None if isinstance(low, str) or isinstance(high, str) else (node.inputs[0], low, high)
    if not is_standard(node, "Min", "Max") or len(node.inputs) != 2:
        return None
    for value, bound in (node.inputs, tuple(reversed(node.inputs))):
        number = scalar_of(bound)
        if number is not None and value is not None:
            return (value, None, number) if node.op_type == "Min" else (value, number, None)
    return None

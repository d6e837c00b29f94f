"""fuse-silu"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps
from qdq_passes.fuse.edit.fusion import BOUNDED, FusionPass, Match, fuse, gate_match
from qdq_passes.graph.operators.arithmetic import ONE, Sum, agree, outcomes, product
from qdq_passes.graph.uses import is_standard

X = product(x=1)


@dataclass(frozen=True)
class FuseSilu(FusionPass):
    """Recognise SiLU in its pieces: one Swish at opset 24, else a group that is quantized as one.

    y = x·σ(αx) = x/(1 + e^(−αx)); α = 1 is SiLU, α = 1.702 the quick Gelu of CLIP. All orders and groupings count.

    Graph: ``x → Sigmoid, Mul → y`` → ``x → Swish → y``; or unchanged, its nodes annotated ``part`` and the values between them
    ``fused``.
    Requires: the type of x, for the operator.
    Keeps: inputs, outputs and their names; numerics within the bound, bit-exact with ``into=group``.
    Skips: an inner value that others read or that is a graph output; the operator where it would compute in another type than
    float32 or the opset lacks it; with ``into=auto`` also above opset 24, where onnxruntime does not run it.

    Args:
        into: ``operator`` replaces the nodes, ``group`` marks them, ``auto`` replaces them where it can.
        raise_opset: first convert the model to the opset of the operator, where nothing else is in its way; what cannot be
            converted stays in pieces.
    """

    bounded: ClassVar[Keeps] = BOUNDED

    def run(self, model: ir.Model) -> Iterator[Change]:
        """From each Sigmoid and Exp."""
        yield from fuse(model, ("Sigmoid", "Exp"), _silu, self.into, raise_opset=self.raise_opset)


def _silu(node: ir.Node) -> Match | str | None:
    if not is_standard(node, "Sigmoid", "Exp") or node.inputs[0] is None:
        return None
    if node.op_type == "Sigmoid":
        result: Sum = {product(x=1, g=1): 1.0}
        return gate_match(
            "Swish", node.outputs[0], node.inputs[0], _is_scaled, [result], lambda total: _alpha(total[X])
        )
    e, result = node.outputs[0], {product(x=1, g=-1): 1.0}
    for gate, total in outcomes(e, lambda value: product(e=1) if value is e else None):
        if agree(total, {ONE: 1.0, product(e=1): 1.0}, 0.0):
            return gate_match("Swish", gate, node.inputs[0], _is_scaled, [result], lambda total: _alpha(-total[X]))
    return None


def _is_scaled(total: Sum, _: float) -> bool:
    return total.keys() == {X}


def _alpha(alpha: float) -> tuple[ir.Attr, ...]:
    return (ir.AttrFloat32("alpha", alpha),) if alpha != 1 else ()

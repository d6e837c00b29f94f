"""fuse-gelu"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps
from qdq_passes.fuse.edit.fusion import BOUNDED, FusionPass, Match, fuse, gate_match
from qdq_passes.graph.operators.arithmetic import Sum, agree, product
from qdq_passes.graph.uses import is_standard

#: x/√2, the argument of erf; x·√(2/π)·(1 + 0.044715·x²), that of tanh (Hendrycks & Gimpel, arXiv 1606.08415).
OF_ERF: Sum = {product(x=1): math.sqrt(0.5)}
OF_ERFC: Sum = {product(x=1): -math.sqrt(0.5)}
OF_TANH: Sum = {product(x=1): math.sqrt(2 / math.pi), product(x=3): 0.044715 * math.sqrt(2 / math.pi)}
#: x·(1 + g)/2 and, with erfc(−z) = 1 + erf(z), x·g/2.
HALF_AND_HALF: Sum = {product(x=1): 0.5, product(x=1, g=1): 0.5}
HALF: Sum = {product(x=1, g=1): 0.5}


@dataclass(frozen=True)
class FuseGelu(FusionPass):
    """Recognise Gelu in its pieces, exact or by tanh: one operator from opset 20 on, else a group that is quantized as one.

    y = x·(1 + erf(x/√2))/2, x·erfc(−x/√2)/2, or x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))/2. All orders and groupings count: the
    half before, behind or inside, division by √2 or 2, x³ by Pow or Mul, x·(1 + 0.044715·x²); constants of float16, too.

    Graph: ``x → Div, Erf, Add, Mul, Mul → y`` → ``x → Gelu → y``; or unchanged, its nodes annotated ``part`` and the values
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
        """From each Erf and Tanh."""
        yield from fuse(model, ("Erf", "Erfc", "Tanh"), _gelu, self.into, raise_opset=self.raise_opset)


def _gelu(node: ir.Node) -> Match | str | None:
    is_erfc = node.op_type == "Erfc"  # of com.microsoft or another domain: ONNX has none
    if not (is_erfc or is_standard(node, "Erf", "Tanh")) or node.inputs[0] is None:
        return None
    by_tanh = node.op_type == "Tanh"
    wanted, result = (OF_TANH if by_tanh else OF_ERFC if is_erfc else OF_ERF), HALF if is_erfc else HALF_AND_HALF
    approximate = (ir.AttrString("approximate", "tanh"),) if by_tanh else ()
    return gate_match(
        "Gelu", node.outputs[0], node.inputs[0], lambda total, tolerance: agree(total, wanted, tolerance), [result],
        lambda _: approximate,
    )  # fmt: skip

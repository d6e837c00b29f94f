"""fuse-rms-norm"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from qdq_passes.core.base import Change, Keeps
from qdq_passes.fuse._norms import BOUNDED, ROOTS, match_of
from qdq_passes.fuse.edit.fusion import FusionPass, fuse


@dataclass(frozen=True)
class FuseRmsNorm(FusionPass):
    """Recognise RMSNormalization in its pieces: one operator from opset 23 on, else a group that is quantized as one.

    y = x/√(mean(x²) + ε)·γ, the mean along the last k axes, γ [the last k axes]. All orders and groupings count: squares by Mul
    or Pow, the root by Sqrt or Pow, division by Div, Reciprocal or 1/…, x·(γ/…), Casts to float32 around it (float16 models).

    Graph: ``x → Pow, ReduceMean, Add, Sqrt, Reciprocal, Mul, Mul → y`` → ``x → RMSNormalization(γ) → y``; or unchanged, its
    nodes annotated ``part`` and the values between them ``fused``.
    Requires: shapes, where axes are counted from the front or γ is missing.
    Keeps: inputs, outputs and their names; numerics within the bound, bit-exact with ``into=group``.
    Skips: an inner value that others read or that is a graph output; an ε that is not constant; other axes than the last ones;
    the operator where it would compute other numbers (arithmetic in float16 or float64) or the opset lacks it.

    Args:
        into: ``operator`` replaces the nodes, ``group`` marks them, ``auto`` replaces them where it can.
        raise_opset: first convert the model to the opset of the operator, where nothing else is in its way; what cannot be
            converted stays in pieces.
    """

    bounded: ClassVar[Keeps] = BOUNDED

    def run(self, model: ir.Model) -> Iterator[Change]:
        """From each square root."""
        yield from fuse(
            model, ROOTS, lambda node: match_of(node, "RMSNormalization"), self.into, raise_opset=self.raise_opset
        )

"""fuse-layer-norm"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps
from qdq_passes.fuse._norms import BOUNDED, ROOTS, match_of
from qdq_passes.fuse.edit.fusion import FusionPass, fuse


@dataclass(frozen=True)
class FuseLayerNorm(FusionPass):
    """Recognise LayerNormalization in its pieces: one operator from opset 17 on, else a group that is quantized as one.

    y = (x − μ)/√(σ² + ε)·γ + β, σ² = mean((x − μ)²); means along the last k axes, γ and β [the last k axes]. Exporters write it
    in many orders; all that compute this count: squares by Mul or Pow, the root by Sqrt or Pow, division by Div, Reciprocal or
    1/σ, x·(γ/σ) + (β − μ·γ/σ), the mean twice, Casts to float32 around it (float16 models) and between.

    Graph: ``x → ReduceMean, Sub, Pow, ReduceMean, Add, Sqrt, Div, Mul, Add → y`` → ``x → LayerNormalization(γ, β) → y``; or
    unchanged, its nodes annotated ``part`` and the values between them ``fused``.
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
            model, ROOTS, lambda node: match_of(node, "LayerNormalization"), self.into, raise_opset=self.raise_opset
        )

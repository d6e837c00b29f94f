"""fold-scale"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass
from qdq_passes.fuse.edit.gains import fold_gains
from qdq_passes.fuse.edit.layers import fold_channel_constants
from qdq_passes.graph.operators.layers import Layer
from qdq_passes.numerics.arrays import Array


@dataclass(frozen=True)
class FoldScale(Pass):
    """Fold a Mul by one constant per output channel into the weights of the Conv or ConvTranspose before it.

    Y = k(WX + B)  ⇒  W' = W·k over the output channels, B' = B·k, with k [1, C, 1, …], [C, 1, …] or one element.

    Graph: ``x → Conv(w, b) → t → Mul(k) → y`` → ``x → Conv(w', b') → y``. The new initializers are ``y_weight`` and ``y_bias``;
    the Conv keeps its name, the output keeps the Mul's.
    With ``linear`` also of the last axis into ``x → MatMul(w) → [Add(b)] → t → Mul(k) → y`` and into a Gemm.
    Requires: weights and k are constants.
    Keeps: inputs, outputs and their names; numerics within the bound.
    Skips: t has other readers or is a graph output; k of another shape; k not finite; weights not float32 or float64.

    Args:
        linear: fold the gain of a linear layer too, as of a layer scale; it spreads the ranges of the columns of its weight.
        reference: fold what XINT8 of AMD Quark 0.13 folds: k as the second factor, no single element, no ConvTranspose with
            groups; the Conv is called like its former output.
    """

    keeps: ClassVar[Keeps] = Keeps(
        "bounded",
        bound=2.0**-14,
        why="W' and B' are rounded once, 2^-24 relative each, as the product with k was, and the K products may associate "
        "differently: error ≤ (K + 2)·2^-24·Σ|w'x|; with K ≤ 2^12 and random signs about 2^-18 of max|y|, 2^4 left for "
        "cancellation",
    )
    reference: bool = False
    linear: bool = False

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Layer by layer; a chain of Muls folds from the front."""
        yield from fold_channel_constants(model, "Mul", _scaled, reference=self.reference)
        if self.linear:
            yield from fold_gains(model)


def _scaled(layer: Layer, factor: Array) -> tuple[Array, Array | None] | str:
    if not np.isfinite(factor).all():
        return "its constant is not finite"
    return layer.weight * layer.along_outputs(factor), None if layer.bias is None else layer.bias * factor

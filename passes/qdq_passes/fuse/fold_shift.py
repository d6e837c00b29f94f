"""fold-shift"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass
from qdq_passes.fuse.edit.layers import fold_channel_constants
from qdq_passes.graph.operators.layers import Layer
from qdq_passes.numerics.arrays import Array


@dataclass(frozen=True)
class FoldShift(Pass):
    """Fold an Add of one constant per output channel into the bias of the Conv or ConvTranspose before it.

    Y = (WX + B) + k  ⇒  B' = B + k, with k [1, C, 1, …], [C, 1, …] or one element; without a bias B' = k.

    Graph: ``x → Conv(w, b) → t → Add(k) → y`` → ``x → Conv(w, b') → y``. The new initializer is ``y_bias``, the weight keeps its
    name; so does the Conv, and the output keeps the Add's.
    Requires: weights and k are constants.
    Keeps: inputs, outputs and their names; numerics within the bound.
    Skips: t has other readers or is a graph output; k of another shape; weights not float32 or float64.

    Args:
        reference: fold what XINT8 of AMD Quark 0.13 folds: k as the second summand, no single element, no ConvTranspose with
            groups; the Conv is called like its former output.
    """

    keeps: ClassVar[Keeps] = Keeps(
        "bounded",
        bound=2.0**-14,
        why="for |B|, |k| up to 2^8·max|y|: (WX + B) + k and WX + (B + k) round twice each, numbers up to 2^8·max|y|, by 2^-24 "
        "relative: error ≤ 4·2^8·2^-24·max|y| = 2^-14·max|y|",
    )
    reference: bool = False

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Layer by layer; a chain of Adds folds from the front."""
        yield from fold_channel_constants(model, "Add", _shifted, reference=self.reference)


def _shifted(layer: Layer, shift: Array) -> tuple[None, Array]:
    return None, shift if layer.bias is None else layer.bias + shift

"""decompose-attention"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.attention.edit.dot_product import attention_parts, decompose_attentions
from qdq_passes.attention.edit.primitives import ATTENTION_BOUNDED
from qdq_passes.core.base import Change, Keeps, Pass
from qdq_passes.graph.uses import is_standard
from qdq_passes.select.selectors import ALL, Selector


@dataclass(frozen=True)
class DecomposeAttention(Pass):
    """Write Attention of onnx (opset 23 on) in its pieces: MatMul, Softmax, MatMul.

    Y = softmax(cap(scale·QKᵀ) + bias)·V. A boolean mask becomes a bias of 0 and −∞, a causal attention gets one that hides keys
    > query + past (+ keys of the row − S, where these are an input); keys of few heads are repeated, three axes become four.

    Graph: ``Q, K, V, mask → Attention → Y`` → ``Q·scale, Kᵀ → MatMul → Add(mask) → Softmax → MatMul(V) → Y``. A past is joined by
    a Concat; where there is a mask, rows that see nothing are 0 by IsNaN and Where.
    Requires: number and sizes of heads.
    Keeps: inputs, outputs and their names; numerics within the bound.
    Skips: scores given out; windows of later keys; masks that cover fewer keys than there are; bfloat16.

    Args:
        select: the operators.
    """

    keeps: ClassVar[Keeps] = ATTENTION_BOUNDED
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Node by node; masks are made once for all that have the same lengths."""
        yield from decompose_attentions(
            model, self.select, lambda node: is_standard(node, "Attention"), attention_parts
        )

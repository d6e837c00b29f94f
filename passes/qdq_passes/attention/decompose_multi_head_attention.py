"""decompose-multi-head-attention"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.attention.edit.dot_product import decompose_attentions, multi_head_parts
from qdq_passes.attention.edit.primitives import ATTENTION_BOUNDED
from qdq_passes.core.base import Change, Keeps, Pass
from qdq_passes.graph.edit import drop_unused_domains
from qdq_passes.select.selectors import ALL, Selector


@dataclass(frozen=True)
class DecomposeMultiHeadAttention(Pass):
    """Write com.microsoft MultiHeadAttention in standard operators: Concat with the past, MatMul, Softmax, MatMul.

    Y = softmax(scale·QKᵀ + bias)·V; a padding mask is a bias of mask_filter_value, unidirectional hides keys > query + past.

    Graph: ``query, key, value, past_key, past_value → MultiHeadAttention → y, present_key, present_value`` →
    ``past_key, key → Concat → present_key``, …, ``scores → Add(mask) → Softmax → MatMul → y``.
    Requires: sizes of heads.
    Keeps: inputs, outputs and their names; numerics within the bound.
    Skips: packed queries, keys and values; caches shared between beams; padding told by lengths; scores given out.

    Args:
        select: the operators.
    """

    keeps: ClassVar[Keeps] = ATTENTION_BOUNDED
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Node by node; masks are made once for all that have the same lengths."""
        yield from decompose_attentions(model, self.select, _is_multi_head, multi_head_parts)
        drop_unused_domains(model, ["com.microsoft"])


def _is_multi_head(node: ir.Node) -> bool:
    return node.op_type == "MultiHeadAttention" and node.domain == "com.microsoft"

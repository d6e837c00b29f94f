"""decompose-multi-head-attention"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from qdq_passes.analysis.uses import all_nodes
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.core.edit import drop_unread, drop_unused_domains
from qdq_passes.core.inference import Inferred
from qdq_passes.core.kv_attention import BOUNDED
from qdq_passes.core.kv_build import Builder
from qdq_passes.core.kv_dot_product import multi_head_parts
from qdq_passes.core.kv_once import Once
from qdq_passes.core.kv_replace import take_place
from qdq_passes.core.select import ALL, Selector, select_operators


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

    keeps: ClassVar[Keeps] = BOUNDED
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Node by node; masks are made once for all that have the same lengths."""
        wanted, builder, inferred, once = select_operators(model, self.select), Builder(model), Inferred(model), Once()
        for node in all_nodes(model):
            if node.op_type != "MultiHeadAttention" or node.domain != "com.microsoft" or node not in wanted:
                continue
            parts = multi_head_parts(builder, node, inferred, once)
            if isinstance(parts, str):
                yield skip(node, parts)
                continue
            read = list(node.inputs)
            yield take_place(node, parts.result(), builder.namer, "standard operators that compute the same")
            drop_unread(read)
        drop_unused_domains(model, ["com.microsoft"])

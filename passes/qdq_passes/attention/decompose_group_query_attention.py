"""decompose-group-query-attention"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from qdq_passes.attention.edit.attention import BOUNDED
from qdq_passes.attention.edit.group_query import write_group_query
from qdq_passes.attention.look.group_query import OPERATOR, group_query
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.graph.build import Builder, Once, drop_chains, take_place
from qdq_passes.graph.edit import drop_unused_domains
from qdq_passes.graph.uses import all_nodes
from qdq_passes.select.selectors import ALL, Selector, select_operators


@dataclass(frozen=True)
class DecomposeGroupQueryAttention(Pass):
    """Write com.microsoft GroupQueryAttention in standard operators: Concat with the past, rotation, MatMul, Softmax, MatMul.

    scores = scale·QKᵀ (capped), key k seen by query q where past + q - window < k ≤ past + q; positions past + 0…S-1. Queries,
    keys and values in one tensor are cut apart; heads are normalized, rotated and repeated as inputs and attributes say. A
    local_window_size of w lets a query see w keys, as onnxruntime 1.31.1 has it (measured; 1.23.2 lets it see w + 1).

    Graph: ``query, key, value, past_key, past_value, seqlens_k, total → GroupQueryAttention → y, present_key, present_value`` →
    ``past_key, rotated key → Concat → present_key``, …, ``scores → Add(mask) → Softmax → MatMul → y``. Where past is declared as
    long as present, new rows are written at seqlens_k + 1 - S … seqlens_k by ScatterElements.
    Requires: rows that all are as long as the cache, where it grows: seqlens_k + 1 = past + S. The size of a head is known.
    Keeps: inputs, outputs and their names, an attention mask too that told the lengths alone and is not read any more; numerics
    within the bound. A cache of the size of its window (sliding_window_cache)
    becomes one that grows.
    Skips: scores given out, a quantized cache, keys of another layer (a past without new keys).

    Args:
        select: the operators.
    """

    keeps: ClassVar[Keeps] = BOUNDED
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Node by node; positions and masks are made once for all that have the same past."""
        wanted, builder, once = select_operators(model, self.select), Builder(model), Once()
        for node in all_nodes(model):
            if node.op_type != OPERATOR or node.domain != "com.microsoft" or node not in wanted:
                continue
            found = group_query(node)
            if isinstance(found, str):
                yield skip(node, found)
                continue
            read = list(node.inputs)
            outputs = write_group_query(builder.at(node), node, found, once)
            yield take_place(node, outputs, builder.namer, "standard operators that compute the same")
            yield from drop_chains(read)
        drop_unused_domains(model, ["com.microsoft"])

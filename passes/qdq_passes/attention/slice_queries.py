"""slice-queries

Row q of softmax(QKᵀ)·V depends on row q of Q alone: rows may be computed some at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.attention.edit.pieces import Pieces, in_pieces
from qdq_passes.attention.edit.primitives import ATTENTION_BOUNDED
from qdq_passes.attention.look.regions import AttentionRegion, attention_regions
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.errors import UsageError
from qdq_passes.graph.build import Builder
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.select.selectors import ALL, Selector, select_operators


@dataclass(frozen=True)
class SliceQueries(Pass):
    """Compute an attention of many queries some queries at a time: scores [.., S, C] of a long prompt fill a device's memory.

    Graph: ``Q → MatMul(Kᵀ) → Add(mask) → Softmax → MatMul(V) → Y`` →
    ``Q → Split → Q0, Q1; mask → Split; Q0 → … → Y0; Q1 → … → Y1; Y0, Y1 → Concat → Y``. Slices have equal sizes, or the last one
    less; a mask is cut once for all attentions that read it.
    Requires: sizes (bind-decoder).
    Keeps: inputs, outputs and their names; numerics within the bound: the same sums of other blocks.
    Skips: attentions of few queries; attentions that are one operator; scores that something else reads.

    Args:
        above: most queries at a time. 1024 is the mark of the profile `ane`; Apple slices by 512 (SPLIT_EINSUM_V2 of
            ml-stable-diffusion), to avoid large intermediate tensors.
        select: the attentions, by their Softmax.
    """

    keeps: ClassVar[Keeps] = ATTENTION_BOUNDED
    above: int = 1024
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Attention by attention."""
        if self.above < 1:
            raise UsageError(f"above={self.above} leaves no query", hint="at least 1")
        builder, inferred = Builder(model), Inferred(model)
        pieces = Pieces(builder)
        for found in attention_regions(model, inferred.sizes, set(select_operators(model, self.select))):
            if not isinstance(found, AttentionRegion):
                yield skip(*found)
            elif found.queries <= self.above:
                yield skip(found.scores, f"{found.queries} queries are few enough")
            else:
                yield from self._slice(found, inferred, pieces, builder)

    def _slice(self, region: AttentionRegion, inferred: Inferred, pieces: Pieces, builder: Builder) -> Iterator[Change]:
        count = -(-region.queries // self.above)
        size = -(-region.queries // count)
        sizes = [min(size, region.queries - start) for start in range(0, region.queries, size)]
        query, masks = region.scores.inputs[0], {value for _, _, value in region.operands()}

        def stands(value: ir.Value, number: int) -> ir.Value:
            known = inferred.sizes(value)
            if value is not query and (value not in masks or not known or len(known) < 2 or known[-2] == 1):
                return value
            rank = len(region.sizes) if known is None else len(known)
            return pieces.of(value, rank - 2, sizes, region.scores)[number]

        yield from in_pieces(region, sizes, -2, stands, "slice", builder)

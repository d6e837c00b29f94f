"""split-attention-heads

Head h of softmax(QKᵀ)·V is softmax(Q_h K_gᵀ)·V_g, g being the head of keys and values that head h reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.attention.edit.pieces import Pieces, in_pieces
from qdq_passes.attention.edit.primitives import ATTENTION_BOUNDED
from qdq_passes.attention.look.regions import AttentionRegion, KeyHeads, attention_regions, key_heads
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.graph.build import Builder
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.graph.uses import is_constant
from qdq_passes.select.selectors import ALL, Selector, select_operators


@dataclass(frozen=True)
class SplitAttentionHeads(Pass):
    """Compute each head of an attention by its own small products; heads that share keys read these where they are, unrepeated.

    Graph: ``K [B, G, C, D] → Expand, Reshape → [B, H, C, D] → Transpose → MatMul(Q) → Add(mask) → Softmax → MatMul(V) → Y`` →
    ``Q → Split → Q0…; K → Split → K0…; Q0, K0ᵀ → MatMul → Add(mask) → Softmax → MatMul(V0) → Y0; …; Y0… → Concat → Y``.
    Requires: scores of four dimensions [B, H, S, C], sizes (bind-decoder).
    Keeps: inputs, outputs and their names; numerics within the bound.
    Skips: one head; attentions that are one operator; scores of other dimensions, or that something else reads.

    Args:
        select: the attentions, by their Softmax.
    """

    keeps: ClassVar[Keeps] = ATTENTION_BOUNDED
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Attention by attention."""
        builder, inferred = Builder(model), Inferred(model)
        pieces = Pieces(builder)
        for found in attention_regions(model, inferred.sizes, set(select_operators(model, self.select))):
            if not isinstance(found, AttentionRegion):
                yield skip(*found)
            elif len(found.sizes) != 4:
                yield skip(found.scores, f"scores are {list(found.sizes)}, not [batch, heads, queries, keys]")
            elif found.sizes[1] == 1:
                yield skip(found.scores, "has one head")
            else:
                yield from _split(found, inferred, pieces, builder)


def _split(region: AttentionRegion, inferred: Inferred, pieces: Pieces, builder: Builder) -> Iterator[Change]:
    heads = region.sizes[1]
    turned = {
        value: _Heads(key_heads(value, heads, inferred.sizes), product, inferred, pieces, builder)
        for product in (region.scores, region.sums)
        if (value := product.inputs[1]) is not None
    }
    query, operands = region.scores.inputs[0], {value for _, _, value in region.operands()}

    def stands(value: ir.Value, number: int) -> ir.Value:
        if value in turned:
            return turned[value].head(number)
        known = inferred.sizes(value)
        if value is not query and (value not in operands or not known or len(known) < 3 or known[-3] == 1):
            return value
        rank = len(region.sizes) if known is None else len(known)
        return pieces.of(value, rank - 3, [1] * heads, region.scores)[number]

    yield from in_pieces(region, [1] * heads, -3, stands, "head", builder)


class _Heads:
    """Keys or values of one attention, head by head; what several heads read is made once."""

    def __init__(self, keys: KeyHeads, product: ir.Node, inferred: Inferred, pieces: Pieces, builder: Builder) -> None:
        self._keys, self._product, self._pieces, self._builder = keys, product, pieces, builder
        self._count = (inferred.sizes(keys.source) or [1, 1])[1]
        self._made: dict[int, ir.Value] = {}

    def head(self, number: int) -> ir.Value:
        """What head ``number`` reads."""
        at = self._keys.heads[number]
        if at not in self._made:
            value = self._pieces.of(self._keys.source, 1, [1] * self._count, self._product)[at]
            site = self._builder.at(self._product, base=value.name)
            for node in self._keys.scales:
                value = site(node.op_type, *(v if is_constant(v) else value for v in node.inputs))
            self._made[at] = site.transpose(value, 0, 1, 3, 2) if self._keys.is_turned else value
        return self._made[at]

"""share-qdq

Two pairs on one value t with equal roundings F give F(t) twice: one F(t) read by all consumers is the same, bit for bit. What is
equal is decided on the numbers (storage type, scales, zero points, axis counted from the front, block size, float type), not on
which initializers hold them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.nesting import nesting_of
from qdq_passes.qdq.edit.share import merge_twins, share_parameters
from qdq_passes.qdq.look.pairs import dequantizers, is_named, qdq_pairs
from qdq_passes.select.selectors import ALL, Selector, select


@dataclass(frozen=True)
class ShareQdq(Pass):
    """Give all consumers of a value one pair: pairs on it with equal encodings become one, and so do their parameters.

    Graph: ``t → {Q1 → DQ1 → A, Q2 → DQ2 → B}`` → ``t → Q1 → DQ1 → {A, B}``; ``w_quantized → {DQ1 → A, DQ2 → B}`` likewise. Scales
    and zero points of the pair that are equal constants become one.
    Requires: constant scales.
    Keeps: inputs, outputs and their names; numerics bit-exact.
    Skips: different encodings on one value (both are named); pairs of different domains; pairs in bodies that do not see each
    other; FixNeuron.

    Args:
        select: pairs, by their float value.
    """

    keeps: ClassVar[Keeps] = EXACT
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Merge Q nodes: their DQ nodes then read the same integers and are merged, which may make new twins; parameters last."""
        hit, nesting, namer = select(model, self.select), nesting_of(model), Namer(model)
        nodes, values = set(hit.nodes), set(hit.values)
        pairs = [pair for pair in qdq_pairs(model) if self.select.is_all or is_named(pair, nodes, values)]
        fixed = [pair.dq for pair in pairs if pair.q is pair.dq]
        for node in fixed:
            yield skip(node, "both halves are one node; run convert-qdq-domain{to=onnx} first")
        halves = [pair.dq for pair in pairs if pair.q is not pair.dq]
        quantizers = [pair.q for pair in pairs if pair.q is not None and pair.q is not pair.dq]
        is_done = False
        while not is_done:
            changes: list[Change] = []
            for group in (quantizers, halves):
                changes += merge_twins(model, [node for node in group if node.graph is not None], nesting, namer)
            is_done = all(change.is_skip for change in changes)
            yield from (change for change in changes if is_done or not change.is_skip)
        for q in dict.fromkeys(quantizers):
            if q.graph is not None:
                yield from share_parameters(q, dequantizers(q))

"""fold-qdq

DQ then Q with equal encodings gives back the integers it was given: round((q − z)·s / s) + z = q. For types of up to 16 bits in
float32 this is proved in `qdq.look.exact` (the error stays below 2^-6 of a step) as long as no (q − z)·s is infinite; in
float16 and bfloat16 it is tried for every integer of the type; of int32 it is false (a float32 has 24 bits): such nodes stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from typing import ClassVar, Literal

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.graph.edit import Namer, drop_unread, remove, replace_value
from qdq_passes.graph.nesting import nesting_of
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantization, is_quantize, is_quantize_dequantize
from qdq_passes.graph.uses import all_nodes
from qdq_passes.qdq.edit.share import adopt_axis, is_unread, merge_twins
from qdq_passes.qdq.look.exact import rounding_of, why_not_cancelled
from qdq_passes.qdq.look.pairs import dequantizers
from qdq_passes.select.selectors import ALL, Selector, select


@dataclass(frozen=True)
class FoldQdq(Pass):
    """Fold what pairs do twice or for nobody: DQ and Q that cancel, pairs there are several of on one value, unread halves.

    Graph: ``i → DQ → Q → j`` → ``i``, so that ``t → Q1 → DQ1 → Q2 → DQ2 → A`` becomes ``t → Q1 → DQ1 → A``; ``t → {Q1 → DQ1 → A,
    Q2 → DQ2 → B}`` → ``t → Q1 → DQ1 → {A, B}``; ``t → Q`` that nobody reads → nothing. A float weight's Q → DQ is the matter of
    fold-weight-qdq.
    Requires: constant scales.
    Keeps: inputs, outputs and their names; numerics bit-exact.
    Skips: a Q behind a DQ of another encoding, or of equal encoding where it is not proved that they cancel; different encodings
    on one value; FixNeuron.

    Args:
        select: pairs, by their float value, or halves by node.
        what: ``doubled`` DQ and Q that cancel, ``duplicates`` on one value, ``unread`` halves, or ``all``.
    """

    keeps: ClassVar[Keeps] = EXACT
    select: Selector = ALL
    what: Literal["all", "doubled", "duplicates", "unread"] = "all"

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Sweep, cancel, merge; over again as long as one leaves work for another."""
        hit = select(model, self.select)
        namer = Namer(model)
        named: set[ir.Node | ir.Value] = {*hit.nodes, *hit.values}

        def chosen() -> list[ir.Node]:
            return [n for n in all_nodes(model) if is_quantization(n) and (self.select.is_all or _is_named(n, named))]

        for node in [n for n in chosen() if is_quantize_dequantize(n)]:
            other = _before(node)
            if other is not None and is_quantize_dequantize(other):
                yield skip(node, "both halves are one node; run convert-qdq-domain{to=onnx} first")
        is_done = False
        while not is_done:
            changes = list(self._fold(model, chosen, namer))
            is_done = all(change.is_skip for change in changes)
            yield from (change for change in changes if is_done or not change.is_skip)

    def _fold(self, model: ir.Model, chosen: Callable[[], list[ir.Node]], namer: Namer) -> Iterator[Change]:
        if self.what in ("all", "unread"):
            while unread := [node for node in reversed(chosen()) if is_unread(node)]:
                for node in unread:
                    yield from _remove(node, "nobody reads it")
        if self.what in ("all", "doubled"):
            near = set(chosen())
            for node in [n for n in all_nodes(model) if is_quantize(n)]:
                dq = _before(node)
                if dq is not None and is_dequantize(dq) and (node in near or dq in near):
                    yield from _cancel(dq, node, namer)
        if self.what in ("all", "duplicates"):
            nesting = nesting_of(model)
            for wanted in (is_quantize, is_dequantize):
                yield from merge_twins(model, [n for n in chosen() if wanted(n)], nesting, namer)


def _before(node: ir.Node) -> ir.Node | None:
    """The node that writes what the half ``node`` reads."""
    value = node.inputs[0] if node.inputs else None
    return value.producer() if value is not None else None


def _is_named(node: ir.Node, named: AbstractSet[ir.Node | ir.Value]) -> bool:
    """Whether a selection names the half ``node``: itself, its ends, or the other half of its pair and its ends."""
    others = dequantizers(node) if is_quantize(node) else [_before(node)] if is_dequantize(node) else []
    halves = [node, *(other for other in others if other is not None and is_quantization(other))]
    ends = [value for half in halves for value in (*half.inputs[:1], *half.outputs[:1]) if value is not None]
    return not named.isdisjoint([*halves, *ends])


def _cancel(dq: ir.Node, q: ir.Node, namer: Namer) -> Iterator[Change]:
    """Let who reads the integers of ``q`` read those that ``dq`` reads; and who dequantizes them, what ``dq`` writes."""
    reason, integers = why_not_cancelled(dq, q), dq.inputs[0]
    if reason or integers is None:
        yield skip(q, reason)
        return
    for reader in dequantizers(q):
        adopt_axis(reader, q, dq)
        if (reader.domain, rounding_of(reader)) == (dq.domain, rounding_of(dq)):
            replace_value(reader.outputs[0], dq.outputs[0], namer)
            yield from _remove(reader, f"{dq.name} does the same")
    replace_value(q.outputs[0], integers, namer)
    yield from _remove(q, f"it undoes {dq.name}")
    if is_unread(dq):
        yield from _remove(dq, "nobody reads it")


def _remove(node: ir.Node, because: str) -> Iterator[Change]:
    parameters = list(node.inputs)
    yield from remove(node, because)
    yield from drop_unread(parameters)

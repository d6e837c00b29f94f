"""Masks that hide keys by a large negative number: where it joins the scores of an attention, by the ranges that were seen.

    scores ──→ Add ──→ [data movement, Cast] ──→ Softmax
    mask ──↗                                                mask is 0 where a key is seen, -1e9 or so elsewhere

or ``Where(seen, scores, -1e9)`` in place of the Add. What is hidden is told by the numbers: one operand reaches below `HUGE`, and
the other does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from qdq_passes.graph.uses import DATA_MOVEMENT, is_standard, main_nodes

#: What is below is no score: float16 masks are -65504 or -2^15, those of float32 -1e9 or -3.4e38.
HUGE = -(2.0**14)
_PASSED = DATA_MOVEMENT | {"Cast"}

#: (low, high) of a value, None where nothing is known of it.
Known = Callable[[ir.Value], tuple[float, float] | None]


@dataclass(frozen=True, kw_only=True)
class MaskedScores:
    """One place where a mask joins scores.

    Args:
        node: the Add, or the Where.
        scores: the operand that holds scores.
        mask: the operand that hides them.
        low: smallest score that was seen.
        high: largest score that was seen.
        behind: the values from the result of ``node`` to the input of the Softmax.
    """

    node: ir.Node
    scores: ir.Value
    mask: ir.Value
    low: float
    high: float
    behind: tuple[ir.Value, ...]


def masked_scores(model: ir.Model, known: Known) -> tuple[list[MaskedScores], list[tuple[ir.Node, str]]]:
    """Every mask before a Softmax of the main graph, and (node, reason) where one seems to be and too little is known.

    Args:
        model: the model.
        known: the range of a value.
    """
    found: dict[ir.Node, MaskedScores] = {}
    unclear: dict[ir.Node, str] = {}
    for softmax in main_nodes(model):
        if not is_standard(softmax, "Softmax") or softmax.inputs[0] is None:
            continue
        behind: list[ir.Value] = []
        value: ir.Value | None = softmax.inputs[0]
        while value is not None:
            behind.append(value)
            node = value.producer()
            if node is None:
                break
            if is_standard(node, *_PASSED):
                value = node.inputs[0]
                continue
            if not is_standard(node, "Add", "Where") or not _is_hiding(known(node.outputs[0])):
                break
            one = _joined(node, known, tuple(behind))
            if isinstance(one, str):
                unclear.setdefault(node, one)
                break
            if node in found:
                one = _both(found[node], one)
            found[node] = one
            value, behind = one.scores, []
    return list(found.values()), list(unclear.items())


def chain_of(mask: ir.Value) -> Iterator[ir.Value]:
    """``mask`` and what data movement and Cast make it of, up to where it is computed or comes in."""
    value: ir.Value | None = mask
    while value is not None:
        yield value
        node = value.producer()
        value = node.inputs[0] if node is not None and is_standard(node, *_PASSED) else None


def _is_hiding(seen: tuple[float, float] | None) -> bool:
    return seen is not None and seen[0] <= HUGE


def _joined(node: ir.Node, known: Known, behind: tuple[ir.Value, ...]) -> MaskedScores | str:
    """What ``node`` joins, or why that is not clear."""
    operands = [value for value in node.inputs[-2:] if value is not None]
    ranges = [known(value) for value in operands]
    masks = [value for value, seen in zip(operands, ranges, strict=True) if _is_hiding(seen)]
    if len(masks) != 1 or len(operands) != 2:
        return "reaches below -2^14, and not by one of its operands"
    scores = operands[1 - operands.index(masks[0])]
    seen = known(scores)
    if seen is None:
        return f"{scores.name} has no range"
    return MaskedScores(node=node, scores=scores, mask=masks[0], low=seen[0], high=seen[1], behind=behind)


def _both(first: MaskedScores, second: MaskedScores) -> MaskedScores:
    """One place that two Softmax read."""
    behind = tuple(dict.fromkeys((*first.behind, *second.behind)))
    return MaskedScores(
        node=first.node, scores=first.scores, mask=first.mask, low=first.low, high=first.high, behind=behind
    )

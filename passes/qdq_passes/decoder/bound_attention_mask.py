"""bound-attention-mask

softmax(s + m): scores s that were seen lie in [a, b]. With m = B ≤ a - b - t for a hidden key its sum is s + B ≤ b + B ≤ a - t,
and its weight, beside any key that is seen, at most e^((a - t) - a) = e^-t. An encoding that begins at a - t clips lower sums to
a - t, where the same bound holds.

Masks that hide keys by a large negative number: where it joins the scores of an attention, by the ranges that were seen.

    scores ──→ Add ──→ [data movement, Cast] ──→ Softmax
    mask ──↗                                                mask is 0 where a key is seen, -1e9 or so elsewhere

or ``Where(seen, scores, -1e9)`` in place of the Add. What is hidden is told by the numbers: one operand reaches below `HUGE`, and
the other does not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes.core.base import Change, Keeps, Named, Pass, skip
from qdq_passes.decoder.look.record import DECODER
from qdq_passes.encode.edit.encoding_policy import Ranges, range_of
from qdq_passes.encode.edit.precision import ObservedRange
from qdq_passes.errors import UsageError
from qdq_passes.graph.annotate import OBSERVED, Observed
from qdq_passes.graph.edit import Namer, drop_unread, new_constant
from qdq_passes.graph.uses import DATA_MOVEMENT, constant_array, is_constant, is_standard, main_nodes


@dataclass(frozen=True)
class BoundAttentionMask(Pass):
    """Bound the masks of attentions, so that an integer grid has steps for scores too: [-1e9, 12] becomes [-41, 12].

    A mask of -1e9 stretches the grid of the masked scores until all that is seen falls on one step. Every hidden score is far
    below any that is seen at a few tens already: see the bound above.

    Graph: unchanged, but for constants: ``Where(hidden, -1e9, 0)`` that makes a mask gets -64 or so, as does a constant mask.
    Masks and masked scores gain the annotation ``observed``: [B, 0] and [a - t, b]. A mask that the host makes (annotation
    ``decoder``) is to hold B from then on; an encoding of it takes -1e9 for B as well.
    Requires: ranges of the scores before and behind the mask.
    Keeps: names of inputs and outputs; numerics: the weight of a hidden key is at most e^-margin of that of one that is seen.
        A row that sees no key at all, whose result nobody reads, is another.
    Skips: scores that nothing was seen of below -2^14, with or without a mask; a sum whose operands have no ranges; bodies.

    Args:
        ranges: tensor name → observed range; normally ``@ranges``.
        margin: t. At 20 a hidden key has at most 2^-28.8 of the weight of one that is seen, and 2^12 of them together 2^-16.8,
            less than half a step of a 16-bit softmax.
        hidden: B, where another graph needs a lower one for the same mask; 0 for the power of two that the ranges here ask for.
    """

    keeps: ClassVar[Keeps] = Keeps("bounded", 2.0**-16, "2^12 hidden keys have a share of at most 2^12·e^-20 < 2^-16")
    ranges: Named | Ranges
    margin: float = 20.0
    hidden: float = 0.0

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Annotate the masked scores of each attention; then the masks, which attentions may share, with the lowest bound."""
        if not self.margin > 0:
            raise UsageError(f"margin={self.margin:g}", where=self.name(), hint="give a number above 0, such as 20")
        if self.hidden > 0:
            raise UsageError(f"hidden={self.hidden:g} hides nothing", where=self.name(), hint="give a negative number")
        found, unclear = masked_scores(model, self._known)
        for node, reason in unclear:
            yield skip(node, reason)
        bound = self._lowest(found)
        for each in found:
            whole = Observed(each.low - self.margin, each.high)
            for value in each.behind:
                OBSERVED.set(value, whole)
            yield Change(
                "annotate", each.behind[-1].name or "", f"range {whole.low:.6g} to {whole.high:.6g}, hidden below"
            )
        namer, done = Namer(model), set[ir.Value]()
        for each in found:
            if is_constant(each.mask):
                yield from _lifted(model, each.node, list(each.node.inputs).index(each.mask), bound, namer)
            for value in [v for v in chain_of(each.mask) if v not in done]:
                done.add(value)
                yield from self._bound(model, value, bound, namer)

    def bound(self, model: ir.Model) -> float:
        """B for the masks of ``model``; 0 without masks."""
        return self._lowest(masked_scores(model, self._known)[0])

    def _lowest(self, found: list[MaskedScores]) -> float:
        """B for all masks: a power of two, which every grid holds; it hides in place of a score (Where) too."""
        spans = [max(each.high, 0.0) - each.low + self.margin for each in found]
        return min(self.hidden, -(2.0 ** math.ceil(math.log2(max(spans))))) if spans else 0.0

    def bounded(self, model: ir.Model) -> Mapping[ir.Value, str]:
        """The values that `run` bounds (their seen ranges do not count), with what each is."""
        found, _ = masked_scores(model, self._known)
        masks = {value: "a mask" for each in found for value in chain_of(each.mask)}
        return {**masks, **{value: "masked scores" for each in found for value in each.behind}}

    def _known(self, value: ir.Value) -> tuple[float, float] | None:
        assert not isinstance(self.ranges, Named)
        said: ObservedRange | None = OBSERVED.get(value)
        if said is not None:
            return said.low, said.high
        if is_constant(value):
            array = constant_array(value)
            return None if array is None or not array.size else (float(np.min(array)), float(np.max(array)))
        return range_of(self.ranges, value.name or "")

    def _bound(self, model: ir.Model, value: ir.Value, bound: float, namer: Namer) -> Iterator[Change]:
        """Bound one value of a mask."""
        seen, node = self._known(value), value.producer()
        if is_constant(value):
            return
        if seen is not None:
            OBSERVED.set(
                value, Observed(bound, seen[1] if 0.0 < seen[1] < -HUGE else 0.0)
            )  # symmetric methods tell -low
            yield Change("annotate", value.name or "", f"a mask, {bound:g} hides")
        if node is not None and is_standard(node, "Where"):
            for index in (1, 2):
                yield from _lifted(model, node, index, bound, namer)
        record = DECODER.get(model.graph)
        if value.is_graph_input() and record is not None and any(mask.name == value.name for mask in record.masks):
            masks = tuple(replace(m, hidden=bound) if m.name == value.name else m for m in record.masks)
            DECODER.set(model.graph, replace(record, masks=masks))


def _lifted(model: ir.Model, node: ir.Node, index: int, bound: float, namer: Namer) -> Iterator[Change]:
    """The constant ``index`` of a Where or an Add, ``bound`` where it hides."""
    value = node.inputs[index]
    array = constant_array(value)
    if value is None or array is None or not np.issubdtype(array.dtype, np.floating) or not (array <= HUGE).any():
        return
    data = np.where(array <= HUGE, bound, array).astype(array.dtype)
    node.replace_input_with(
        index, new_constant(node.graph or model.graph, namer, f"{value.name}_bounded", data, [node])
    )
    drop_unread([value])
    yield Change("edit", node.name or "", f"{bound:g} hides, not {float(array.min()):g}")


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

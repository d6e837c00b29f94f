"""bound-attention-mask

softmax(s + m): scores s that were seen lie in [a, b]. With m = B ≤ a - b - t for a hidden key its sum is s + B ≤ b + B ≤ a - t,
and its weight, beside any key that is seen, at most e^((a - t) - a) = e^-t. An encoding that begins at a - t clips lower sums to
a - t, where the same bound holds. With N keys and t = ln N + (n + 1)·ln 2 all that are hidden have together at most 2^-(n+1) of
the largest weight that is seen: half a step of an encoding of n bits that reaches this far.

Masks that hide keys by a large negative number: where it joins the scores of an attention, by the ranges that were seen.

    scores ──→ Add ──→ [data movement, Cast] ──→ Softmax
    mask ──↗                                                mask is 0 where a key is seen, -1e9 or so elsewhere

or ``Where(seen, scores, -1e9)`` in place of the Add, several of them, a Max, a mask that a bias was added to. What is hidden is
told by constants of the graph, whether a sample hides anything or not, and by the numbers of what comes in."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.attention.look.masked_scores import MaskedScores, masked_scores
from qdq_passes.attention.look.masks import HUGE, float_constant
from qdq_passes.core.base import Change, Keeps, Named, Pass, skip
from qdq_passes.decoder.look.record import DECODER
from qdq_passes.encode.edit.encoding_policy import Ranges, range_of
from qdq_passes.encode.edit.precision import ObservedRange
from qdq_passes.errors import UsageError
from qdq_passes.graph.annotate import OBSERVED, Observed
from qdq_passes.graph.edit import Namer, drop_unread, new_constant
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.graph.uses import constant_array, integer_of, is_constant
from qdq_passes.qdq.edit.float_values import remember_floats, remembered_floats

#: Keys of an attention where its shape does not tell.
_KEYS = 1 << 12


@dataclass(frozen=True)
class BoundAttentionMask(Pass):
    """Bound the masks of attentions, so that an integer grid has steps for scores too: [-1e9, 12] becomes [-41, 12].

    A mask of -1e9 stretches the grid of the masked scores until all that is seen falls on one step. Every hidden score is far
    below any that is seen at a few tens already: see the bound above.

    Graph: unchanged, but for constants: ``Where(hidden, -1e9, 0)`` that makes a mask gets -64 or so, as does a constant mask,
        and the factor of ``(1 - seen)·-10000``; what they were is kept in the metadata of the constant, for remove-qdq.
    Masks and masked scores gain the annotation ``observed``: [B, 0] and [a - t, b]. A mask that the host makes (annotation
    ``decoder``) is to hold B from then on; an encoding of it takes -1e9 for B as well.
    Requires: ranges of the scores before and behind the mask. Each query whose result is read sees a key.
    Keeps: names of inputs and outputs; numerics: the weight of a hidden key is at most e^-t of that of one that is seen.
        A row that sees no key at all, whose result nobody reads, is another.
    Skips: scores that nothing hides by less than -2^13, but for constants of 0 and one number that is low enough; sums whose
        operands have no ranges; bodies.

    Args:
        ranges: tensor name → observed range; normally ``@ranges``.
        margin: t at most. At 20 a hidden key has at most 2^-28.8 of the weight of one that is seen, and 2^12 of them together
            2^-16.8, less than half a step of a 16-bit softmax.
        bits: n, the width of what the softmax writes: t is then ln N + (n + 1)·ln 2 with N keys, where that is less; 0: margin.
        hidden: B, where another graph needs a lower one for the same mask; 0 for the power of two that the ranges here ask for.
    """

    keeps: ClassVar[Keeps] = Keeps(
        "bounded", 2.0**-9, "what is hidden has a share of at most N·e^-t: 2^12·e^-20 < 2^-16, with bits=8 2^-9"
    )
    ranges: Named | Ranges
    margin: float = 20.0
    bits: int = 0
    hidden: float = 0.0

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Annotate the masked scores of each attention; then the masks, which attentions may share, with the lowest bound."""
        if not self.margin > 0:
            raise UsageError(f"margin={self.margin:g}", where=self.name(), hint="give a number above 0, such as 20")
        if self.hidden > 0:
            raise UsageError(f"hidden={self.hidden:g} hides nothing", where=self.name(), hint="give a negative number")
        found, unclear = self._masked(model)
        for node, reason in unclear:
            yield skip(node, reason)
        for value, whole in _ranges_of(found).items():
            if OBSERVED.get(value) == whole:
                continue
            OBSERVED.set(value, whole)
            yield Change("annotate", value.name or "", f"range {whole.low:.6g} to {whole.high:.6g}, hidden below")
        bound, namer = self._lowest(found), Namer(model)
        for node, index in dict.fromkeys(place for each in found for place in each.constants()):
            yield from _lifted(model, node, index, bound, namer)
        for value in dict.fromkeys(part.value for each in found for part in each.parts if part.is_mask):
            yield from self._bound(model, value, bound)

    def bound(self, model: ir.Model) -> float:
        """B for the masks of ``model``; 0 without masks."""
        return self._lowest(self._masked(model)[0])

    def _lowest(self, found: list[MaskedScores]) -> float:
        """B for all masks: a power of two, which every grid holds; it hides in place of a score (Where) too."""
        spans = [each.span for each in found]
        return min(self.hidden, -(2.0 ** math.ceil(math.log2(max(spans))))) if spans else 0.0

    def bounded(self, model: ir.Model) -> Mapping[ir.Value, str]:
        """The values that `run` bounds (their seen ranges do not count), with what each is."""
        parts = [part for each in self._masked(model)[0] for part in each.parts]
        return {part.value: "a mask" if part.is_mask else "masked scores" for part in parts}

    def _masked(self, model: ir.Model) -> tuple[list[MaskedScores], list[tuple[ir.Node, str]]]:
        inferred = Inferred(model)
        return masked_scores(model, self._known, lambda softmax: self._margin(softmax, inferred))

    def _margin(self, softmax: ir.Node, inferred: Inferred) -> float:
        """t of one attention."""
        source = softmax.inputs[0]
        if not self.bits or source is None:
            return self.margin
        keys = inferred.sizes(source, [integer_of(softmax, "axis", -1)])
        return min(math.log(max(keys[0], 1) if keys else _KEYS) + (self.bits + 1) * math.log(2), self.margin)

    def _known(self, value: ir.Value) -> tuple[float, float] | None:
        assert not isinstance(self.ranges, Named)
        said: ObservedRange | None = OBSERVED.get(value)
        if said is not None:
            return said.low, said.high
        if is_constant(value):
            array = constant_array(value)
            return None if array is None or not array.size else (float(np.min(array)), float(np.max(array)))
        return range_of(self.ranges, value.name or "")

    def _bound(self, model: ir.Model, value: ir.Value, bound: float) -> Iterator[Change]:
        """Bound one value of a mask."""
        seen = self._known(value)
        if is_constant(value):
            return
        if seen is not None:
            OBSERVED.set(
                value, Observed(bound, seen[1] if 0.0 < seen[1] < -HUGE else 0.0)
            )  # symmetric methods tell -low
            yield Change("annotate", value.name or "", f"a mask, {bound:g} hides")
        record = DECODER.get(model.graph)
        if value.is_graph_input() and record is not None and any(mask.name == value.name for mask in record.masks):
            masks = tuple(replace(m, hidden=bound) if m.name == value.name else m for m in record.masks)
            DECODER.set(model.graph, replace(record, masks=masks))


def _ranges_of(found: list[MaskedScores]) -> dict[ir.Value, Observed]:
    """The ranges of what scores are in, which attentions may share."""
    ranges: dict[ir.Value, Observed] = {}
    for each in found:
        for part in each.parts:
            if part.is_mask:
                continue
            one = Observed(each.floor(part), part.high)
            other = ranges.get(part.value, one)
            ranges[part.value] = Observed(min(one.low, other.low), max(one.high, other.high))
    return ranges


def _lifted(model: ir.Model, node: ir.Node, index: int, bound: float, namer: Namer) -> Iterator[Change]:
    """The constant ``index`` of ``node``, ``bound`` where it hides."""
    value = node.inputs[index]
    array = float_constant(value)
    assert value is not None
    assert array is not None
    data = np.where(array <= max(HUGE, bound), bound, array).astype(array.dtype)
    if np.array_equal(data, array):
        return
    held = new_constant(node.graph or model.graph, namer, f"{value.name}_bounded", data, [node])
    remember_floats(held, remembered_floats(value, array), name=value.name)
    node.replace_input_with(index, held)
    drop_unread([value])
    yield Change("edit", node.name or "", f"{bound:g} hides, not {float(array.min()):g}")

"""Scores with masks in them, by ranges: between which bounds lie those of keys that are seen.

A value V before a Softmax lies in [a, b] where nothing hides, of width w(V) = b - a. Of a sum the bounds add; of a choice they
unite; a mask alone is [0, 0]. Let a hidden key have at most a(U) - t - (w(V) - w(U)) in a part U of V: the other parts add at
most b(V) - b(U), which comes to a(V) - t in V."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.attention.look.masks import (
    HUGE,
    float_constant,
    hiding_constants,
    is_two_valued,
    operands,
)
from qdq_passes.graph.operators.kinds import kind_of
from qdq_passes.graph.uses import is_standard, main_nodes

#: (low, high) of a value, None where nothing is known of it.
Known = Callable[[ir.Value], tuple[float, float] | None]

_PRODUCTS = frozenset({"Conv", "Einsum", "Gemm", "MatMul"})


@dataclass(frozen=True, kw_only=True)
class Part:
    """A value before a Softmax in which keys are hidden.

    Args:
        value: the value.
        low: smallest that a key has that is seen.
        high: largest.
        is_mask: no scores are in it.
    """

    value: ir.Value
    low: float
    high: float
    is_mask: bool

    @property
    def width(self) -> float:
        """From the smallest to the largest."""
        return self.high - self.low


@dataclass(frozen=True, kw_only=True)
class MaskedScores:
    """What a Softmax reads where keys are hidden.

    Args:
        softmax: the node.
        parts: what it reads, first, and what that is made of, where keys are hidden in it.
        margin: t, how far below the smallest score hidden ones are to lie.
    """

    softmax: ir.Node
    parts: tuple[Part, ...]
    margin: float

    @property
    def whole(self) -> Part:
        """What the Softmax reads."""
        return self.parts[0]

    @property
    def span(self) -> float:
        """How far below 0, and below any score, a mask lies that hides."""
        return max(self.whole.high, 0.0) - self.whole.low + self.margin

    def floor(self, part: Part) -> float:
        """Where a hidden key may lie in ``part``, one with scores."""
        return part.low - self.margin - (self.whole.width - part.width)

    def constants(self) -> Iterator[tuple[ir.Node, int]]:
        """The inputs of nodes by which constants come that hide."""
        members = {part.value for part in self.parts}
        for node, index in hiding_constants(self.whole.value):
            array = float_constant(node.inputs[index])
            if node.outputs[0] in members and array is not None and array.min() <= max(HUGE, -self.span):
                yield node, index


def masked_scores(
    model: ir.Model, known: Known, margin: Callable[[ir.Node], float]
) -> tuple[list[MaskedScores], list[tuple[ir.Node, str]]]:
    """Every Softmax of the main graph before which keys are hidden, and (node, reason) where they seem to be and too little is
    known.

    Args:
        model: the model.
        known: the range of a value.
        margin: t of a Softmax.
    """
    found: list[MaskedScores] = []
    unclear: dict[ir.Node, str] = {}
    for softmax in main_nodes(model):
        source = softmax.inputs[0] if is_standard(softmax, "Softmax") else None
        if source is None:
            continue
        reading = _Reading(known, margin(softmax))
        try:
            seen = reading.of(source)
        except _UnclearError as error:
            unclear.setdefault(error.node, error.reason)
            continue
        if not seen.hides:
            continue
        if not seen.bears:
            node = source.producer()
            unclear.setdefault(node or softmax, f"{source.name} reaches below -2^13, and nothing in it is scores")
            continue
        found.append(MaskedScores(softmax=softmax, parts=tuple(reversed(reading.parts)), margin=reading.margin))
    return found, list(unclear.items())


@dataclass(frozen=True)
class _Seen:
    """Bounds of what is seen, None where nothing is; whether keys are hidden, and whether scores are in it."""

    bounds: tuple[float, float] | None
    hides: bool
    bears: bool


class _UnclearError(Exception):
    def __init__(self, node: ir.Node, reason: str) -> None:
        super().__init__(reason)
        self.node, self.reason = node, reason


_HIDDEN = _Seen(None, hides=True, bears=False)


@dataclass
class _Reading:
    """What is seen in each value before one Softmax; ``parts`` grows with what hides, the innermost first."""

    known: Known
    margin: float
    parts: list[Part] = field(default_factory=list)
    _found: dict[ir.Value, _Seen] = field(default_factory=dict)

    def of(self, value: ir.Value) -> _Seen:
        """Bounds of ``value``."""
        if value not in self._found:
            self._found[value] = found = self._of(value)
            if found.hides:
                low, high = found.bounds or (0.0, 0.0)
                self.parts.append(Part(value=value, low=low, high=high, is_mask=not found.bears))
        return self._found[value]

    def _of(self, value: ir.Value) -> _Seen:
        array = float_constant(value)
        if array is not None:
            return _of_constant(array)
        seen, node = self.known(value), value.producer()
        if (seen is None or seen[0] > HUGE) and not any(True for _ in hiding_constants(value)):
            return _Seen(seen, hides=False, bears=True)
        if is_standard(node, "Mul") if node is not None else False:
            return _Seen((0.0, 0.0), hides=True, bears=False)
        indices = operands(node)
        if node is None or not indices:
            return self._of_leaf(value, seen)
        parts = [each for index in indices if (each := node.inputs[index]) is not None]
        return self._sum(node, parts) if is_standard(node, "Add", "Sum") else self._union(node, parts)

    def _of_leaf(self, value: ir.Value, seen: tuple[float, float] | None) -> _Seen:
        node = value.producer()
        assert seen is not None
        if node is not None and kind_of(node) in _PRODUCTS:
            return _Seen(seen, hides=False, bears=True)
        return _Seen((0.0, seen[1] if 0.0 < seen[1] < -HUGE else 0.0), hides=True, bears=False)

    def _sum(self, node: ir.Node, values: list[ir.Value]) -> _Seen:
        found = [self.of(value) for value in values]
        bounds = [self._bounds(node, value, each) for value, each in zip(values, found, strict=True)]
        for index, value in enumerate(values):
            array = float_constant(value)
            others = sum(high - low for i, (low, high) in enumerate(bounds) if i != index)
            if array is not None and is_two_valued(array) and float(array.min()) <= -(others + self.margin):
                found[index], bounds[index] = _HIDDEN, (0.0, 0.0)
        lows, highs = zip(*bounds, strict=True)
        return _Seen((sum(lows), sum(highs)), any(e.hides for e in found), any(e.bears for e in found))

    def _union(self, node: ir.Node, values: list[ir.Value]) -> _Seen:
        found = [self.of(value) for value in values]
        bounds = [
            self._bounds(node, value, each)
            for value, each in zip(values, found, strict=True)
            if each.bounds is not None or not each.hides
        ]
        whole = (min(low for low, _ in bounds), max(high for _, high in bounds)) if bounds else None
        return _Seen(whole, any(e.hides for e in found), any(e.bears for e in found))

    @staticmethod
    def _bounds(node: ir.Node, value: ir.Value, seen: _Seen) -> tuple[float, float]:
        if seen.bounds is None and not seen.hides:
            raise _UnclearError(node, f"{value.name} has no range")
        return seen.bounds or (0.0, 0.0)


def _of_constant(array: np.ndarray) -> _Seen:
    shown = array[array > HUGE]
    bounds = (float(shown.min()), float(shown.max())) if shown.size else None
    return _Seen(bounds, hides=shown.size < array.size, bears=False)

"""Masks of attentions by what they do to scores: which constants hide keys, and on what way they come to a Softmax.

products → [scale, bias] → Add ← mask → … → Softmax      the mask is 0 where a key is seen, and far below zero elsewhere
                           Where(seen, scores, -big)      hidden scores are replaced
mask: Where(seen, 0, -big), (1 - seen)·-big, a constant, Max of two, a sum with a bias, parts of these side by side"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx_ir as ir

from qdq_passes.graph.uses import DATA_MOVEMENT, FLOAT_TYPES, constant_array, dtype_of, is_constant, is_standard
from qdq_passes.numerics.arrays import Array

#: What is below is no score: masks are -10000, -65504, -1e9 and -3.4e38.
HUGE = -(2.0**13)
#: Elements of a constant up to which it is read.
_READ = 1 << 24
#: A constant of zeros and one number below this may hide as well; whether it does, scores tell.
_LOW = -16.0
#: Input of each that data comes by; all inputs of the others.
_MOVED = DATA_MOVEMENT | {"Cast", "Trilu"}
_ALL = frozenset({"Add", "Concat", "Max", "Sum"})
_CHOOSING = {"Where": (1, 2), "ScatterElements": (0, 2), "ScatterND": (0, 2)}
_COMPARING = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})


def operands(node: ir.Node | None) -> tuple[int, ...]:
    """The inputs of ``node`` that what it hides, and the scores, come by; none where it is not on the way of a mask."""
    if node is None:
        return ()
    if is_standard(node, *_MOVED):
        return (0,)
    if is_standard(node, *_ALL):
        return tuple(range(len(node.inputs)))
    return next((indices for kind, indices in _CHOOSING.items() if is_standard(node, kind)), ())


def before_softmax(value: ir.Value | None) -> Iterator[ir.Value]:
    """``value``, which a Softmax reads, and what masks and scores come into it by."""
    waiting, known = [value], set[ir.Value]()
    while waiting:
        current = waiting.pop()
        if current is None or current in known:
            continue
        known.add(current)
        yield current
        node = current.producer()
        waiting += [node.inputs[index] for index in operands(node)] if node is not None else []


def hiding_constants(value: ir.Value | None) -> Iterator[tuple[ir.Node, int]]:
    """The inputs of nodes by which constants that hide come into ``value``, through sums, choices and data movement.

    A factor counts, as in (1 - seen)·-10000, where the other factor is none.
    """
    waiting, known = [value], set[ir.Value]()
    while waiting:
        current = waiting.pop()
        if current is None or current in known or dtype_of(current) not in {None, *FLOAT_TYPES}:
            continue
        known.add(current)
        node = current.producer()
        if node is None:
            continue
        for index in (0, 1) if is_standard(node, "Mul") else operands(node):
            if hides(node.inputs[index]):
                yield node, index
            elif not is_standard(node, "Mul"):
                waiting.append(node.inputs[index])


def hides(value: ir.Value | None) -> bool:
    """Whether ``value`` is a constant that hides: it reaches below `HUGE`, or is 0 and one number in rows that all have a 0."""
    array = float_constant(value)
    return array is not None and (bool((array <= HUGE).any()) or is_two_valued(array))


def is_two_valued(array: Array) -> bool:
    """Whether ``array`` is 0 or one number below -16, and each row along the last axis has a 0: each query sees a key."""
    lowest = array.min()
    is_mask = lowest <= _LOW and array.ndim > 0 and bool(np.isin(array, (lowest, 0)).all())
    return is_mask and bool((array.max(axis=-1) == 0).all())


def float_constant(value: ir.Value | None) -> Array | None:
    """What the float constant ``value`` holds; None for others, and for those of more than 2^24 elements."""
    if value is None or dtype_of(value) not in FLOAT_TYPES or not is_constant(value):
        return None
    if value.const_value is not None and value.const_value.size > _READ:
        return None
    array = constant_array(value)
    return array if array is not None and array.size else None


class Feeding:
    """Whether all that is made of a value goes into a Softmax, as sums, choices and data movement make it."""

    def __init__(self) -> None:
        self._known: dict[ir.Value, bool] = {}

    def only_softmax(self, values: Iterable[ir.Value]) -> bool:
        """Whether nothing but a Softmax sees ``values``; whether one is equal to a number that hides nothing may be asked."""
        return all(self._only_softmax(value) for value in values)

    def _only_softmax(self, value: ir.Value) -> bool:
        if value not in self._known:
            self._known[value] = True  # of a loop, which no graph has
            self._known[value] = not value.is_graph_output() and all(
                self._passes(user, index) for user, index in value.uses()
            )
        return self._known[value]

    def _passes(self, user: ir.Node, index: int) -> bool:
        if is_standard(user, "Softmax"):
            return True
        if is_standard(user, *_COMPARING):
            other = float_constant(user.inputs[1 - index])
            return other is not None and bool((other > HUGE).all())
        return index in operands(user) and self.only_softmax(user.outputs)

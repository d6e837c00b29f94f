"""finite-masks

softmax(s + m) with m = -inf for a hidden key gives it exp(-inf) = 0. With m = -1e9 its weight is exp(s - 1e9 - max): 0 in every
floating-point type too, where the largest sum of the row, that of a key that is seen, is above -9e8; likewise with -2^15 in
float16, whose exp is 0 below -17.4."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.decoder.look.record import HIDDEN, HIDDEN_FLOAT16
from qdq_passes.graph.edit import Namer, drop_unread, new_constant
from qdq_passes.graph.uses import DATA_MOVEMENT, FLOAT_TYPES, constant_array, dtype_of, is_standard, main_nodes

#: What stands between a mask, or scores, and their Softmax.
_BETWEEN = DATA_MOVEMENT | {"Add", "Cast", "Where"}


@dataclass(frozen=True)
class FiniteMasks(Pass):
    """Let the masks of attentions hide by -1e9 instead of minus infinity, which no integer holds.

    Graph: constants of -inf that Add or Where bring before a Softmax become -1e9 (float16: -2^15).
    Requires: types of values; scores above -9e8 (float16: within ±16000).
    Keeps: inputs, outputs and their names; numerics bit-exact for rows that see a key. One that sees none is NaN before, and
        weighs its keys alike afterwards.
    Skips: masks that something else reads too; those that are computed otherwise, or come in; bodies.
    """

    keeps: ClassVar[Keeps] = Keeps("exact", why="the exponential of a hidden key is 0 either way")

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Each constant once."""
        namer, feeding = Namer(model), _Feeding()
        found: dict[tuple[ir.Node, int], None] = {}
        for softmax in main_nodes(model):
            if is_standard(softmax, "Softmax"):
                found |= dict.fromkeys(_infinite(softmax.inputs[0]))
        for node, index in found:
            value = node.inputs[index]
            if not all(feeding.only_softmax(output) for output in node.outputs):
                yield skip(node, "something else reads its mask")
                continue
            array = constant_array(value)
            assert value is not None
            assert array is not None
            lowest = HIDDEN_FLOAT16 if dtype_of(value) == ir.DataType.FLOAT16 else HIDDEN
            data = np.where(np.isneginf(array), array.dtype.type(lowest), array)
            finite = new_constant(node.graph or model.graph, namer, f"{value.name}_finite", data, [node])
            node.replace_input_with(index, finite)
            yield Change("edit", node.name or "", f"{lowest:g} hides, not -inf")
            yield from drop_unread([value])


def _infinite(value: ir.Value | None) -> Iterator[tuple[ir.Node, int]]:
    """The inputs of Add and Where that bring constants of -inf into ``value``."""
    waiting, known = [value], set[ir.Value]()
    while waiting:
        current = waiting.pop()
        if current is None or current in known:
            continue
        known.add(current)
        node = current.producer()
        if node is None or not is_standard(node, *_BETWEEN):
            continue
        if not is_standard(node, "Add", "Where"):
            waiting.append(node.inputs[0])
            continue
        for index in range(len(node.inputs) - 2, len(node.inputs)):
            operand = node.inputs[index]
            array = constant_array(operand)
            if operand is None or array is None:
                waiting.append(operand)
                continue
            if dtype_of(operand) in FLOAT_TYPES and np.isneginf(array).any():
                yield node, index


class _Feeding:
    """Whether all that is made of a value goes into a Softmax as it stands."""

    def __init__(self) -> None:
        self._known: dict[ir.Value, bool] = {}

    def only_softmax(self, value: ir.Value) -> bool:
        """Whether nothing but a Softmax sees ``value``, through sums and data movement alone."""
        if value not in self._known:
            self._known[value] = not value.is_graph_output() and all(
                self._passes(user, index) for user, index in value.uses()
            )
        return self._known[value]

    def _passes(self, user: ir.Node, index: int) -> bool:
        if is_standard(user, "Softmax"):
            return True
        is_data = index == 0 or is_standard(user, "Add", "Where")
        return is_standard(user, *_BETWEEN) and is_data and all(self.only_softmax(output) for output in user.outputs)

"""finite-masks

softmax(s + m) with m = -inf for a hidden key gives it exp(-inf) = 0. With m = -1e9 its weight is exp(s - 1e9 - max): 0 in every
floating-point type too, where the largest sum of the row, that of a key that is seen, is above -9e8; likewise with -2^15 in
float16, whose exp is 0 below -17.4. Two masks of -3.4e38 in one sum are -inf as well."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.attention.look.masks import HUGE, Feeding, before_softmax, float_constant, hiding_constants
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.decoder.look.record import HIDDEN, HIDDEN_FLOAT16
from qdq_passes.graph.edit import Namer, drop_unread, new_constant
from qdq_passes.graph.uses import dtype_of, is_standard, main_nodes
from qdq_passes.numerics.arrays import Array

#: Half of the lowest number: the sum of two that are lower is minus infinity. In float16, and in the others.
_HALF_OF_LOWEST = {ir.DataType.FLOAT16: -32752.0}
_HALF = -1.7e38

_Place = tuple[ir.Node, int]


@dataclass(frozen=True)
class FiniteMasks(Pass):
    """Let the masks of attentions hide by -1e9 instead of minus infinity, which no integer holds.

    Graph: constants of -inf that come before a Softmax, by sums, choices (Where), a Max or data movement, become -1e9 (float16:
        -2^15); those of -3.4e38 too where a sum has two of them. ``s - 1e30·m`` becomes ``s + (-1e30)·m``, the same number.
    Requires: types of values; scores above -9e8 (float16: within ±16000).
    Keeps: inputs, outputs and their names; numerics bit-exact for rows that see a key. One that sees none is NaN before, and
        weighs its keys alike afterwards.
    Skips: masks that something else reads too; those that are computed otherwise, or come in; bodies.
    """

    keeps: ClassVar[Keeps] = Keeps("exact", why="the exponential of a hidden key is 0 either way")

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Each constant once."""
        namer, feeding = Namer(model), Feeding()
        for node in main_nodes(model):
            if is_standard(node, "Sub") and feeding.only_softmax(node.outputs):
                yield from _added(model, node, namer)
        for (node, index), bound in _unbounded(model).items():
            value = node.inputs[index]
            if not feeding.only_softmax(node.outputs):
                yield skip(node, "something else reads its mask")
                continue
            array = float_constant(value)
            assert value is not None
            assert array is not None
            lowest = HIDDEN_FLOAT16 if dtype_of(value) == ir.DataType.FLOAT16 else HIDDEN
            data = np.where(array <= bound, array.dtype.type(lowest), array)
            finite = new_constant(node.graph or model.graph, namer, f"{value.name}_finite", data, [node])
            node.replace_input_with(index, finite)
            shown = "-inf" if np.isneginf(array).any() else f"{float(array.min()):.6g}, of which a sum has two"
            yield Change("edit", node.name or "", f"{lowest:g} hides, not {shown}")
            yield from drop_unread([value])


def _added(model: ir.Model, node: ir.Node, namer: Namer) -> Iterator[Change]:
    """Let ``node`` add what it subtracts, where that is a constant that hides, or a mask times one."""
    mask = node.inputs[1]
    product = mask.producer() if mask is not None else None
    is_product = product is not None and is_standard(product, "Mul")
    holder = product if product is not None and is_product else node
    for index in (0, 1) if is_product else (1,):
        value = holder.inputs[index]
        array = float_constant(value)
        if value is None or array is None or array.max() < -HUGE or array.min() < 0:
            continue
        if mask is not None and (len(mask.uses()) > 1 or mask.is_graph_output()) and is_product:
            yield skip(node, "something else reads its mask")
            return
        holder.replace_input_with(
            index, new_constant(holder.graph or model.graph, namer, f"{value.name}_negative", -array, [node])
        )
        node.op_type = "Add"
        yield Change("edit", node.name or "", f"adds {-float(array.max()):g}, which it subtracted")
        yield from drop_unread([value])
        return


def _unbounded(model: ir.Model) -> dict[_Place, float]:
    """The inputs of nodes by which constants come that are infinite, or make a sum so → the largest number to replace there."""
    found: dict[_Place, float] = {}
    for softmax in main_nodes(model):
        if not is_standard(softmax, "Softmax"):
            continue
        places = list(hiding_constants(softmax.inputs[0]))
        found |= {place: -np.inf for place in places if np.isneginf(_array(place)).any() and place not in found}
        for node in dict.fromkeys(node for value in before_softmax(softmax.inputs[0]) if (node := value.producer())):
            if is_standard(node, "Add", "Sum"):
                found |= _overflowing(node)
    return found


def _overflowing(node: ir.Node) -> dict[_Place, float]:
    """The constants that two operands of ``node``, a sum, have from half the lowest number down."""
    half = _HALF_OF_LOWEST.get(dtype_of(node.outputs[0]) or ir.DataType.FLOAT, _HALF)
    found: list[list[_Place]] = []
    for index, value in enumerate(node.inputs):
        places = [(node, index)] if float_constant(value) is not None else list(hiding_constants(value))
        found.append([place for place in places if (_array(place) <= half).any()])
    return {place: half for places in found for place in places} if sum(map(bool, found)) > 1 else {}


def _array(place: _Place) -> Array:
    array = float_constant(place[0].inputs[place[1]])
    assert array is not None
    return array

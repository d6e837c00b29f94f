"""How units depend on each other: through pairs, and through what bodies of control flow read from outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantize
from qdq_passes.graph.reach import in_order, values_read
from qdq_passes.graph.uses import is_constant
from qdq_passes.npu.units.units import Unit


@dataclass(frozen=True, eq=False)
class UnitGraph:
    """Units and the QuantizeLinear nodes that end none, each with what it reads.

    Args:
        items: units, and QuantizeLinear nodes with computed scales, which belong to no unit; in topological order.
        before: per item the items that write what it reads, directly or through Q and DQ nodes.
        item_of: node → its item: core and tail of a unit, the QuantizeLinear of its results, other QuantizeLinear nodes that
            read what one of them writes with a constant scale; the rest is in no item.
    """

    items: list[Unit | ir.Node]
    before: list[tuple[int, ...]]
    item_of: dict[ir.Node, int]


def unit_graph(model: ir.Model, units: Sequence[Unit]) -> UnitGraph:
    """The graph of ``units``, which must be all units of ``model``."""
    at = {unit.core: unit for unit in units}
    items: list[Unit | ir.Node] = []
    before: list[tuple[int, ...]] = []
    item_of: dict[ir.Node, int] = {}
    writers: dict[ir.Value, tuple[int, ...]] = {}

    def add(item: Unit | ir.Node, nodes: Sequence[ir.Node]) -> None:
        item_of.update(dict.fromkeys(nodes, len(items)))
        read = {writer for node in nodes for value in values_read(node) for writer in writers.get(value, ())}
        before.append(tuple(sorted(read)))
        items.append(item)

    for node in in_order(model.graph):
        unit = at.get(node)
        if unit is not None:
            add(unit, unit.nodes)
        elif is_quantize(node) and node.inputs[0] is not None and writers.get(node.inputs[0]):
            if all(value is None or is_constant(value) for value in node.inputs[1:]):
                item_of[node] = writers[node.inputs[0]][0]
            else:
                add(node, [node])
        if node in item_of:
            found: tuple[int, ...] = (item_of[node],)
        elif is_quantize(node) or is_dequantize(node):
            found = tuple({writer for value in values_read(node) for writer in writers.get(value, ())})
        else:
            continue
        writers |= dict.fromkeys(node.outputs, found)
    return UnitGraph(items, before, item_of)

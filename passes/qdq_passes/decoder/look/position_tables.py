"""How far the tables reach that a decoder chooses rows of by position: learned positions, cosines and sines."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from qdq_passes.decoder.look.flow import depending_on
from qdq_passes.decoder.look.host import Host, Sizes
from qdq_passes.graph.operators.kinds import kind_of
from qdq_passes.graph.uses import is_standard

#: Two probes, by tokens in the cache: what chooses rows by position chooses so many rows further.
_PASTS = (2, 5)


@dataclass(frozen=True, kw_only=True)
class PositionTable:
    """A constant of which rows are chosen by position.

    Args:
        node: what chooses.
        positions: how many positions there are rows for.
    """

    node: ir.Node
    positions: int


def shortest_table(host: Host, given: ir.Value) -> PositionTable | None:
    """The table with rows for the fewest positions, of those that are chosen by the input ``given``; None where there is none."""
    reached = depending_on(host.model.graph, [given], nodes=host.nodes)
    choices = [
        (node, index, table.shape[axis])
        for node in host.nodes
        for index, table, axis in [_choice(node)]
        if index is not None
        and table is not None
        and table.shape is not None
        and index in reached
        and host.is_host(index)
    ]
    if not choices:
        return None
    low, high = (host.probe(Sizes(past=past, new=1), wanted=[index for _, index, _ in choices]) for past in _PASTS)
    found = []
    for node, index, rows in choices:
        if index not in low.arrays or index not in high.arrays or not isinstance(rows, int):
            continue
        first, second = int(low.arrays[index].max()), int(high.arrays[index].max())
        if second - first == _PASTS[1] - _PASTS[0]:
            found.append(PositionTable(node=node, positions=rows - (first - _PASTS[0])))
    return min(found, key=lambda table: table.positions, default=None)


def _choice(node: ir.Node) -> tuple[ir.Value | None, ir.Value | None, int]:
    """What chooses rows in ``node``, the constant they are of, and its axis; None where it chooses none."""
    kind, inputs = kind_of(node), node.inputs
    if kind == "Gather" and len(inputs) == 2 and inputs[0] is not None and inputs[0].is_initializer():
        return inputs[1], inputs[0], node.attributes.get_int("axis", 0)
    if node.op_type == "RotaryEmbedding" and len(inputs) >= 4:
        places = (3, 1) if is_standard(node, "RotaryEmbedding") else (1, 2)
        table = inputs[places[1]]
        if table is not None and table.is_initializer():
            return inputs[places[0]], table, 0
    return None, None, 0

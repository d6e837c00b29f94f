"""How far a decoder reaches by position: its tables of positions, cosines and sines, and the length from which on it treats
tokens otherwise, rotations with other frequencies for long texts.

A token in the cache keeps what it was rotated by, so that a text that is run in pieces gives other logits than in one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from qdq_passes.decoder.look.flow import depending_on
from qdq_passes.decoder.look.host_boundary import side_entries
from qdq_passes.decoder.look.host_region import Host, Sizes, fixed_sizes
from qdq_passes.graph.operators.kinds import kind_of
from qdq_passes.graph.uses import is_standard
from qdq_passes.numerics.arrays import Array

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


def first_of_another_length(host: Host, given: ir.Value, context: int) -> int | None:
    """The least position below ``context`` that changes what is computed of positions 0 and 1 in the same run; None without.

    Args:
        host: of a decoder whose positions all come from ``given``.
        given: the input of positions.
        context: tokens at most.
    """
    values = list(dict.fromkeys(v for node, index in side_entries(host) if (v := node.inputs[index]) is not None))
    if fixed_sizes(host) != (0, 0) or not values or context < 4:
        return None

    def beside(position: int) -> list[Array | None]:
        found = host.probe(Sizes(past=4, new=3), positions=np.array([[0, 1, position]]), wanted=values)
        return [found.arrays.get(value) for value in values]

    near = beside(2)

    def differs(position: int) -> bool:
        return any(_first_two_differ(a, b) for a, b in zip(near, beside(position), strict=True))

    if not differs(context - 1):
        return None
    low, high = 2, context - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if differs(middle) else (middle, high)
    return high


def _first_two_differ(a: Array | None, b: Array | None) -> bool:
    """Whether what is made of three positions differs for the first two, along the one axis that has three."""
    if a is None or b is None or a.shape != b.shape or a.shape.count(3) != 1:
        return False
    axis = a.shape.index(3)
    return not np.array_equal(
        np.take(a, [0, 1], axis=axis), np.take(b, [0, 1], axis=axis), equal_nan=a.dtype.kind == "f"
    )

"""Where a decoder's positions come from: values that are past + 0…S-1 (+ c), in any shape, and tables cut by the past.

An input of positions is one source; others are a Range from the size of the cache, a sum over the mask, a ``cache_position``.
Under a static size of the cache those would become constants, and every token would be rotated alike.

How far they reach: rows of its tables of positions, cosines and sines, and the length from which on it treats tokens otherwise,
as rotations with other frequencies for long texts do. A token in the cache keeps what it was rotated by, so that a text that is
run in pieces gives other logits than in one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.decoder.look.batch_rows import Positioned, Spread, fits_rows, spreads
from qdq_passes.decoder.look.flow import depending_on
from qdq_passes.decoder.look.host_boundary import leading_to, reaches_back, side_entries
from qdq_passes.decoder.look.host_region import Host, Probed, Sizes, batch_of, fixed_sizes
from qdq_passes.graph.operators.kinds import kind_of
from qdq_passes.graph.uses import is_standard
from qdq_passes.numerics.arrays import Array

#: The input of positions is told the truth and this much more, another one each probe: what follows it differs from what follows
#: the cache.
_SHIFTS = (4, 1, 2)
#: Let axes of size 1 come and go.
_UNIT_AXES = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze"})
_COMPARISONS = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})


@dataclass(frozen=True, kw_only=True)
class LengthRead:
    """A comparison with how many tokens there are in all, which chooses what positions become.

    Args:
        node: the comparison.
        index: its input that is that number.
        offset: what the number is more than the tokens.
        dtype: element type of the number.
    """

    node: ir.Node
    index: int
    offset: int
    dtype: ir.DataType


@dataclass(frozen=True, kw_only=True)
class PositionPlan:
    """What is to be derived from positions.

    Args:
        values: the values, producers first.
        lengths: comparisons with the number of tokens.
        per_row: whether each row of a batch may have positions of its own.
        spreads: inputs at which rows are set apart that ``values`` then hold one behind the other; empty where they need not.
    """

    values: tuple[Positioned, ...]
    lengths: tuple[LengthRead, ...]
    per_row: bool
    spreads: tuple[Spread, ...] = ()


def position_plan(host: Host, given: ir.Value | None) -> PositionPlan:
    """What of the decoder follows the size of the cache or an input other than ``given``, positions int64 [batch, sequence]."""
    entries = side_entries(host)
    leading = leading_to(host, entries)
    probes = _probes(host, given, leading)
    found = list(_candidates(host, given, leading, probes))
    chosen = _chosen(host, found, entries)
    lengths = tuple(_lengths(host, leading, probes))
    if not chosen or (batch_of(host) > 1 and fits_rows(host, chosen, entries)):
        return PositionPlan(values=tuple(chosen), lengths=lengths, per_row=True)
    first = _first(host, found)
    apart = spreads(host, first, entries) if batch_of(host) > 1 else None
    return PositionPlan(values=tuple(first), lengths=lengths, per_row=bool(apart), spreads=tuple(apart or ()))


def _probes(host: Host, given: ir.Value | None, wanted: Collection[ir.Value]) -> list[tuple[Sizes, Probed]]:
    """Probes of ``wanted`` in which ``given`` is not what the size of the cache suggests."""
    past, new = fixed_sizes(host)
    sizes = list(dict.fromkeys(Sizes(past=past or p, new=new or n) for p, n in ((3, 5), (5, 3), (4, 7))))
    shifts = _SHIFTS if given is not None else (0, 0, 0)
    told = [np.arange(s.past, s.total)[None] + shift for s, shift in zip(sizes, shifts, strict=False)]
    return [(s, host.probe(s, positions=rows, wanted=wanted)) for s, rows in zip(sizes, told, strict=True)]


def _candidates(
    host: Host, given: ir.Value | None, leading: Collection[ir.Value], probes: Sequence[tuple[Sizes, Probed]]
) -> Iterator[Positioned]:
    tables: dict[ir.Value, Positioned] = {}
    for value in _ordered(host, leading):
        if value is given:
            continue
        found = _as_positions(value, probes) or _as_rows(host, value, probes) or _as_rows_again(value, tables, probes)
        if found is not None:
            tables[value] = found
            yield found


def _ordered(host: Host, values: Collection[ir.Value]) -> list[ir.Value]:
    """``values``, inputs first, then producers first."""
    inputs = [v for v in host.inputs if v in values]
    return [*inputs, *(v for node in host.nodes for v in node.outputs if v in values)]


def _as_positions(value: ir.Value, probes: Sequence[tuple[Sizes, Probed]]) -> Positioned | None:
    """``value`` if it is past + 0…S-1 + c along one axis in all ``probes``."""
    seen: set[tuple[int, tuple[int, ...]]] = set()
    for sizes, found in probes:
        array = found.arrays.get(value)
        if array is None or array.dtype.kind not in "iuf" or array.shape.count(sizes.new) != 1:
            return None
        axis = array.shape.index(sizes.new)
        spread = np.moveaxis(array.astype(np.float64), axis, -1)
        offset = spread - np.arange(sizes.past, sizes.total)
        first = float(offset.flat[0])
        if first != int(first) or not np.all(offset == first):
            return None
        seen.add((int(first), tuple(-1 if a == axis else size for a, size in enumerate(array.shape))))
    if len(seen) != 1:
        return None
    offset_, shape = seen.pop()
    return Positioned(value=value, offset=offset_, shape=shape, dtype=_dtype(value, probes))


def _dtype(value: ir.Value, probes: Sequence[tuple[Sizes, Probed]]) -> ir.DataType:
    found = probes[0][1]
    return found.specs[value].dtype or ir.DataType.from_numpy(found.arrays[value].dtype)


def _as_rows(host: Host, value: ir.Value, probes: Sequence[tuple[Sizes, Probed]]) -> Positioned | None:
    """``value`` if it is a Slice, past … past + S, of a constant table."""
    node = value.producer()
    if node is None or not is_standard(node, "Slice") or (table := node.inputs[0]) is None or table in host.dynamic:
        return None
    axes: set[tuple[int, tuple[int, ...]]] = set()
    for sizes, found in probes:
        array, rows = found.arrays.get(value), found.arrays.get(table)
        if array is None or rows is None or array.ndim != rows.ndim or array.shape.count(sizes.new) < 1:
            return None
        axis = next((a for a in range(array.ndim) if array.shape[a] != rows.shape[a]), -1)
        if axis < 0 or not np.array_equal(array, np.take(rows, range(sizes.past, sizes.total), axis=axis, mode="clip")):
            return None
        axes.add((axis, tuple(-1 if a == axis else size for a, size in enumerate(array.shape))))
    if len(axes) != 1:
        return None
    axis, shape = axes.pop()
    return Positioned(value=value, shape=shape, dtype=_dtype(value, probes), table=table, axis=axis)


def _as_rows_again(
    value: ir.Value, found: Mapping[ir.Value, Positioned], probes: Sequence[tuple[Sizes, Probed]]
) -> Positioned | None:
    """``value`` if it is one of ``found`` that holds rows of a table, with other axes of size 1."""
    node = value.producer()
    source = found.get(node.inputs[0]) if node is not None and node.inputs and node.inputs[0] is not None else None
    if node is None or source is None or source.table is None or kind_of(node) not in _UNIT_AXES:
        return None
    shapes = set()
    for sizes, probed in probes:
        array, rows = probed.arrays.get(value), probed.arrays[source.value]
        if array is None or array.dtype != rows.dtype or array.shape.count(sizes.new) < 1:
            return None
        wanted = [size for size in source.shape if size != 1]
        shape = tuple(array.shape)
        axis = next((a for a, size in enumerate(shape) if size != 1), 0) + wanted.index(-1)
        marked = tuple(-1 if a == axis else size for a, size in enumerate(shape))
        if [size for size in marked if size != 1] != wanted or not np.array_equal(array.ravel(), rows.ravel()):
            return None
        shapes.add(marked)
    return replace(source, value=value, shape=shapes.pop()) if len(shapes) == 1 else None


def _first(host: Host, found: Sequence[Positioned]) -> list[Positioned]:
    """Those of ``found`` that no other of them leads to."""
    values = {p.value for p in found}
    return [p for p in found if not reaches_back(p.value, values - {p.value})]


def _chosen(host: Host, found: Sequence[Positioned], entries: Sequence[tuple[ir.Node, int]]) -> list[Positioned]:
    """The first of two dimensions on each path, which may have rows; on paths without one the first of any shape."""
    rows = _first(host, [p for p in found if p.can_have_rows])
    stops = {p.value for p in rows}
    left = leading_to(host, entries, stops=stops)
    others = [p for p in found if not p.can_have_rows and p.value in left and not reaches_back(p.value, stops)]
    return [p for p in found if p in rows or p in _first(host, others)]


def _lengths(
    host: Host, leading: Mapping[ir.Value, None], probes: Sequence[tuple[Sizes, Probed]]
) -> Iterator[LengthRead]:
    """Comparisons with the number of tokens that choose between what leads to tokens."""
    for node in host.nodes:
        if kind_of(node) not in _COMPARISONS or not any(v in leading for v in node.outputs):
            continue
        for index, value in enumerate(node.inputs):
            offsets = set()
            for sizes, found in probes:
                array = found.arrays.get(value) if value is not None and host.is_host(value) else None
                offsets.add(float(array.flat[0]) - sizes.total if array is not None and array.size == 1 else None)
            offset = offsets.pop() if len(offsets) == 1 else None
            if value is not None and offset is not None and offset == int(offset):
                yield LengthRead(node=node, index=index, offset=int(offset), dtype=_dtype(value, probes))


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
    reached = depending_on(host.nodes, [given])
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

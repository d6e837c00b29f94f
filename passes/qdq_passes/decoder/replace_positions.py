"""replace-positions"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.decoder.edit.slots import canonical_positions, position_input
from qdq_passes.decoder.look.batch_rows import Positioned, Spread
from qdq_passes.decoder.look.host_boundary import frozen_positions
from qdq_passes.decoder.look.host_region import Host
from qdq_passes.decoder.look.io import DecoderIo, decoder_io
from qdq_passes.decoder.look.positions import LengthRead, PositionPlan, position_plan
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.build import Builder, Site, drop_chains, drop_input
from qdq_passes.graph.edit import replace_value
from qdq_passes.graph.uses import label


@dataclass(frozen=True)
class ReplacePositions(Pass):
    """Derive every position in a decoder from one input ``position_ids`` int64 [batch, sequence], the true index of each token.

    What is past + 0…S-1 (+ c) under several sizes, and is not computed of that input, is computed of it: a Range from the size of
    the cache, a sum over the mask, another input (``cache_position``); a table cut by the past is read by positions. A comparison
    with the number of tokens, by which a rotation chooses its frequencies, takes the largest position + 1.

    Graph: ``past → Shape → Range → Unsqueeze → Cast → Mul → Cos`` → ``position_ids → Cast → Mul → Cos``.
    Requires: masks of scores that do not come from positions any more: run replace-attention-mask first.
    Keeps: names of the other inputs and of the outputs; numerics bit-exact for positions past … past + S - 1. Where a row of a
    batch cannot have positions of its own, all take those of the first row, and the change says so.
    Skips: a decoder whose positions follow the input alone, or that has none. What else follows the size of the cache is an
    error: it would be a constant under a static one.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="positions come in as an input")

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Plan, then derive."""
        io = decoder_io(model)
        given = canonical_positions(io)
        plan = position_plan(Host(model, io), given)
        if plan.values or plan.lengths:
            yield from _derive(model, io, plan)
        else:
            yield skip(model.graph.name or "graph", "nothing but an input of positions tells them")
        _refuse_frozen(model)


def _derive(model: ir.Model, io: DecoderIo, plan: PositionPlan) -> Iterator[Change]:
    builder = Builder(model)
    read = [v for v in (io.mask, io.positions, *io.others) if v is not None and v.uses()]
    positions = position_input(model, io, builder)
    old: list[ir.Value | None] = []
    for positioned in plan.values:
        value, producer = positioned.value, positioned.value.producer()
        anchor = producer if producer is not None else next(iter(model.graph))
        site = builder.at(anchor, base=value.name, stands_for=[producer] if producer is not None else ())
        made = _derived(site, positions, positioned, plan)
        _forget_shapes(value)
        replace_value(value, made, builder.namer)
        old.append(value)
        shared = "" if plan.per_row else "; a batch takes those of its first row"
        yield Change("replace", value.name or "", f"{_words(positioned)} of {positions.name}{shared}")
    for length in plan.lengths:
        old.append(length.node.inputs[length.index])
        yield _measure(builder, positions, length)
    spread = _Spreader(builder, positions)
    for each in plan.spreads:
        yield spread(each)
    yield from drop_chains(old)
    for value in read:
        if value is not positions:
            yield from drop_input(model, value)


def _words(positioned: Positioned) -> str:
    if positioned.table is not None:
        return f"rows of {positioned.table.name} by the positions"
    return f"the positions{positioned.offset:+d}" if positioned.offset else "the positions"


def _derived(site: Site, positions: ir.Value, positioned: Positioned, plan: PositionPlan) -> ir.Value:
    """``positioned`` of ``positions``: row by row, rows one behind the other, or those of the first row alone."""
    value, is_flat = positions, bool(plan.spreads)
    if not plan.per_row:
        value = site("Gather", value, site.constant(0, word="row"), axis=0)
    elif is_flat:
        value = site.reshape(value, [-1])
    if positioned.offset:
        value = site("Add", value, site.constant(positioned.offset, word="offset"))
    if positioned.table is not None:
        value = site("Gather", positioned.table, value, axis=positioned.axis)
    elif positioned.dtype != ir.DataType.INT64:
        value = site.cast(value, positioned.dtype)
    if plan.per_row and not is_flat:
        return _with_rows(site, value, positioned, positions)
    if positioned.shape != (-1,) and positioned.table is None:
        value = site.reshape(value, [size if size == -1 else 1 for size in positioned.shape])
        if any(size > 1 for size in positioned.shape):
            value = site("Expand", value, site.constant([max(size, 1) for size in positioned.shape], word="shape"))
    elif positioned.table is not None:
        value = site.reshape(value, list(positioned.shape))
    return value


def _with_rows(site: Site, value: ir.Value, positioned: Positioned, positions: ir.Value) -> ir.Value:
    """``value`` [1…, batch, sequence, rest] with axes of size 1 between batch and sequence where ``positioned`` has some."""
    if not positioned.can_have_rows or positioned.shape == (1, -1):
        return value if value is not positions else site("Identity", value)
    for _ in range(positioned.axis):
        value = site.squeeze(value, 0)
    return site.reshape(value, [0, *positioned.shape[1:]])


class _Spreader:
    """Sets rows apart that stand one behind the other; each value once."""

    def __init__(self, builder: Builder, positions: ir.Value) -> None:
        self._builder, self._positions = builder, positions
        self._made: dict[tuple[ir.Value | None, int], ir.Value] = {}

    def __call__(self, spread: Spread) -> Change:
        node, value = spread.node, spread.node.inputs[spread.index]
        if (value, spread.ones) not in self._made:
            self._made[value, spread.ones] = self._apart(spread, value)
        node.replace_input_with(spread.index, self._made[value, spread.ones])
        return Change("edit", label(node), f"reads rows of a batch of {self._positions.name}")

    def _apart(self, spread: Spread, value: ir.Value | None) -> ir.Value:
        site = self._builder.at(spread.node, base=f"{spread.node.name}_rows")
        batch, new = (site.reshape(site.dim(self._positions, axis), [1]) for axis in (0, 1))
        tail = site.constant(list(spread.rest), word="rest") if spread.rest else None
        middle = site.constant([1] * spread.ones, word="ones") if spread.ones else None
        shape = site("Concat", *(part for part in (batch, middle, new, tail) if part is not None), axis=0)
        return site("Reshape", value, shape)


def _forget_shapes(value: ir.Value) -> None:
    """What is computed of ``value`` on the side may have a row per row of the batch now."""
    stack, seen = [value], {value}
    while stack:
        for node in stack.pop().consumers():
            for output in node.outputs:
                if output not in seen and not output.is_graph_output():
                    seen.add(output)
                    output.shape = None
                    stack.append(output)


def _measure(builder: Builder, positions: ir.Value, length: LengthRead) -> Change:
    """Let a comparison take the largest position + 1 for the number of tokens."""
    node = length.node
    site = builder.at(node)
    value = site("ReduceMax", positions, keepdims=0)
    value = site("Add", value, site.constant(1 + length.offset, word="more"))
    if length.dtype != ir.DataType.INT64:
        value = site.cast(value, length.dtype)
    node.replace_input_with(length.index, value)
    return Change(
        "edit",
        label(node),
        f"compares with the largest of {positions.name}, not with the size of the cache",
    )


def _refuse_frozen(model: ir.Model) -> None:
    io = decoder_io(model)
    frozen = frozen_positions(Host(model, io), canonical_positions(io))
    if frozen:
        node, value = frozen[0]
        raise UnsupportedError(
            f"reads {value.name}, which follows the size of the cache: under a static one it would be a constant",
            where=label(node), hint="positions must come from position_ids, a Range from the past, or the mask",
        )  # fmt: skip

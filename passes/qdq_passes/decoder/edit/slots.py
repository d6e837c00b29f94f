"""Where new rows go in a cache that is updated in place: positions of tokens as the indices that a scatter takes,
and the one input of positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change
from qdq_passes.decoder.look.io import DecoderIo
from qdq_passes.errors import ModelError, UnsupportedError
from qdq_passes.graph.build import Builder, Site
from qdq_passes.graph.edit import Namer, graph_of
from qdq_passes.graph.sizes import rank_of, rank_or
from qdq_passes.graph.uses import all_values

#: Name of the input that is made where a model has no positions.
POSITIONS = "position_ids"


def ensure_positions(
    model: ir.Model, io: DecoderIo, builder: Builder, batch: int, length: int
) -> tuple[ir.Value, bool]:
    """The input that tells the position of each token, and whether it is new: int64 [batch, length], called `POSITIONS`."""
    if io.positions is not None:
        return io.positions, False
    shape = ir.Shape([batch, length])
    made = ir.Value(name=builder.namer.fresh(POSITIONS), type=ir.TensorType(ir.DataType.INT64), shape=shape)
    model.graph.inputs.insert(list(model.graph.inputs).index(io.ids) + 1, made)
    return made, True


@dataclass(frozen=True)
class Rows:
    """New rows of a tensor of the cache.

    Args:
        sizes: sizes of the new rows, sequence included.
        axis: axis of the sequence.
        batch_axis: axis of the batch.
    """

    sizes: tuple[int, ...]
    axis: int
    batch_axis: int


class Slots:
    """Makes indices from positions, once for all rows of equal shape; they stand at the front of the graph.

    Args:
        builder: the builder of this pass.
        positions: integers [batch, sequence] or [sequence]: the slot of each new row.
    """

    def __init__(self, builder: Builder, positions: ir.Value) -> None:
        self._builder, self._positions = builder, positions
        self._made: dict[tuple[str, Rows], ir.Value] = {}
        self._base: ir.Value | None = None

    def indices(self, operator: str, rows: Rows, update: ir.Node) -> ir.Value:
        """The index input of ``operator`` for ``rows``.

        ScatterElements: int64 of the shape of the rows. ScatterND: int64 [sizes up to the sequence's and the batch's axis, axes].
        TensorScatter: int64 [batch], the slot of the first row.

        Raises:
            ModelError: positions are of another length or batch than the rows.
            UnsupportedError: the operator cannot write along this axis.
        """
        key = (operator, rows)
        if key not in self._made:
            self._check(rows, update)
            graph = graph_of(update)
            first = next(node for node in graph)
            site = self._builder.at(first, base=self._positions.name, stands_for=[update])
            made = {"ScatterElements": self._elements, "ScatterND": self._points, "TensorScatter": self._starts}
            self._made[key] = made[operator](site, rows)
        return self._made[key]

    def _rank(self) -> int:
        return rank_or(self._positions, 2)

    def _check(self, rows: Rows, update: ir.Node) -> None:
        shape = list(self._positions.shape) if self._positions.shape is not None else []
        batch = shape[0] if len(shape) == 2 else 1
        if shape and isinstance(shape[-1], int) and shape[-1] != rows.sizes[rows.axis]:
            raise ModelError(
                f"writes {rows.sizes[rows.axis]} rows, {self._positions.name} tells the slots of {shape[-1]}", where=update.name,
                hint="run bind-decoder first",
            )  # fmt: skip
        if isinstance(batch, int) and batch not in (1, rows.sizes[rows.batch_axis]):
            raise UnsupportedError(
                f"axis {rows.batch_axis} of the cache has size {rows.sizes[rows.batch_axis]}, the batch {batch}: "
                "heads and batch are one axis", where=update.name, hint="take a batch of 1",
            )  # fmt: skip

    def _spread(self, site: Site, rows: Rows, rank: int) -> tuple[ir.Value, list[int]]:
        """Positions as int64 of ``rank`` dimensions, sequence and batch along their axes, 1 elsewhere; and their sizes."""
        value = self._positions
        if value.dtype is not None and value.dtype != ir.DataType.INT64:
            value = site.cast(value, ir.DataType.INT64)
        shape = [1] * rank
        shape[rows.axis] = rows.sizes[rows.axis]
        first = self._positions.shape[0] if self._positions.shape is not None else rows.sizes[rows.batch_axis]
        if self._rank() == 2 and first != 1:
            shape[rows.batch_axis] = rows.sizes[rows.batch_axis]
            if rows.axis < rows.batch_axis:
                value = site.transpose(value, 1, 0)
        return site.reshape(value, shape), shape

    def _elements(self, site: Site, rows: Rows) -> ir.Value:
        value, sizes = self._spread(site, rows, len(rows.sizes))
        return _expanded(site, value, sizes, rows.sizes)

    def _points(self, site: Site, rows: Rows) -> ir.Value:
        many = rows.sizes[rows.batch_axis] > 1 and rows.batch_axis > rows.axis
        depth = max(rows.axis, rows.batch_axis if many else 0) + 1
        sizes = rows.sizes[:depth]
        spread, shape = self._spread(site, rows, depth)
        value = _expanded(site, spread, shape, sizes)
        parts: list[ir.Value] = []
        for span in (range(rows.axis), range(rows.axis + 1, depth)):
            if span:
                parts.append(site.constant(_grid(sizes, span), word="grid"))
            if span.start == 0:
                parts.append(site.unsqueeze(value, depth))
        points = site("Concat", *parts, name="Indices", axis=depth) if len(parts) > 1 else parts[0]
        points.shape = ir.Shape([*sizes, depth])
        return points

    def _starts(self, site: Site, rows: Rows) -> ir.Value:
        if rows.axis == 0:
            raise UnsupportedError(
                "TensorScatter takes the first axis for the batch, the cache has the sequence there",
                where=self._positions.name, hint="take operator=scatter-elements",
            )  # fmt: skip
        value = self._positions
        if value.dtype is not None and value.dtype != ir.DataType.INT64:
            value = site.cast(value, ir.DataType.INT64)
        first = site.reshape(site.slice(value, self._rank() - 1, 0, 1), [-1])
        batch = self._positions.shape[0] if self._positions.shape is not None and self._rank() == 2 else 1
        return _expanded(site, first, [batch if isinstance(batch, int) else 0], rows.sizes[:1])


def _expanded(site: Site, value: ir.Value, sizes: Sequence[int], wanted: Sequence[int]) -> ir.Value:
    return value if list(sizes) == list(wanted) else site("Expand", value, site.constant(list(wanted)))


def _grid(sizes: Sequence[int], axes: range) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """[sizes…, len(axes)]: the index of each element along ``axes``."""
    return np.stack([np.indices(sizes)[axis] for axis in axes], axis=-1).astype(np.int64)


def free_name(model: ir.Model, holder: ir.Value | None, name: str, instead: str, namer: Namer) -> Iterator[Change]:
    """Let the value called ``name`` be called ``instead``, if there is one that is no output; ``holder`` is looked at first."""
    values = [holder] if holder is not None and holder.name == name else all_values(model)
    for value in values:
        if value.name == name and not value.is_graph_output() and value.const_value is None:
            value.name = namer.fresh(instead)
            namer.release(name)
            yield Change("rename", name, f"{value.name}; the name is that of the mask of scores")


def canonical_positions(io: DecoderIo) -> ir.Value | None:
    """The input of positions if it is int64 [batch, sequence], one row of a batch each."""
    own = io.positions
    is_canonical = own is not None and own.dtype == ir.DataType.INT64 and rank_of(own) == 2
    return own if is_canonical else None


def position_input(model: ir.Model, io: DecoderIo, builder: Builder) -> ir.Value:
    """The input of positions, int64 [batch, sequence]: that of ``model``, or a new one called ``position_ids``."""
    canonical = canonical_positions(io)
    if canonical is not None:
        return canonical
    own, ids = io.positions, io.ids.shape
    shape = ir.Shape([ids[0], ids[1]] if ids is not None and len(ids) > 1 else [None, None])
    if own is not None and own.name == POSITIONS:
        own.name = builder.namer.fresh(f"{POSITIONS}_as_exported")
        builder.namer.release(POSITIONS)
    made = ir.Value(name=builder.namer.fresh(POSITIONS), type=ir.TensorType(ir.DataType.INT64), shape=shape)
    model.graph.inputs.insert(list(model.graph.inputs).index(io.ids) + 1, made)
    return made

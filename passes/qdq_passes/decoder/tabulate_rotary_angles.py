"""tabulate-rotary-angles

cos(p·ω), sin(p·ω) for p = 0 … C − 1 are rows of a table [C, D].

Tables by position: what a graph computes of positions, computed for each of them, and proved to be read back alike."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Named, Pass, skip
from qdq_passes.decoder.look.record import DECODER
from qdq_passes.decoder.look.rotary_angles import Angles, graph_between, rotary_angles, why_foreign, why_mixed
from qdq_passes.errors import QdqError, UsageError
from qdq_passes.graph.build import Builder, Site, drop_chains
from qdq_passes.graph.edit import replace_value
from qdq_passes.graph.evaluate.rare import Compute
from qdq_passes.graph.foreign import to_proto
from qdq_passes.graph.operators.qdq_ops import opset_at
from qdq_passes.numerics.arrays import Array

_CLOSE = Keeps("changes", why="cosines and sines are those of numpy, which differ from a runtime's in their last bits")


@dataclass(frozen=True)
class TabulateRotaryAngles(Pass):
    """Look cosines and sines of rotary embeddings up by position: angles up to the context length fit no 16-bit float.

    Graph: ``position_ids → Cast → Mul(frequencies) → Cos → Mul(factor) → Unsqueeze`` →
    ``table [C, D], position_ids → Gather → Unsqueeze``, likewise Sin, in whatever form an exporter wrote it. The table is a new
    constant ``<value>_table``. Positions are an input, or what the graph makes of one number a row.
    Requires: static sizes (bind-decoder).
    Keeps: inputs, outputs and their names; numerics bit-exact with ``compute`` for positions below ``context``, each of which is
    computed in several orders and compared; without it cosines are numpy's.
    Skips: a Cos or Sin that follows from more than positions, through operators that ONNX does not have, or not from every
        position below ``context``; frequencies that are chosen by the longest position.

    Args:
        context: how many positions there are; 0: as the decoder's record says.
        compute: what computes the numbers: the runtime in the verbs of the tool; None: numpy.
    """

    context: int = 0
    compute: Compute | Named | None = None

    @property
    def keeps(self) -> Keeps:  # type: ignore[override]
        """Exact where the runtime computes the numbers."""
        return _CLOSE if self.compute is None else EXACT

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Input by input."""
        if self.context < 0:
            raise UsageError(f"context={self.context} is no number of positions", hint="at least 1")
        builder = Builder(model)
        for found in list(rotary_angles(model.graph)):
            if isinstance(found, Angles):
                yield from self._tabulate(model, found, builder)
            else:
                yield skip(*found)

    def _tabulate(self, model: ir.Model, angles: Angles, builder: Builder) -> Iterator[Change]:
        """The tables of ``angles``."""
        first, record = angles.trigonometry[0], DECODER.get(model.graph)
        context = self.context or (record.ctx_len if record is not None else 0)
        if not context:
            yield skip(first, "how many positions there are is not known; give context")
            return
        if not angles.starts:
            yield skip(first, f"the sizes of {angles.source.name} are not static; run bind-decoder first")
            return
        reasons = []
        for start in angles.starts:
            made = self._tables(model, angles, start, context)
            if isinstance(made, str):
                reasons.append(made)
                continue
            for value in angles.values:
                yield _look_up(value, start, made[value.name or ""], builder)
            yield from drop_chains(angles.values, "cosines and sines are in a table")
            return
        yield skip(first, reasons[0])

    def _tables(self, model: ir.Model, angles: Angles, start: ir.Value, context: int) -> dict[str, Table] | str:
        """What ``start`` tells of the angles; in words why nothing."""
        assert not isinstance(self.compute, Named)
        between = angles.between(start)
        if not between:
            return f"what is computed of {start.name} reads {angles.source.name} elsewhere"
        refused = why_mixed(between) or why_foreign([*angles.made_by(start), *between])
        if refused is not None:
            return refused
        opset, version = opset_at(model, angles.trigonometry[0]), model.ir_version or 10
        before = graph_between(angles.made_by(start), angles.source, (start,), opset, version)
        if start is not angles.source and not is_counted(ir.from_proto(before), context):
            return f"{start.name} is not {angles.source.name} and what is counted from it"
        part = ir.from_proto(graph_between(between, start, angles.values, opset, version))
        names = [value.name or "" for value in angles.values]
        return tables(part, start, names, context, self.compute or compute_in_numpy)


def _look_up(value: ir.Value, positions: ir.Value, table: Table, builder: Builder) -> Change:
    """Rows of ``table`` by ``positions`` in the place of ``value``."""
    node = value.producer()
    assert node is not None
    site = builder.at(node, base=value.name)
    dtype = value.dtype or ir.DataType.from_numpy(table.rows.dtype)
    rows = site.constant(table.rows, dtype, word="table")
    made = _laid_out(site, site("Gather", rows, positions, axis=0), positions, table)
    made.shape, made.type = ir.Shape(table.shape), ir.TensorType(dtype)
    context = len(table.rows)
    replace_value(value, made, builder.namer)
    return Change("replace", value.name or "", f"rows of a table of {context} positions, by {positions.name}")


def _laid_out(site: Site, gathered: ir.Value, positions: ir.Value, table: Table) -> ir.Value:
    """What was gathered, [positions…, rest…], in the shape of the value."""
    assert positions.shape is not None
    lengths = [int(size) for size in positions.shape if isinstance(size, int)]
    shape = [*lengths, *table.rows.shape[1:]]
    if list(table.order) != sorted(table.order):
        inner = [size for size in lengths if size != 1] + list(table.rows.shape[1:])
        if inner != shape:
            gathered = site.reshape(gathered, inner)
        gathered = site.transpose(gathered, *table.order)
        shape = [inner[place] for place in table.order]
    return gathered if shape == list(table.shape) else site.reshape(gathered, table.shape)


#: Seed of the order in which positions are tried again.
_SEED = 7


def compute_in_numpy(model: ir.Model, feeds: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
    """`Compute` by onnx's reference implementation: the last bit of a cosine is numpy's, not that of the runtime."""
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(to_proto(model))
    names = [value.name or "" for value in model.graph.outputs]
    return [dict(zip(names, map(np.asarray, evaluator.run(None, dict(feed))), strict=True)) for feed in feeds]


def is_counted(model: ir.Model, context: int) -> bool:
    """Whether the one output of ``model`` is its one input plus 0, 1 … or … −1, 0 in some places: positions of its own.

    Args:
        model: makes positions of one number a row.
        context: how many positions there are.
    """
    source, output = model.graph.inputs[0], model.graph.outputs[0].name or ""
    assert source.shape is not None
    assert source.dtype is not None
    shape = tuple(size for size in source.shape if isinstance(size, int))
    feeds = [{source.name or "": np.full(shape, k, source.dtype.numpy())} for k in (0, context - 1, context // 2)]
    numbers = [next(iter(feed.values())).flat[0] for feed in feeds]
    found = [run[output] - number for run, number in zip(compute_in_numpy(model, feeds), numbers, strict=True)]
    return all(np.array_equal(found[0], one) for one in found) and 0 in (int(found[0].min()), int(found[0].max()))


@dataclass(frozen=True, eq=False, kw_only=True)
class Table:
    """What a value is for each position.

    Args:
        rows: [context, rest…].
        axes: axes of the value along which its positions lie, in the order of the axes of the positions that are not 1.
        shape: of the value.
    """

    rows: Array
    axes: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def rest(self) -> tuple[int, ...]:
        """The other axes of the value that are not 1."""
        return tuple(a for a, size in enumerate(self.shape) if a not in self.axes and size != 1)

    @property
    def order(self) -> tuple[int, ...]:
        """Where the axes of a value, without those of 1, are among (axes, rest)."""
        laid = [*self.axes, *self.rest]
        return tuple(laid.index(a) for a in sorted(laid))

    def read(self, positions: Array) -> Array:
        """The value for ``positions``."""
        sizes = [size for size in positions.shape if size != 1]
        found = self.rows[positions.reshape(sizes)]
        return np.asarray(found.transpose(self.order).reshape(self.shape))


def tables(
    model: ir.Model, start: ir.Value, names: Sequence[str], context: int, compute: Compute
) -> dict[str, Table] | str:
    """The outputs ``names`` of ``model``, by name, for positions 0 … context − 1 in its one input; in words why there are none.

    Every position is computed three times over: in order, in another order, and all places of a run the same; the tables give
    back every bit of it.

    Args:
        model: what computes them, of positions in the static shape of ``start``.
        start: the positions.
        names: of the outputs.
        context: how many positions there are.
        compute: computes the model.
    """
    assert start.shape is not None
    sizes = tuple(size for size in start.shape if isinstance(size, int))
    dtype = start.dtype.numpy() if start.dtype is not None else np.dtype(np.int64)
    runs = _runs(sizes, context, dtype)
    try:
        found = compute(model, [{start.name or "": positions} for positions in runs])
    except (IndexError, QdqError) as error:  # a table of the model that ends before
        return f"what follows from {start.name} cannot be computed for {context} positions: {error}"
    made: dict[str, Table] = {}
    for name in names:
        values = [np.asarray(outputs[name]) for outputs in found]
        table = _table(runs, values, context)
        if table is None:
            return f"{name} at one position follows from others"
        made[name] = table
    return made


def _runs(sizes: tuple[int, ...], context: int, dtype: Any) -> list[Array]:
    """Positions of every run: each in order, each in another order, and the ends alone."""
    count = math.prod(sizes)
    padded = -(-context // count) * count
    straight = np.minimum(np.arange(padded), context - 1)
    mixed = np.random.default_rng(_SEED).permutation(straight)
    ends = np.repeat([0, context - 1, context // 2], count)
    rows = np.concatenate([straight, mixed, ends]).astype(dtype)
    return list(rows.reshape(-1, *sizes))


def _table(runs: Sequence[Array], values: Sequence[Array], context: int) -> Table | None:
    """The table that gives back all ``values``; None where none does."""
    lengths = [size for size in runs[0].shape if size != 1]
    shape = values[0].shape
    for axes in itertools.permutations(range(len(shape)), len(lengths)):
        if [shape[a] for a in axes] != lengths:
            continue
        rest = [a for a, size in enumerate(shape) if a not in axes and size != 1]
        laid = [np.squeeze(v, tuple(a for a in range(v.ndim) if a not in axes and v.shape[a] == 1)) for v in values]
        kept = sorted([*axes, *rest])
        order = [kept.index(a) for a in (*axes, *rest)]
        flat = [v.transpose(order).reshape(-1, *(shape[a] for a in rest)) for v in laid]
        rows = np.concatenate(flat[: -(-context // runs[0].size)])[:context]
        table = Table(rows=np.ascontiguousarray(rows), axes=axes, shape=shape)
        if all(table.read(p).tobytes() == np.ascontiguousarray(v).tobytes() for p, v in zip(runs, values, strict=True)):
            return table
    return None

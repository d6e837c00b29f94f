"""Tables by position: what a graph computes of positions, computed for each of them, and proved to be read back alike."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from qdq_passes.errors import QdqError
from qdq_passes.numerics.arrays import Array

#: Computes a model for several feeds: outputs by name, one mapping a feed.
Compute = Callable[[ir.Model, Sequence[Mapping[str, Array]]], Sequence[Mapping[str, Array]]]

#: Seed of the order in which positions are tried again.
_SEED = 7


def compute_in_numpy(model: ir.Model, feeds: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
    """`Compute` by onnx's reference implementation: the last bit of a cosine is numpy's, not that of the runtime."""
    evaluator = ReferenceEvaluator(ir.to_proto(model))
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

"""Feeds from arrays that hold many samples: the first axis is the sample axis, cut into pieces of the model's batch size.

For a model input [B, C, H, W] and an array
    [S, C, H, W]       S // B feeds of B samples each (B = 1 where the model's batch is dynamic)
    [S, B, C, H, W]    S feeds, cut into batches already
    [C, H, W]          one feed (B = 1)
An array that makes one feed while the others make many is the same in all of them (position ids, a constant mask).

Arrays that are no inputs (labels, boxes) go along where they are asked for: cut into the same pieces where they have as many
entries along their first axis as the inputs have, else the same in every feed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from qdq_passes.errors import UsageError
from qdq_passes.numerics.arrays import Array

from qdqtool.io.feeds.spec import InputSpec, format_shape
from qdqtool.io.feeds.stored_array import StoredArray
from qdqtool.io.files.progress import Warn


def pick_arrays(
    arrays: Mapping[str, Array | StoredArray],
    inputs: Sequence[InputSpec],
    *,
    where: str,
    warn: Warn,
    extras: bool = False,
) -> dict[str, Array | StoredArray]:
    """The arrays of the model's inputs, by name; one array for one input is taken whatever its name. With ``extras`` the others
    follow.

    Raises:
        UsageError: an input has no array.
    """
    missing = [spec.name for spec in inputs if spec.name not in arrays]
    if missing and len(arrays) == len(inputs) == 1:
        ((name, array),) = arrays.items()
        warn(f"array {name!r} is taken as the model's only input {missing[0]!r}")
        return {missing[0]: array}
    if missing:
        names = ", ".join(repr(name) for name in missing)
        hint = f"it has {', '.join(sorted(arrays)) or 'nothing'}; the model wants {', '.join(s.name for s in inputs)}"
        raise UsageError(f"no array for input {names}", where=where, hint=hint)
    others = sorted(set(arrays) - {spec.name for spec in inputs})
    for name in () if extras else others:
        warn(f"array {name!r} is no input of the model: not used")
    return {spec.name: arrays[spec.name] for spec in inputs} | {name: arrays[name] for name in others if extras}


class SampleArrays:
    """Feeds cut from arrays in memory (as views) or in files.

    Raises:
        UsageError: an array cannot be cut for its input, or the arrays make different numbers of feeds.
    """

    def __init__(
        self,
        arrays: Mapping[str, Array | StoredArray],
        inputs: Sequence[InputSpec],
        *,
        where: str,
        warn: Warn,
        extras: bool = False,
    ) -> None:
        picked = pick_arrays(arrays, inputs, where=where, warn=warn, extras=extras)
        self._cuts = {spec.name: _Cut(picked[spec.name], spec, where, warn) for spec in inputs}
        counts = {name: cut.count for name, cut in self._cuts.items()}
        self.count = max(counts.values(), default=1)
        for name, count in counts.items():
            if count == 1 < self.count:
                warn(f"input {name!r} has one piece: the same in all {self.count} feeds")
            elif count != self.count:
                text = ", ".join(f"{c} for {n!r}" for n, c in counts.items())
                raise UsageError(f"the arrays make different numbers of feeds: {text}", where=where)

        many = next((cut for cut in self._cuts.values() if cut.is_cut), None)
        others = [name for name in picked if name not in self._cuts]
        self._extras = {name: _Extra(np.asarray(picked[name]), many) for name in others}

    def __iter__(self) -> Iterator[tuple[str, dict[str, Array]]]:
        pieces = {name: cut.pieces() for name, cut in self._cuts.items()}
        for index in range(self.count):
            extras = {name: extra.piece(index) for name, extra in self._extras.items()}
            yield f"sample {index}", {name: next(cut) for name, cut in pieces.items()} | extras


class _Cut:
    """One array and how it is cut for its input."""

    def __init__(self, array: Array | StoredArray, spec: InputSpec, where: str, warn: Warn) -> None:
        self._array = array
        batch, rank = spec.batch, None if spec.shape is None else len(spec.shape)
        if array.ndim and rank is not None and array.ndim == rank + 1 and spec.takes(array.shape[1:]):
            self._step, self.count = 0, len(array)
        elif array.ndim and (rank is None or (rank and spec.takes((batch, *array.shape[1:])))):
            if not batch:
                message = f"input {spec.name!r} has a first axis of size 0: no sample fits"
                raise UsageError(message, hint="export the model with a batch of one")
            self._step, self.count = batch, len(array) // batch
            left = len(array) - self.count * batch
            if not self.count:
                hint = f"the model's batch is {batch}: give more samples, or bind a smaller batch with `fix-shapes`"
                raise UsageError(f"array {spec.name!r} has {len(array)} samples", where=where, hint=hint)
            if left:
                warn(
                    f"input {spec.name!r}: the last {left} of {len(array)} samples do not fill a batch of {batch}: dropped"
                )
        elif spec.takes(array.shape) or spec.takes_unbatched(array.shape):
            self._step, self.count = -1, 1
        else:
            raise UsageError(
                f"array {spec.name!r} has shape {format_shape(array.shape)}, the model wants {format_shape(spec.shape)}",
                where=where,
                hint="the first axis is the sample axis",
            )
        if not self.count:
            raise UsageError(f"array {spec.name!r} holds no sample", where=where)

    @property
    def is_cut(self) -> bool:
        """Whether its first axis is the sample axis."""
        return self._step >= 0 and self.count > 1

    @property
    def samples(self) -> int:
        """Length of its first axis."""
        return len(self._array)

    @property
    def rows(self) -> int:
        """Samples in a piece; 0 where the pieces lack the first axis."""
        return self._step

    def pieces(self) -> Iterator[Array]:
        """Its pieces in order; one alone again and again."""
        if self._step < 0:
            return itertools.repeat(np.asarray(self._array))
        found = self._cut()
        return itertools.repeat(next(found)) if self.count == 1 else found

    def _cut(self) -> Iterator[Array]:
        rows = self._step or 1
        if isinstance(self._array, StoredArray):
            pieces = self._array.pieces(rows, self.count)
        else:
            array = self._array
            pieces = (array[start : start + rows] for start in range(0, rows * self.count, rows))
        return pieces if self._step else (np.asarray(piece[0]) for piece in pieces)


class _Extra:
    """An array that is no input, cut as the input ``like`` is where it is as long."""

    def __init__(self, array: Array, like: _Cut | None) -> None:
        self._array = array
        self._like = like if like is not None and array.ndim and len(array) == like.samples else None

    def piece(self, index: int) -> Array:
        """What goes with feed ``index``."""
        if self._like is None:
            return self._array
        rows = self._like.rows
        return self._array[index * rows : (index + 1) * rows] if rows else np.asarray(self._array[index])

"""Feeds from arrays that hold many samples: the first axis is the sample axis, cut into pieces of the model's batch size.

For a model input [B, C, H, W] and an array
    [S, C, H, W]       S // B feeds of B samples each (B = 1 where the model's batch is dynamic)
    [S, B, C, H, W]    S feeds, cut into batches already
    [C, H, W]          one feed (B = 1)
An array that makes one feed while the others make many is the same in all of them (position ids, a constant mask)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from qdq_passes.errors import UsageError

from qdqtool.io.feed_spec import Array, InputSpec, Warn, format_shape
from qdqtool.io.stored_array import StoredArray


def pick_arrays(
    arrays: Mapping[str, Array | StoredArray], inputs: Sequence[InputSpec], *, where: str, warn: Warn
) -> dict[str, Array | StoredArray]:
    """The arrays of the model's inputs, by name; one array for one input is taken whatever its name.

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
    for name in sorted(set(arrays) - {spec.name for spec in inputs}):
        warn(f"array {name!r} is no input of the model: not used")
    return {spec.name: arrays[spec.name] for spec in inputs}


class SampleArrays:
    """Feeds cut from arrays in memory (as views) or in files.

    Raises:
        UsageError: an array cannot be cut for its input, or the arrays make different numbers of feeds.
    """

    def __init__(
        self, arrays: Mapping[str, Array | StoredArray], inputs: Sequence[InputSpec], *, where: str, warn: Warn
    ) -> None:
        picked = pick_arrays(arrays, inputs, where=where, warn=warn)
        self._cuts = {spec.name: _Cut(picked[spec.name], spec, where, warn) for spec in inputs}
        counts = {name: cut.count for name, cut in self._cuts.items()}
        self.count = max(counts.values(), default=1)
        for name, count in counts.items():
            if count == 1 < self.count:
                warn(f"input {name!r} has one piece: the same in all {self.count} feeds")
            elif count != self.count:
                text = ", ".join(f"{c} for {n!r}" for n, c in counts.items())
                raise UsageError(f"the arrays make different numbers of feeds: {text}", where=where)

    def __iter__(self) -> Iterator[tuple[str, dict[str, Array]]]:
        pieces = {name: cut.pieces() for name, cut in self._cuts.items()}
        for index in range(self.count):
            yield f"sample {index}", {name: next(cut) for name, cut in pieces.items()}


class _Cut:
    """One array and how it is cut for its input."""

    def __init__(self, array: Array | StoredArray, spec: InputSpec, where: str, warn: Warn) -> None:
        self._array = array
        batch, rank = spec.batch, None if spec.shape is None else len(spec.shape)
        if array.ndim and rank is not None and array.ndim == rank + 1 and spec.takes(array.shape[1:]):
            self._step, self.count = 0, len(array)
        elif array.ndim and (rank is None or (rank and spec.takes((batch, *array.shape[1:])))):
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

"""The KV cache between the runs, in both layouts. Rows of a row of the batch are counted from 0 by the position of their
token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.numerics.arrays import Array

from qdqtool.runtime.bound import Bound, Buffer

#: Layer and part of a tensor of the cache.
Key = tuple[int, str]


@dataclass(frozen=True, kw_only=True)
class CacheSpec:
    """One tensor of the cache.

    Args:
        shape: with the batch first (of a state of several layers: layer by layer) and any number of slots.
        axis: axis of the slots.
        dtype: numpy type.
        groups: how many tensors of layers lie behind each other along the first axis, each with the batch first.
        fill: what stands for 0: the zero point of a cache of integers.
    """

    shape: tuple[int, ...]
    axis: int
    dtype: np.dtype[Any]
    groups: int = 1
    fill: int = 0

    def empty(self, slots: int) -> Array:
        """Memory for ``slots`` slots that stand for 0: what no token has written must be a number, as it is multiplied by 0."""
        return filled((*self.shape[: self.axis], slots, *self.shape[self.axis + 1 :]), self.dtype, self.fill)


def filled(shape: int | tuple[int, ...], dtype: np.dtype[Any], fill: int) -> Array:
    """Memory that holds ``fill``; of zeros it takes place only where it is written."""
    return np.full(shape, fill, dtype) if fill else np.zeros(shape, dtype)


class Cache:
    """The cache of a context length: each tensor with C slots, slot t for the token at position t.

    Args:
        specs: its tensors.
        ctx_len: slots, C.
    """

    def __init__(self, specs: Mapping[Key, CacheSpec], ctx_len: int) -> None:
        self.specs, self.ctx_len = dict(specs), ctx_len
        self.buffers = {key: Buffer(spec.empty(ctx_len)) for key, spec in specs.items()}
        self.windows: list[Window] = []

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(buffer.array.nbytes for buffer in self.buffers.values())

    def by_token(self, key: Key) -> Array:
        """A view of a tensor, [batch, slots, …]."""
        spec, array = self.specs[key], self.buffers[key].array
        if spec.groups == 1:
            return np.moveaxis(array, spec.axis, 1)
        return np.moveaxis(array.reshape(spec.groups, -1, *array.shape[1:]), (1, spec.axis + 1), (0, 1))

    def take(self, other: Cache, lengths: Sequence[int]) -> None:
        """Copy the first ``lengths`` rows of ``other`` (a bucket of another context length), per row of the batch."""
        other.flush()
        self.forget()
        for key in self.buffers:
            ours, theirs = self.by_token(key), other.by_token(key)
            for row, length in enumerate(lengths):  # of a state of several layers, the row of each
                ours[row :: len(lengths), :length] = theirs[row :: len(lengths), :length]

    def flush(self) -> None:
        """Take what windows hold alone."""
        for window in self.windows:
            window.flush()

    def clear(self) -> None:
        """Let every slot stand for 0, as if nothing had run."""
        for key, spec in self.specs.items():
            self.buffers[key].array[...] = spec.fill
        for window in self.windows:
            window.clear()

    def forget(self) -> None:
        """Tell the windows that the rows are others now."""
        for window in self.windows:
            window.forget()


class Window:
    """The past of a graph that slides: [B, H, C-S, D], the tokens so far right-aligned, in memory that it slides over.

    One token is added without moving the others. As head h+1 follows head h in memory, the view that begins one row later
    drops the oldest row of each head; the place after the last row of a head is where the oldest of the next head was, and
    takes the new row.

    Args:
        cache: where all rows are kept.
        seq_len: tokens of a run, S.
        readers: of each tensor, the sessions that read it, and the name of the input.
        new: of each tensor, where the graph leaves its new rows, [B, H, S, D].

    Attributes:
        can_push: whether `push` works: for graphs of one token.
    """

    def __init__(
        self, cache: Cache, seq_len: int, readers: Mapping[Key, tuple[Sequence[Bound], str]], new: Mapping[Key, Array]
    ) -> None:
        self._cache, self._slots = cache, cache.ctx_len - seq_len
        self._at: list[int] | None = None  # per row of the batch, how many tokens the window ends behind
        self._kept: list[int] = []  # of these, how many the cache has
        self._offset = 0
        self.can_push = seq_len == 1 and self._slots > 0
        self._tensors = {
            key: _Sliding(spec, self._slots, cache.ctx_len if self.can_push else 0, *readers[key], new[key])
            for key, spec in cache.specs.items()
        }
        cache.windows.append(self)

    def place(self, starts: Sequence[int]) -> None:
        """Have the window end with token ``starts`` - 1 of each row, and the inputs of the graph read it."""
        if self._at != list(starts):
            self._fill(starts)
        for tensor in self._tensors.values():
            tensor.point(self._offset)

    def _fill(self, starts: Sequence[int]) -> None:
        self._cache.flush()
        self._offset = 0
        for key, tensor in self._tensors.items():
            rows, view = self._cache.by_token(key), tensor.by_token(0)
            for row, start in enumerate(starts):
                view[row, self._slots - start :] = rows[row, :start]
        self._at, self._kept = list(starts), list(starts)

    def held(self, key: Key) -> Array:
        """What the graph reads of a tensor: a view."""
        return self._tensors[key].view(self._offset)

    def push(self) -> None:
        """Add the one new token of each row. The cache gets it with `flush`."""
        assert self._at is not None
        if any(at - kept >= self._slots for at, kept in zip(self._at, self._kept, strict=True)):
            self.flush()  # what is dropped now must be in the cache
        self._at = [at + 1 for at in self._at]
        self._offset += 1
        for tensor in self._tensors.values():
            tensor.ends[self._offset] = tensor.new

    def flush(self) -> None:
        """Copy to the cache what was pushed since the last time."""
        if self._at is None or self._at == self._kept:
            return
        for key, tensor in self._tensors.items():
            rows, view = self._cache.by_token(key), tensor.by_token(self._offset)
            for row, (at, kept) in enumerate(zip(self._at, self._kept, strict=True)):
                rows[row, kept:at] = view[row, self._slots - (at - kept) :]
        self._kept = list(self._at)

    def forget(self) -> None:
        """The cache has changed; what was pushed since the last `flush` is dropped."""
        self._at = None

    def clear(self) -> None:
        """Hold nothing but what stands for 0."""
        self.forget()
        for tensor in self._tensors.values():
            tensor.clear()


class _Sliding:
    """One tensor of a window: memory for ``slots`` rows of each head, and for ``more`` rows behind."""

    def __init__(self, spec: CacheSpec, slots: int, more: int, readers: Sequence[Bound], name: str, new: Array) -> None:
        before, behind = spec.shape[: spec.axis], spec.shape[spec.axis + 1 :]
        self._shape, self._axis, self._name, self._readers = (*before, slots, *behind), spec.axis, name, readers
        heads, inner = math.prod(before), math.prod(behind)
        self._size, self._row = math.prod(self._shape), inner
        self._memory, self._fill = filled(self._size + more * inner, spec.dtype, spec.fill), spec.fill
        self._address = self._memory.ctypes.data
        step = inner * self._memory.itemsize
        #: [offset, head, row]: the last row of each head in the view at each offset.
        self.ends = np.lib.stride_tricks.as_strided(
            self._memory[(slots - 1) * inner :] if more else self._memory,
            (more + 1 if more else 0, heads, inner),
            (step, slots * step, self._memory.itemsize),
        )
        self.new = new.reshape(heads, -1)

    def clear(self) -> None:
        """Hold what stands for 0."""
        self._memory[...] = self._fill

    def view(self, offset: int) -> Array:
        """The view at ``offset``, as the graph reads it."""
        return self._memory[offset * self._row : offset * self._row + self._size].reshape(self._shape)

    def by_token(self, offset: int) -> Array:
        """The view at ``offset``, [batch, slots, …]."""
        return np.moveaxis(self.view(offset), self._axis, 1)

    def point(self, offset: int) -> None:
        """Have the graph read the view at ``offset``."""
        for bound in self._readers:
            bound.point(self._name, self._address + offset * self._row * self._memory.itemsize)

"""The data of a tensor, a piece at a time: what lies in a file is mapped, and pages that were looked at are let go again.

So reading through a weight of any size takes the memory of a piece. (The pages of a mapped file count as memory in use for as
long as they are mapped.)"""

from __future__ import annotations

import dataclasses
import math
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir

from qdq_passes.errors import ModelError
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import Encoding, encoding_of_weight

#: Elements of a piece: 4 MiB of float32.
PIECE = 1 << 20
#: In ``meta`` of a tensor: whether it is finite.
_FINITE = "qdqtool.finite"
#: Bytes from which a tensor in a file is worked on in pieces.
LARGE = 1 << 18


def is_large_file(tensor: ir.TensorProtocol | None) -> bool:
    """Whether ``tensor`` lies in a file and is to stay there."""
    return isinstance(tensor, ir.ExternalTensor) and tensor.nbytes >= LARGE


@contextmanager
def mapped(tensor: ir.TensorProtocol) -> Iterator[tuple[Array, Callable[[int, int], None]]]:
    """The flat data of ``tensor``, and a function that lets go of the memory of its elements ``start`` to ``stop``.

    Raises:
        ModelError: its file is gone, or too short.
    """
    if not isinstance(tensor, ir.ExternalTensor):
        yield tensor.numpy().reshape(-1), lambda start, stop: None
        return
    own = ir.ExternalTensor(  # a mapping of its own, which ends here
        tensor.location, tensor.offset, tensor.length, tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()), name=tensor.name or "", base_dir=tensor.base_dir,
    )  # fmt: skip
    try:
        flat = own.numpy().reshape(-1)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"its data cannot be read: {error}", where=tensor.name, hint="put the data file back beside the model"
        ) from error
    advice = getattr(mmap, "MADV_DONTNEED", None)

    def let_go(start: int, stop: int) -> None:
        if advice is None or own.raw is None:
            return
        first, last = ((own.offset or 0) + place * flat.itemsize for place in (start, stop))
        first -= first % mmap.PAGESIZE
        own.raw.madvise(advice, first, last - first)

    yield flat, let_go


def pieces_of(tensor: ir.TensorProtocol) -> Iterator[Array]:
    """The flat data of ``tensor`` in pieces of up to `PIECE` elements; each is read when it is asked for."""
    with mapped(tensor) as (flat, let_go):
        for start in range(0, flat.size, PIECE):
            stop = min(start + PIECE, flat.size)
            yield flat[start:stop]
            let_go(start, stop)


def is_finite(tensor: ir.TensorProtocol) -> bool:
    """Whether a float tensor holds neither NaN nor Inf; what lies in a large file is read once."""
    known = tensor.meta.get(_FINITE)
    if known is None:
        with np.errstate(invalid="ignore"):
            known = all(_is_finite_piece(part.astype(np.float32, copy=False)) for part in pieces_of(tensor))
        if is_large_file(tensor):
            tensor.meta[_FINITE] = known
    return bool(known)


def _is_finite_piece(part: Array) -> bool:
    """Extremes are NaN where one element is: two quick passes, where `numpy.isfinite` makes an array."""
    return bool(np.isfinite(part.min(initial=0)) and np.isfinite(part.max(initial=0)))


def extremes(tensor: ir.TensorProtocol, axis: int | None) -> tuple[Array, Array]:
    """(lows, highs) of ``tensor``, 0 included, in its type: [1] each, or with an ``axis`` (≥ 0) one per index of it."""
    shape = tuple(tensor.shape.numpy())
    count = 1 if axis is None else shape[axis]
    outer, inner = (1, math.prod(shape)) if axis is None else (math.prod(shape[:axis]), math.prod(shape[axis + 1 :]))
    with mapped(tensor) as (flat, let_go):
        lows, highs = np.zeros(count, flat.dtype), np.zeros(count, flat.dtype)
        for (start, stop), (first, last) in spans(outer, count, inner):
            part = flat[start:stop].reshape(-1, last - first, inner)
            np.minimum(lows[first:last], part.min(axis=(0, 2)), out=lows[first:last])
            np.maximum(highs[first:last], part.max(axis=(0, 2)), out=highs[first:last])
            let_go(start, stop)
    return lows, highs


def encoding_of_large(tensor: ir.TensorProtocol, axis: int | None, **rule: Any) -> Encoding:
    """`encoding_of_weight` of a tensor that is read in pieces; ``axis`` is not negative."""
    lows, highs = extremes(tensor, axis)
    found = encoding_of_weight(np.stack([lows, highs]), None if axis is None else 1, **rule)
    return found if axis is None else dataclasses.replace(found, axis=axis)


def spans(outer: int, count: int, inner: int, step: int = 1) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Pieces of a tensor seen as [outer, count, inner], each contiguous: (first and last element), (first and last index of the
    middle axis). A piece has several whole indices of ``outer``, or of one of them some of the middle axis, a multiple of
    ``step``."""
    if 0 in (outer, count, inner):
        return
    row = count * inner
    if row <= PIECE:
        rows = PIECE // row
        for first in range(0, outer, rows):
            yield (first * row, min(first + rows, outer) * row), (0, count)
        return
    some = max(step, PIECE // inner // step * step)
    for start in range(0, outer * row, row):
        for low in range(0, count, some):
            high = min(low + some, count)
            yield (start + low * inner, start + high * inner), (low, high)

"""Arrays in ``.npz`` and ``.npy`` files that are read along their first axis, a piece at a time, and never held as a whole."""

from __future__ import annotations

import lzma
import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from qdq_passes.core import budget
from qdq_passes.errors import ModelError
from qdq_passes.numerics.arrays import Array

from qdqtool.io.files.read import refuse_special

#: Bytes up to which an array is read at once.
HELD = 1 << 22
_BROKEN = (
    OSError, ValueError, TypeError, KeyError, EOFError, OverflowError, RuntimeError,
    zipfile.BadZipFile, zlib.error, lzma.LZMAError,
)  # fmt: skip


class StoredArray:
    """An array that stays in its file; as an argument of numpy it is read as a whole.

    Args:
        path: the file.
        member: name inside of an ``.npz``; None for an ``.npy``.
        shape: its shape, of rank 1 at least.
        dtype: its type.
    """

    def __init__(self, path: Path, member: str | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._path, self._member = path, member
        self.shape, self.dtype, self.ndim = shape, dtype, len(shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(next(self.pieces(len(self), 1)), dtype)

    def pieces(self, rows: int, count: int) -> Iterator[Array]:
        """The first ``count`` pieces of ``rows`` rows each; each may be kept.

        Raises:
            ModelError: the file is broken, or no longer there.
        """
        row = self.dtype.itemsize
        for size in self.shape[1:]:
            row *= size
        with reading(self._path), _opened(self._path, self._member) as file:
            _header(file)
            _demand(self._path, rows * row)
            for _ in range(count):
                data = file.read(rows * row)
                if len(data) < rows * row:
                    raise ValueError("the file ends before the array does")
                yield np.frombuffer(data, self.dtype).reshape(rows, *self.shape[1:])


def arrays_in(path: Path) -> dict[str, Array | StoredArray]:
    """The arrays of an ``.npz`` (or the one of an ``.npy``, called ``"data"``); those over `HELD` bytes stay in the file.

    Raises:
        ModelError: the file is broken, holds pickled objects, or an array that must be read at once and is too large for that.
    """
    with reading(path):
        if not zipfile.is_zipfile(path):
            with open(path, "rb") as file:
                return {"data": _stored(path, None, file) or _whole(path, file)}
        with zipfile.ZipFile(path) as archive:  # once, not for each of its members
            return {name.removesuffix(".npy"): _member(path, archive, name) for name in archive.namelist()}


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> Array | StoredArray:
    with archive.open(name) as file:
        is_array = file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX
    with archive.open(name) as file:
        if is_array:
            return _stored(path, name, file) or _whole(path, file)
        _demand(path, archive.getinfo(name).file_size)
        return np.frombuffer(file.read(), np.uint8)


def _whole(path: Path, file: IO[bytes]) -> Array:
    file.seek(0)
    found: Array = npy.read_array(file, allow_pickle=False)
    return found


def _demand(path: Path, size: int) -> None:
    """Refuse what would be held at once of the file, unless the file itself is of that size."""
    budget.demand(size, "an array in it, read at once,", where=str(path), least=budget.LEAST + 8 * path.stat().st_size)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what goes wrong while ``path`` is read into one clear line.

    Raises:
        ModelError: something did.
    """
    refuse_special(path)
    try:
        yield
    except _BROKEN as error:
        raise ModelError(f"cannot be read as .npz: {error}", where=str(path)) from error


def _stored(path: Path, member: str | None, file: IO[bytes]) -> StoredArray | None:
    """The array as one that stays in the file; None where it must be read at once: small, or its rows do not lie together."""
    header = _header(file)
    if header is None:
        return None
    shape, fortran_order, dtype = header
    size = dtype.itemsize * math.prod(shape)
    if size <= HELD or not shape or dtype.hasobject or (fortran_order and len(shape) > 1):
        _demand(path, size)
        return None
    return StoredArray(path, member, shape, dtype)


@contextmanager
def _opened(path: Path, member: str | None) -> Iterator[IO[bytes]]:
    with ExitStack() as stack:
        if member is None:
            yield stack.enter_context(open(path, "rb"))
        else:
            yield stack.enter_context(stack.enter_context(zipfile.ZipFile(path)).open(member))


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]] | None:
    """(shape, whether columns lie together, type) of the array that ``file`` holds; None for versions with named fields."""
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    read = readers.get(npy.read_magic(file))
    return None if read is None else read(file)

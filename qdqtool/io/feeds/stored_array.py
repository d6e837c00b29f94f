"""Arrays in ``.npz`` and ``.npy`` files that are read along their first axis, a piece at a time, and never held as a whole."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib.format import MAGIC_PREFIX
from qdq_passes.errors import ModelError
from qdq_passes.numerics.arrays import Array

from qdqtool.io.files.npy import BROKEN, demand, read_array, read_header, read_member
from qdqtool.io.files.read import refuse_special

#: Bytes up to which an array is read at once.
HELD = 1 << 22


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
            read_header(file)
            demand(self._path, rows * row)
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
                if (stored := _stored(path, None, file)) is not None:
                    return {"data": stored}
                file.seek(0)
                return {"data": read_array(path, file)}
        found: dict[str, Array | StoredArray] = {}
        held = 0
        with zipfile.ZipFile(path) as archive:  # once, not for each of its members
            for name in archive.namelist():
                key = name.removesuffix(".npy")
                with archive.open(name) as member:
                    stored = _stored(path, name, member)
                if stored is None:
                    demand(path, held + archive.getinfo(name).file_size)
                    found[key] = whole = read_member(path, archive, name)
                    held += whole.nbytes
                else:
                    found[key] = stored
        return found


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what goes wrong while ``path`` is read into one clear line.

    Raises:
        ModelError: something did.
    """
    refuse_special(path)
    try:
        yield
    except BROKEN as error:
        raise ModelError(f"cannot be read as .npz: {error}", where=str(path)) from error


def _stored(path: Path, member: str | None, file: IO[bytes]) -> StoredArray | None:
    """The array as one that stays in the file; None where it must be read at once: small, or its rows do not lie together."""
    if file.read(len(MAGIC_PREFIX)) != MAGIC_PREFIX:
        return None
    file.seek(0)
    header = read_header(file)
    if header.size <= HELD or not header.shape or (header.by_columns and len(header.shape) > 1):
        return None
    return StoredArray(path, member, header.shape, header.dtype)


@contextmanager
def _opened(path: Path, member: str | None) -> Iterator[IO[bytes]]:
    with ExitStack() as stack:
        if member is None:
            yield stack.enter_context(open(path, "rb"))
        else:
            yield stack.enter_context(stack.enter_context(zipfile.ZipFile(path)).open(member))

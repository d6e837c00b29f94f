"""Arrays of a stranger's ``.npy`` and ``.npz``: the one reader of their headers, and of arrays that are read at once.

A header is read by a grammar of its own: numpy parses it as Python, which deep nesting breaks. Its claims are checked before
memory is taken."""

from __future__ import annotations

import lzma
import math
import os
import re
import zipfile
import zlib
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core import budget
from qdq_passes.numerics.arrays import Array

from qdqtool.io.files.read import refuse_special

#: What reading a broken file raises.
BROKEN = (
    OSError, ValueError, TypeError, KeyError, EOFError, OverflowError, RuntimeError,
    zipfile.BadZipFile, zlib.error, lzma.LZMAError,
)  # fmt: skip
#: Bytes of a header; rows that take no bytes, of which a file of a few bytes can claim any number.
_LONGEST, _MOST_EMPTY = 1 << 14, 1 << 20
_ENTRY = re.compile(
    r"""\s*(?:(['"])descr\1\s*:\s*(['"])(?P<dtype>[<>|=]?[?biufcSUV][0-9]{0,9})\2"""
    r"""|(['"])fortran_order\4\s*:\s*(?P<by_columns>True|False)"""
    r"""|(['"])shape\6\s*:\s*\((?P<shape>(?:\s*[0-9]{1,18}L?\s*(?:,|(?=\))))*\s*)\))\s*(?:,|$)"""
)


@dataclass(frozen=True)
class Header:
    """The claims of a header.

    Args:
        shape: of the array.
        by_columns: whether its columns lie together.
        dtype: its type.
    """

    shape: tuple[int, ...]
    by_columns: bool
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Bytes of the array."""
        return self.dtype.itemsize * math.prod(self.shape)


def read_header(file: IO[bytes]) -> Header:
    """Read the header that ``file`` starts with.

    Raises:
        ValueError: it is none, or claims a type other than numbers, texts and bytes.
    """
    width = 2 if npy.read_magic(file) == (1, 0) else 4
    length = int.from_bytes(file.read(width), "little")
    if length > _LONGEST:
        raise ValueError(f"its header has {length} bytes")
    text = file.read(length).decode("latin-1").strip()
    found: dict[str, str] = {}
    at = 1
    while text[:1] == "{" and (entry := _ENTRY.match(text, at, len(text) - 1)):
        found |= {name: value for name, value in entry.groupdict().items() if value is not None}
        at = entry.end()
    if text[at:].strip() != "}" or len(found) != 3:
        raise ValueError(f"its header {text[:40]!r} is none of an array of numbers")
    shape = tuple(int(part) for part in re.findall("[0-9]+", found["shape"]))
    header = Header(shape, found["by_columns"] == "True", np.dtype(found["dtype"]))
    if not header.dtype.itemsize or (header.size == 0 and max(shape) > _MOST_EMPTY):
        raise ValueError(f"it claims {max(shape, default=1):,} rows of no bytes")
    return header


def read_array(path: str | os.PathLike[str], file: IO[bytes]) -> Array:
    """Read the array that ``file``, ``path`` or a member of it, holds: a copy of its own.

    Raises:
        ValueError: it holds none, or less than it claims.
        ModelError: the claim is larger than what is allowed.
    """
    header = read_header(file)
    demand(path, header.size)
    data = file.read(header.size)
    if len(data) < header.size:
        raise ValueError("the file ends before the array does")
    flat = np.frombuffer(data, header.dtype).copy()
    return flat.reshape(header.shape[::-1]).T if header.by_columns else flat.reshape(header.shape)


def read_member(path: str | os.PathLike[str], archive: zipfile.ZipFile, name: str) -> Array:
    """Read the array in the member ``name`` of ``archive``; its bytes where it holds none."""
    with archive.open(name) as file:
        if file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
            file.seek(0)
            return read_array(path, file)
        file.seek(0)
        demand(path, archive.getinfo(name).file_size)
        return np.frombuffer(file.read(), np.uint8)


def array_in(path: str | os.PathLike[str], key: str | None = None) -> Array:
    """The array ``key`` of the ``.npz`` at ``path``; without a key the one of an ``.npy``.

    Raises:
        ModelError: it is larger than what is allowed, or no regular file.
        Exception: one of `BROKEN`.
    """
    refuse_special(path)
    if key is None:
        with open(path, "rb") as file:
            return read_array(path, file)
    with zipfile.ZipFile(path) as archive:
        name = next((name for name in (f"{key}.npy", key) if name in archive.NameToInfo), None)
        if name is None:
            raise ValueError(f"there is no {key!r} in it")
        return read_member(path, archive, name)


def keys_of(path: str | os.PathLike[str]) -> list[str]:
    """The names of the arrays in the ``.npz`` at ``path``; raises one of `BROKEN`."""
    refuse_special(path)
    with zipfile.ZipFile(path) as archive:
        return sorted({name.removesuffix(".npy") for name in archive.namelist()})


def demand(path: str | os.PathLike[str], size: int) -> None:
    """Refuse to hold ``size`` bytes of the file at ``path`` at once, unless the file itself is of that size.

    Raises:
        ModelError: it is more than what is allowed.
    """
    least = budget.LEAST + 8 * os.path.getsize(path)
    budget.demand(size, "an array in it, read at once,", where=os.fspath(path), least=least)

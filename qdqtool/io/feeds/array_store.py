"""Arrays in an ``.npz``: all at once, or written and read one at a time where their sum need not fit into memory.

The file appears whole or not at all, the same arrays give the same bytes (no clock), ``numpy.load`` reads it. One member,
``about``, holds what is said of the arrays as JSON: kind, version, and what the writer adds."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.documents import json_of, typed

from qdqtool.io.files.artifacts import canonical_json
from qdqtool.io.files.atomic import whole_file, write_whole
from qdqtool.io.files.npy import BROKEN, array_in

#: Member that says what the others are.
ABOUT = "about"


class ArrayWriter:
    """Arrays on their way into a file; made by `writing_arrays`."""

    def __init__(self, file: zipfile.ZipFile) -> None:
        self._file = file
        self._written: set[str] = set()

    def add(self, array: Array) -> str:
        """Write ``array``, unless one like it is there; its name, which is its `hash_of`."""
        name = hash_of(array)
        if name not in self._written:
            self._written.add(name)
            with self._file.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:  # its date is 1980
                np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
        return name

    def about(self, payload: Mapping[str, Any]) -> None:
        """Write what is said of the arrays; once, last."""
        text = canonical_json(payload).encode()
        with self._file.open(zipfile.ZipInfo(f"{ABOUT}.npy"), "w") as member:
            np.lib.format.write_array(member, np.frombuffer(text, np.uint8), allow_pickle=False)


def hash_of(array: Array) -> str:
    """Hex SHA-256 of type, shape and content of ``array``."""
    kept = np.ascontiguousarray(array)
    digest = hashlib.sha256(f"{kept.dtype.str}{list(array.shape)}".encode())
    digest.update(kept.reshape(-1).view(np.uint8).data if kept.size else b"")
    return digest.hexdigest()


@contextmanager
def writing_arrays(path: str | os.PathLike[str], *, overwrite: bool = True) -> Iterator[ArrayWriter]:
    """Write arrays to ``path`` (parents are made); the file is there once the body is done.

    Raises:
        UsageError: the file exists and ``overwrite`` is off, or the place cannot be written.
        SetupError: the disk is full.
    """
    with whole_file(path, overwrite=overwrite) as whole, zipfile.ZipFile(whole, "w", allowZip64=True) as file:
        yield ArrayWriter(file)


class ArrayFile:
    """The arrays of a file, each read when it is asked for.

    Args:
        path: what `writing_arrays` wrote.
        kind: what its ``about`` must say.
        max_version: newest version that is understood.

    Raises:
        UsageError: there is no such file.
        ModelError: it is broken, of another kind or a newer version.
    """

    def __init__(self, path: str | os.PathLike[str], *, kind: str, max_version: int) -> None:
        self._path, self._kind = os.fspath(path), kind
        if not os.path.isfile(self._path):
            raise UsageError("no such file", where=self._path)
        try:
            self.about = typed(dict[str, Any], json_of(bytes(self.read(ABOUT))))
            version = typed(int, self.about.get("version", 0), "version")
        except ValueError as error:
            raise self._broken(error) from error
        if self.about.get("kind") != kind:
            raise ModelError(f"holds {self.about.get('kind')!r}, not {kind}", where=self._path)
        if version > max_version:
            raise ModelError("is of a newer version", where=self._path, hint="update qdqtool")

    def read(self, name: str) -> Array:
        """The array ``name``.

        Raises:
            ModelError: it is missing or broken.
        """
        try:
            return array_in(self._path, name)
        except BROKEN as error:
            raise self._broken(error) from error

    def numbers(self, name: str) -> Array:
        """The array ``name``, of finite numbers.

        Raises:
            ModelError: as `read`, or it holds something else.
        """
        found = self.read(name)
        if found.dtype.kind not in "fiu" or not np.isfinite(found).all():
            raise self._broken(ValueError(f"{name} holds no finite numbers"))
        return found

    def _broken(self, error: Exception) -> ModelError:
        return ModelError(f"is no file of {self._kind}: {error}", where=self._path, hint="make it again")


@contextmanager
def scratch_file(suffix: str) -> Iterator[str]:
    """The name of a file in a folder of its own, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="qdqtool-") as folder:
        yield os.path.join(folder, f"scratch{suffix}")


def write_npz(path: str | os.PathLike[str], arrays: Mapping[str, Array], *, overwrite: bool = True) -> None:
    """Write ``arrays`` by name; ``numpy.load`` and ``--data`` read it.

    Raises:
        UsageError: the file exists and ``overwrite`` is off, or the place cannot be written.
        SetupError: the disk is full.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name, array in arrays.items():
            data = io.BytesIO()
            np.lib.format.write_array(data, np.asarray(array), allow_pickle=False)
            file.writestr(zipfile.ZipInfo(f"{name}.npy"), data.getvalue())  # its date is 1980
    write_whole(path, packed.getvalue(), overwrite=overwrite)


def joined(samples: Mapping[str, Sequence[Array]]) -> dict[str, Array]:
    """One array a name: samples behind each other along the first axis, stacked where they are single numbers; of samples whose
    shapes differ one array each, as ``name/0``, ``name/1``."""
    found: dict[str, Array] = {}
    for name, arrays in samples.items():
        if len({array.shape[1:] if array.ndim else None for array in arrays}) == 1:
            found[name] = np.concatenate(arrays) if arrays[0].ndim else np.stack(arrays)
        else:
            found |= {f"{name}/{index}": array for index, array in enumerate(arrays)}
    return found

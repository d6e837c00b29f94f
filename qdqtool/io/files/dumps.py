"""Tensors that a device dumped: files of a folder by sample and name, as vendors' runners leave them.

DIR/Result_0/conv1_out.raw …        a folder per sample (0, 1, … or Result_0, Result_1, …, sorted by number)
DIR/conv1/relu.npy, DIR/all.npz     else one sample; folders are parts of names, an .npz holds many tensors
DIR/0.npz, DIR/1.npz                a file per sample

Of samples numbered from 0 or 1 a number that is not there is a sample without dumps."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy.typing as npt
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError, UsageError

from qdqtool.io.files.npy import BROKEN, array_in, keys_of
from qdqtool.io.files.read import refuse_special

#: Files with their type and shape in them, and files of bytes alone.
ARRAYS, BYTES = (".npy", ".npz"), (".raw", ".bin")
#: Higher numbers are no counts of samples.
MOST_SAMPLES = 100_000
#: A number alone, or behind a word that runners put before it; ``conv1`` is part of a name.
_SAMPLE = re.compile(r"(?:(?:batch|feed|frame|image|inference|input|result|run|sample)s?[_-]?)?(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Dump:
    """One dumped tensor.

    Args:
        name: how the file names it: its path in the sample's folder without suffix, or the key in an .npz.
        path: the file.
        key: the key in an .npz; None in other files.
    """

    name: str
    path: str
    key: str | None = None

    def read(self) -> npt.NDArray[Any] | bytes:
        """The array, or the bytes of a file that says no type.

        Raises:
            ModelError: the file cannot be read.
        """
        refuse_special(self.path)
        try:
            if self.path.lower().endswith(BYTES):
                with open(self.path, "rb") as file:
                    return file.read()
            return array_in(self.path, self.key)
        except BROKEN as error:
            raise ModelError(f"cannot be read: {error}", where=self.path) from error


def dumps_in(folder: str | os.PathLike[str]) -> list[list[Dump]]:
    """The dumped tensors of each sample, sorted by name.

    Raises:
        UsageError: there is no such folder, or nothing in it.
        ModelError: an .npz cannot be read.
    """
    root = os.fspath(folder)
    if not os.path.isdir(root):
        raise UsageError("is no folder of dumped tensors", where=root, hint="give a folder of .npy, .npz, .raw or .bin")
    entries = sorted(os.listdir(root))
    folders = _numbered([e for e in entries if os.path.isdir(os.path.join(root, e))])
    files = _numbered([e for e in entries if e.lower().endswith(".npz")], suffix=4)
    if folders and len({re.sub(r"\d+$", "", f) for f in folders}) == 1:
        samples = [_dumps(os.path.join(root, name), "") if name else [] for name in _with_gaps(folders)]
    elif files and len(files) == len([e for e in entries if e.lower().endswith((*ARRAYS, *BYTES))]):
        samples = [_of_file(os.path.join(root, name), "") if name else [] for name in _with_gaps(files, suffix=4)]
    else:
        samples = [_dumps(root, "")]
    if not any(samples):
        raise UsageError("has no .npy, .npz, .raw or .bin", where=root)
    return samples


def _numbered(names: list[str], suffix: int = 0) -> list[str]:
    """``names`` in the order of the number that each ends in; none at all unless each is a number, with a word before it."""
    found = [(_SAMPLE.fullmatch(name[: len(name) - suffix]), name) for name in names]
    if not all(match for match, _ in found):
        return []
    return [name for _, name in sorted((int(match[1]), name) for match, name in found if match)]


def _with_gaps(names: list[str], suffix: int = 0) -> list[str]:
    """``names``, as `_numbered` sorts them, with ``""`` for each number that is left out after 0 or 1."""
    numbers = [int(match[1]) for name in names if (match := _SAMPLE.fullmatch(name[: len(name) - suffix]))]
    if numbers[0] > 1 or len(set(numbers)) < len(numbers) or numbers[-1] > MOST_SAMPLES:
        return names
    known = dict(zip(numbers, names, strict=True))
    return [known.get(number, "") for number in range(numbers[0], numbers[-1] + 1)]


def _dumps(folder: str, prefix: str) -> list[Dump]:
    found: list[Dump] = []
    for entry in sorted(os.listdir(folder)):
        path = os.path.join(folder, entry)
        if os.path.isdir(path):
            found += _dumps(path, f"{prefix}{entry}/")
        elif entry.lower().endswith((*ARRAYS, *BYTES)):
            found += _of_file(path, prefix)
    return found


def _of_file(path: str, prefix: str) -> list[Dump]:
    refuse_special(path)
    if not path.lower().endswith(".npz"):
        return [Dump(prefix + os.path.splitext(os.path.basename(path))[0], path)]
    try:
        return [Dump(key, path, key) for key in keys_of(path)]
    except BROKEN as error:
        raise ModelError(f"cannot be read: {error}", where=path) from error

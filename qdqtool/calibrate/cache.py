"""A folder of ranges: a calibration that was run before is found again, one that was interrupted goes on.

The name of a file is the SHA-256 of everything that the ranges depend on, data included: the feeds are read and hashed first,
which is little beside running the model, and tells apart what file names and dates do not. What an interrupted run had seen is
the ranges of its first samples, from which every method goes on exactly."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from qdq_passes.errors import ModelError, QdqError, UsageError
from qdq_passes.numerics.arrays import Array

from qdqtool.calibrate import METHODS
from qdqtool.calibrate.ranges import Ranges
from qdqtool.io.feeds.feeds import Feeds
from qdqtool.io.feeds.hashes import EMPTY, add_feed
from qdqtool.io.files.artifacts import read_json, sha256_of_json, write_json
from qdqtool.io.files.read import sha256_of_file
from qdqtool.runtime.session import version

#: Raised when the same samples give other ranges than before.
VERSION = 1


class RangesCache:
    """The ranges of one calibration in a folder.

    Args:
        folder: where they are; made when something is written.
        key: what they depend on, from `cache_key`.
    """

    def __init__(self, folder: str | os.PathLike[str], key: str) -> None:
        self._key = key
        self._whole, self._part = (Path(folder) / f"{key}.{kind}.json" for kind in ("ranges", "part"))

    def read(self) -> Ranges | None:
        """The ranges, or None where they were never found.

        Raises:
            ModelError: the file is broken.
        """
        return self._read(self._whole, "cached-ranges")

    def read_part(self) -> Ranges | None:
        """The ranges of the first samples of an interrupted run, or None.

        Raises:
            ModelError: the file is broken.
        """
        return self._read(self._part, "part-of-ranges")

    def write(self, ranges: Ranges) -> None:
        """Keep the ranges of all samples."""
        self._write(self._whole, "cached-ranges", ranges)
        self._part.unlink(missing_ok=True)

    def write_part(self, ranges: Ranges) -> None:
        """Keep the ranges of the first samples."""
        self._write(self._part, "part-of-ranges", ranges)

    def _write(self, path: Path, kind: str, ranges: Ranges) -> None:
        write_json(path, kind=kind, version=VERSION, payload={**ranges.to_json(), "key": self._key})

    def _read(self, path: Path, kind: str) -> Ranges | None:
        if not path.exists():
            return None
        try:
            payload = read_json(path, kind=kind, max_version=VERSION)
            if payload.get("key") != self._key:
                raise ModelError("holds the ranges of another calibration")
            return Ranges.from_json(payload)
        except QdqError as error:
            raise ModelError(error.message, where=str(path), hint="delete it") from error


def data_sha256(feeds: Iterable[Mapping[str, Array]]) -> str:
    """The fingerprint of all feeds in order, see `qdqtool.io.feeds.hashes`; reads them.

    Raises:
        UsageError: they can be read only once.
    """
    if isinstance(feeds, Feeds):
        return feeds.sha256()
    if iter(feeds) is feeds:
        raise UsageError("a cache needs data that can be read twice", hint="give a list, or a function that yields it")
    data = EMPTY
    for feed in feeds:
        data = add_feed(data, feed)
    return data


def cache_key(job: Ranges, names: Sequence[str], data: str, *, statistics: bool, threads: int) -> str:
    """What the ranges of ``job`` over all of ``data`` depend on: 64 hex digits.

    Args:
        job: ranges of no samples, with the method, its options and the model.
        names: the tensors.
        data: from `data_sha256`.
        statistics: whether every range has a histogram.
        threads: threads inside an operator, which sums depend on.
    """
    return sha256_of_json(
        {
            "data": data,
            "method": job.method,
            "method_source": method_sha256(job.method),
            "model": job.model_sha256,
            "numpy": np.__version__,
            "onnxruntime": version(),
            "options": dict(job.options),
            "statistics": statistics,
            "tensors": list(names),
            "threads": threads,
            "version": VERSION,
        }
    )


def method_sha256(method: str) -> str:
    """Fingerprint of the source of ``method``; empty for one of a package's entry point."""
    source = METHODS.entries()[method].file
    return "" if source is None else sha256_of_file(source)

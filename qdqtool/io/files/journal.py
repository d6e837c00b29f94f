"""Journals: results of a long search, a line of JSON each, so that a search that was killed goes on where it was.

The first line says what the results are of; every further line is ``{"key": …, "result": …}``, written at once and brought onto
the disk. A last line that was cut off is dropped."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from qdq_passes.errors import ModelError, UsageError
from qdq_passes.numerics.documents import json_of

from qdqtool.io.files.artifacts import canonical_json
from qdqtool.io.files.atomic import folder_for, refuse_existing, write_whole, writing
from qdqtool.io.files.read import read_bytes

VERSION = 1


class Journal:
    """Results by key, kept in a file.

    Args:
        path: the file.
        kind: what the results are: ``sensitivity``.
        of: what they are of, by a name in words: ``{"model": "<sha256>"}``. A file in which one of these is another is refused.
        resume: go on with the file where it exists; else it must not.
        overwrite: begin anew though the file exists.

    Raises:
        UsageError: the file exists and ``resume`` and ``overwrite`` are off, or it is of something else.
        ModelError: it is no journal.
    """

    def __init__(
        self, path: str, *, kind: str, of: Mapping[str, str], resume: bool = False, overwrite: bool = False
    ) -> None:
        self.path = os.path.abspath(path)
        self.results: dict[str, Any] = {}
        head = {"format": f"qdqtool.{kind}-journal", "version": VERSION, "of": dict(of)}
        if resume and os.path.exists(self.path):
            self._read(head, path)
            return
        refuse_existing(self.path, overwrite=overwrite)
        write_whole(self.path, _line(head))

    def add(self, key: str, result: Any) -> None:
        """Keep a result; it is on the disk when this returns."""
        with folder_for(self.path), writing(self.path), open(self.path, "ab") as file:
            file.write(_line({"key": key, "result": result}))
            file.flush()
            os.fsync(file.fileno())
        self.results[key] = result

    def remove(self) -> None:
        """Take the file away: the search is over, and its result kept elsewhere."""
        with writing(self.path):
            os.unlink(self.path)

    def _read(self, head: Mapping[str, Any], path: str) -> None:
        data = read_bytes(path)
        whole = data[: data.rfind(b"\n") + 1]
        try:
            lines = [json_of(line) for line in whole.splitlines()]
            found, rest = lines[0], lines[1:]
            kind, version, of = found["format"], found["version"], dict(found["of"])
            self.results = {str(line["key"]): line["result"] for line in rest}
        except (ValueError, KeyError, TypeError, IndexError) as error:
            hint = "give the file of an interrupted run, or one that does not exist"
            raise ModelError("is no file of interrupted results", where=path, hint=hint) from error
        if kind != head["format"] or version != VERSION:
            raise UsageError(f"is a {kind} of version {version}", where=path, hint="give the file of this command")
        for name, value in head["of"].items():
            if of.get(name) != value:
                raise UsageError(
                    f"holds results of another {name}",
                    where=path,
                    hint="take it away, or give another file to begin anew",
                )
        if len(whole) < len(data):
            write_whole(self.path, whole)


def _line(document: Mapping[str, Any]) -> bytes:
    return (canonical_json(document) + "\n").encode()

"""JSON files of other tools: any document, no NaN and no Infinity, written with sorted keys, whole or not at all."""

from __future__ import annotations

import json
import os
from typing import Any

from qdq_passes.errors import ModelError

from qdqtool.io.files.artifacts import canonical_json
from qdqtool.io.files.atomic import write_whole
from qdqtool.io.files.read import read_text


def read_document(path: str | os.PathLike[str]) -> Any:
    """The JSON document in the file at ``path``.

    Raises:
        ModelError: no such file, no JSON, NaN or Infinity in it, or a key twice in one object.
    """
    try:
        return json.loads(read_text(path), parse_constant=_refuse_constant, object_pairs_hook=_refuse_twice)
    except (ValueError, RecursionError) as error:
        message = " ".join(str(error).split()) or "nested too deeply"
        raise ModelError(f"is not JSON ({message})", where=os.fspath(path), hint="write it again") from error


def write_document(path: str | os.PathLike[str], document: Any, *, overwrite: bool = False) -> None:
    """Write ``document`` to ``path``, indented, keys sorted.

    Raises:
        UsageError: it holds NaN or Infinity, or the file exists and ``overwrite`` is off.
    """
    write_whole(path, (canonical_json(document, indent=1) + "\n").encode(), overwrite=overwrite)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for key, _ in pairs if sum(key == other for other, _ in pairs) > 1)
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return found

"""JSON files: versioned artifacts (ranges, encodings, reports), and documents of other tools. Sorted keys, no NaN or Infinity,
written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from qdq_passes.errors import ModelError, UsageError
from qdq_passes.numerics.documents import json_of

from qdqtool.io.files.atomic import write_whole
from qdqtool.io.files.read import read_text

#: Keys of what a machine took for it.
TIMES = ("seconds", "wall_s")


def canonical_json(payload: Any, *, indent: int | None = None) -> str:
    """``payload`` as JSON with sorted keys; the same value gives the same text everywhere.

    Raises:
        UsageError: a number is NaN or infinite, or something is no JSON value.
    """
    separators = (",", ":") if indent is None else (",", ": ")
    try:
        return json.dumps(
            payload, sort_keys=True, allow_nan=False, ensure_ascii=False, indent=indent, separators=separators
        )
    except (TypeError, ValueError) as error:
        raise UsageError(f"cannot be written as JSON: {error}", hint="use null for what is not finite") from error


def sha256_of_json(payload: Any) -> str:
    """Hex SHA-256 of the canonical JSON of ``payload``."""
    return hashlib.sha256(canonical_json(payload).encode()).hexdigest()


def write_json(
    path: str | os.PathLike[str], *, kind: str, version: int, payload: dict[str, Any], overwrite: bool = True
) -> None:
    """Write ``{"format": "qdqtool.<kind>", "version": version, **payload}``, indented, keys sorted.

    Raises:
        UsageError: the payload holds NaN or Infinity, or the file exists and ``overwrite`` is off.
    """
    document = {**payload, "format": f"qdqtool.{kind}", "version": version}
    write_whole(path, (canonical_json(document, indent=1) + "\n").encode(), overwrite=overwrite)


def replaced_in(payload: Any, old: str, new: str) -> Any:
    """Return ``payload`` with ``new`` for ``old`` in its texts, keys aside."""
    if isinstance(payload, Mapping):
        return {key: replaced_in(value, old, new) for key, value in payload.items()}
    if isinstance(payload, list | tuple):
        return [replaced_in(value, old, new) for value in payload]
    return payload.replace(old, new) if isinstance(payload, str) else payload


def without_seconds(payload: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """``payload`` without the times that a machine took, and these alone, under the same keys.

    What stays is equal of equal runs."""
    kept, times = dict[str, Any](), dict[str, Any]()
    for key, value in payload.items():
        if key in TIMES:
            times[key] = value
            continue
        inner, taken = without_seconds(value) if isinstance(value, Mapping) else (value, {})
        kept[key] = inner
        times |= {key: taken} if taken else {}
    return kept, times


def read_json(path: str | os.PathLike[str], *, kind: str, max_version: int) -> dict[str, Any]:
    """The payload of an artifact that `write_json` wrote, with its ``version``; ``format`` is taken off.

    Raises:
        ModelError: missing or unreadable file, no JSON, another kind of artifact, or a version newer than ``max_version``.
    """
    where = os.fspath(path)
    document = read_document(path)
    if not isinstance(document, dict) or document.pop("format", None) != f"qdqtool.{kind}":
        raise ModelError(f"is not a qdqtool.{kind} file", where=where, hint=f"give the file with the {kind}")
    version = document.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ModelError(f"has the version {version!r}", where=where, hint=f"write the {kind} again")
    if version > max_version:
        raise ModelError(
            f"has version {version}, newer than the {max_version} known here", where=where, hint="update qdqtool"
        )
    return document


def read_document(path: str | os.PathLike[str]) -> Any:
    """The JSON document in the file at ``path``.

    Raises:
        ModelError: no such file, or no JSON as `qdq_passes.numerics.documents.json_of` has it.
    """
    try:
        return json_of(read_text(path))
    except ValueError as error:
        raise ModelError(f"is not JSON ({error})", where=os.fspath(path), hint="write it again") from error


def write_document(path: str | os.PathLike[str], document: Any, *, overwrite: bool = False) -> None:
    """Write ``document`` to ``path``, indented, keys sorted.

    Raises:
        UsageError: it holds NaN or Infinity, or the file exists and ``overwrite`` is off.
    """
    write_whole(path, (canonical_json(document, indent=1) + "\n").encode(), overwrite=overwrite)

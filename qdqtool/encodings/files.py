"""Encodings files: read in any format, written in one."""

from __future__ import annotations

import os
from collections.abc import Mapping

from qdq_passes.errors import QdqError, UsageError
from qdq_passes.numerics.encoding import FLOAT32_TINY, Encoding

from qdqtool.encodings.entries import Encodings, Lpbq, Unplaced, Wish
from qdqtool.encodings.formats import read_document, write_document
from qdqtool.encodings.reading import made_of, of_range
from qdqtool.encodings.tensors import Values, values_by_name
from qdqtool.io.files import artifacts
from qdqtool.io.files.artifacts import sha256_of_json

__all__ = ["bound", "read_encodings", "read_names", "sha256_of", "values_by_name", "write_encodings"]


def read_encodings(path: str | os.PathLike[str]) -> Encodings:
    """The encodings in the file at ``path``, whatever its format.

    Raises:
        ModelError: no such file, no encodings file, or a broken entry; the message names the file and the tensor.
    """
    document = artifacts.read_document(path)
    try:
        return read_document(document)
    except QdqError as error:
        error.where = os.fspath(path) if error.where is None else f"{os.fspath(path)}: {error.where}"
        raise


def write_encodings(
    path: str | os.PathLike[str],
    encodings: Encodings,
    format_name: str,
    values: Values | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Write ``encodings`` to ``path``; the arguments are those of `qdqtool.encodings.formats.write_document`.

    Raises:
        UnsupportedError: the format cannot say something; the message names the one that can.
        UsageError: the file exists, or the model is needed and not given.
    """
    artifacts.write_document(path, write_document(encodings, format_name, values), overwrite=overwrite)


def sha256_of(encodings: Encodings, values: Values | None = None) -> str:
    """Hex SHA-256 of what ``encodings`` are in their own format; of a file as it was read, whatever its layout."""
    return sha256_of_json(write_document(encodings, encodings.format, values))


def read_names(path: str | os.PathLike[str]) -> dict[str, str]:
    """Old name → new name, of a JSON object of texts.

    Raises:
        UsageError: it is something else.
    """
    document = artifacts.read_document(path)
    if not isinstance(document, Mapping) or not all(isinstance(new, str) for new in document.values()):
        raise UsageError("is no object of names", where=os.fspath(path), hint='write {"old name": "new name", …}')
    return dict(document)


def bound(encodings: Encodings, values: Values | None = None) -> dict[str, Encoding]:
    """What ``@encodings`` is bound to: the encoding of every tensor that has one.

    Args:
        encodings: from a file.
        values: tensors of the model by name; needed for formats that store no axis.

    Raises:
        UsageError: an entry has no axis, and ``values`` do not tell it.
    """
    found: dict[str, Encoding] = {}
    for entry in encodings.entries:
        value = None if values is None else values.get(entry.name)
        holds = entry.holds
        if value is not None:
            made = made_of(holds, value)
        elif isinstance(holds, Unplaced) or (isinstance(holds, Lpbq) and holds.axis is None):
            raise UsageError(
                f"{encodings.format} stores no axis",
                where=entry.name,
                hint="convert the file to aimet-2.0.0 with --model",
            )
        elif isinstance(holds, Wish):
            made = of_range(holds, FLOAT32_TINY) if holds.low else None
        else:
            made = holds.encoding if isinstance(holds, Lpbq) else holds if isinstance(holds, Encoding) else None
        if made is not None:
            found[entry.name] = made
    return found

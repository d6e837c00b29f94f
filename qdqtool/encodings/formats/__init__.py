"""The formats of encodings files: found by content when read, named when written."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx_ir as ir
from qdq_passes.errors import ModelError, QdqError, UsageError

from qdqtool.encodings.entries import Content, Encodings, Entry, Float, Json, Role
from qdqtool.encodings.formats import aimet_0_6_1, aimet_1_0_0, aimet_2, ort_overrides
from qdqtool.encodings.formats.fields import HINTS
from qdqtool.encodings.tensors import Values

Writer = Callable[[Encodings, Values | None], dict[str, Json]]

WRITERS: dict[str, Writer] = {
    aimet_0_6_1.NAME: aimet_0_6_1.write,
    aimet_1_0_0.NAME: aimet_1_0_0.write,
    **{name: functools.partial(aimet_2.write, format_name=name) for name in aimet_2.NAMES},
    aimet_0_6_1.QNN: aimet_0_6_1.write_qnn,
    ort_overrides.NAME: ort_overrides.write,
}
#: What ``--format`` takes.
FORMATS = tuple(WRITERS)
SECTIONS: dict[str, Role | None] = {
    "activation_encodings": "activation", "param_encodings": "param", "encodings": None
}  # fmt: skip
#: Key in the hints of the tensors that stay float, where a format has no place for them.
FLOATS = "float"


def read_document(document: Json) -> Encodings:
    """The entries of a parsed file of any format.

    Raises:
        ModelError: it is none of them, or an entry is broken; the message names the tensor.
    """
    if not isinstance(document, Mapping) or not document:
        raise ModelError("is no encodings file: not an object with fields", hint=f"known are {', '.join(FORMATS)}")
    if not any(section in document for section in SECTIONS):
        if ort_overrides.is_overrides(document):
            return ort_overrides.read(document)
        raise ModelError(
            "is no encodings file: neither activation_encodings nor encodings in it",
            hint=f"known are {', '.join(FORMATS)}",
        )
    entries: dict[str, Entry] = {}
    for section, role in SECTIONS.items():
        for name, item in _items(document.get(section), section):
            if name in entries:
                raise ModelError(f"is listed twice, in {section} and before", where=name)
            entries[name] = _read_entry(name, item, role)
    hints = document.get(HINTS)
    hints = hints if isinstance(hints, Mapping) else {}
    found = [*entries.values(), *(entry for entry in _floats(hints) if entry.name not in entries)]
    known = (*SECTIONS, "version", HINTS)
    extra = {key: value for key, value in document.items() if key not in known}
    return Encodings(format=format_of(document), entries=tuple(found), extra=extra, hints=hints)


def format_of(document: Mapping[str, Json]) -> str:
    """The format that a document with sections says it has; entries of others in it are read as what they are.

    Raises:
        ModelError: a version that is not known.
    """
    version = document.get("version")
    if version is None:
        if "encodings" in document:
            return "aimet-2.0.0"
        sections = [document.get(section) for section in ("activation_encodings", "param_encodings")]
        return aimet_1_0_0.NAME if any(isinstance(part, list) for part in sections) else aimet_0_6_1.QNN
    text = str(version)
    if text.startswith("0."):
        return aimet_0_6_1.NAME
    name = f"aimet-{text}"
    if name not in FORMATS:
        raise ModelError(
            f"has the encodings version {text!r}, which is not known", hint="known are 0.6.1, 1.0.0, 2.0.0 and 2.1.0"
        )
    return name


def _items(part: Json, section: str) -> Iterator[tuple[str, Json]]:
    """(name, entry) of a section: an object by name, or a list of objects that have a name."""
    if part is None:
        return
    if isinstance(part, Mapping):
        yield from part.items()
    elif isinstance(part, Sequence) and not isinstance(part, str):
        for number, item in enumerate(part, 1):
            name = item.get("name") if isinstance(item, Mapping) else None
            if not isinstance(name, str):
                raise ModelError(f"entry {number} of {section} has no name", hint="give each its tensor's name")
            yield name, item
    else:
        raise ModelError(f"{section} is neither an object nor a list", hint="write the file again")


def _read_entry(name: str, item: Json, role: Role | None) -> Entry:
    """The entry by its own fields, whatever the version of the file: a list is 0.6.1, ``bw`` 1.0.0, ``output_dtype`` 2.0.0."""
    try:
        holds, extra = _reader(item)(name, item)
    except QdqError as error:
        error.where = error.where or name
        raise
    return Entry(name=name, holds=holds, role=role, extra=extra, raw=item)


def _reader(item: Json) -> Callable[[str, Json], tuple[Content, dict[str, Json]]]:
    if isinstance(item, Mapping):
        if "bw" in item:
            return aimet_1_0_0.read_item
        if "bitwidth" not in item:
            return aimet_2.read_item
    return aimet_0_6_1.read_rows


def _floats(hints: Mapping[str, Json]) -> Iterator[Entry]:
    listed = hints.get(FLOATS)
    for name, text in listed.items() if isinstance(listed, Mapping) else ():
        dtype = ir.DataType.__members__.get(str(text).upper())
        if dtype is None:
            raise ModelError(f"the hint {FLOATS!r} names no type: {text!r}", where=name)
        yield Entry(name=name, holds=Float(dtype))


def write_document(encodings: Encodings, format_name: str, values: Values | None = None) -> dict[str, Json]:
    """The document of ``encodings`` in ``format_name``.

    Args:
        encodings: what to write; entries read from the same format are given back as they were.
        format_name: one of `FORMATS`.
        values: tensors of the float model by name; needed where the format stores no axis.

    Raises:
        UsageError: no such format, or the model is needed and not given.
        UnsupportedError: an entry has no place in the format; the message names the one that has.
    """
    if format_name not in WRITERS:
        raise UsageError(f"unknown encodings format {format_name!r}", hint=f"known are {', '.join(FORMATS)}")
    hints = {key: value for key, value in encodings.hints.items() if key != FLOATS}
    if format_name in aimet_2.NAMES:
        floats = {
            entry.name: entry.holds.dtype.name.lower() for entry in encodings.entries if isinstance(entry.holds, Float)
        }
        hints |= {FLOATS: floats} if floats else {}
    return WRITERS[format_name](dataclasses.replace(encodings, hints=hints), values)

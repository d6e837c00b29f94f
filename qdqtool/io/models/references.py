"""Whether a model file may refer to data files, found without reading its weights.

Every reference holds the key ``location``. It is searched for in all of the file but the raw bytes of the initializers of
the main graph, which are nearly all of a large model: the walk along the protobuf fields steps over them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

from qdqtool.io.files.read import refuse_special

KEY = b"location"
#: Initializers of fewer bytes are searched too, which is quicker than a look at their fields.
SMALL = 1 << 12
#: Numbers of protobuf fields: ModelProto.graph, GraphProto.initializer, TensorProto.raw_data.
GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
#: Wire types: a varint, 8 bytes, a length and so many bytes, 4 bytes.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

#: First byte, and the one behind the last.
Span = tuple[int, int]


def may_refer(path: str | os.PathLike[str]) -> bool:
    """Whether the file at ``path`` may refer to data files; False is certain."""
    refuse_special(path)
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return any(data.find(KEY, first, last) >= 0 for first, last in spans(data))


def spans(data: mmap.mmap | bytes) -> list[Span]:
    """The parts of a model file to search: all of it where it is no protobuf."""
    try:
        weights = list(_weights(data))
    except (IndexError, ValueError):  # text, or cut off: who parses it says so
        return [(0, len(data))]
    starts, stops = [0, *(stop for _, stop in weights)], [*(start for start, _ in weights), len(data)]
    return list(zip(starts, stops, strict=True))


def _weights(data: mmap.mmap | bytes) -> Iterator[Span]:
    """The raw bytes of the main graph's initializers, in order."""
    for graph in fields(data, (0, len(data)), GRAPH):
        for tensor in fields(data, graph, _INITIALIZER):
            if tensor[1] - tensor[0] >= SMALL:
                yield from fields(data, tensor, _RAW_DATA)


def fields(data: mmap.mmap | bytes, span: Span, wanted: int) -> Iterator[Span]:
    """The contents of the fields with number ``wanted`` in the message at ``span``.

    Raises:
        ValueError: it is no protobuf message.
        IndexError: the file ends inside of it.
    """
    at, stop = span
    while at < stop:
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            _, at = _varint(data, at)
        elif wire in (_FIXED64, _FIXED32):
            at += 8 if wire == _FIXED64 else 4
        elif wire == _BYTES:
            size, at = _varint(data, at)
            if number == wanted and at + size <= stop:
                yield at, at + size
            at += size
        else:
            raise ValueError(f"wire type {wire}")
    if at != stop:
        raise ValueError("a field is longer than its message")


def _varint(data: mmap.mmap | bytes, at: int) -> tuple[int, int]:
    """(number, where it ends) of the varint at ``at``."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a number of more than 64 bits")

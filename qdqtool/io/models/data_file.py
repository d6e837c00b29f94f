"""A file of external data: tensors streamed one after the other, named by the SHA-256 of what it holds."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator

import onnx_ir as ir
from qdq_passes.errors import ModelError
from qdq_passes.qdq.edit.streamed import StreamedTensor

from qdqtool.io.files.atomic import HiddenFile
from qdqtool.io.files.read import sha256_of_file
from qdqtool.io.models.external import Extent, check_bounds, open_data

CHUNK = 1 << 20
#: Tensors of a page and more start on a page, so that they can be mapped (onnx's ExternalData.md recommends 4096).
PAGE = 4096
SMALL_ALIGNMENT = 64


class DataFile:
    """External data being written into ``folder``; `finish` gives it the name ``<stem>.<first 8 of sha256>.data``."""

    def __init__(self, folder: str, stem: str) -> None:
        self.folder = folder
        self.stem = stem
        #: Path of the finished file when this call made it, None when an equal one was there already.
        self.made: str | None = None
        self._digest = hashlib.sha256()
        self._size = 0
        #: Length and `hash` of what `add_once` added → where.
        self._contents: dict[tuple[int, int], list[int]] = {}
        self._hidden = HiddenFile(folder, f"{stem}.data")

    def add(self, tensor: ir.TensorProtocol) -> tuple[int, int]:
        """Append ``tensor``; its (offset, length) in bytes."""
        return self._append(tensor, chunks_of(tensor))

    def add_once(self, tensor: ir.TensorProtocol) -> tuple[int, int]:
        """The (offset, length) of ``tensor``, which is appended unless this added equal bytes before.

        Bytes that may be equal are compared with the file: their SHA-256 is that of the file alone.
        """
        data = tensor.tobytes()
        offsets = self._contents.setdefault((len(data), hash(data)), [])
        for offset in offsets:
            if self._has(data, offset):
                return offset, len(data)
        offset, length = self._append(tensor, [data])
        offsets.append(offset)
        return offset, length

    def _has(self, data: bytes, offset: int) -> bool:
        """Whether ``data`` stands at ``offset`` already."""
        self._hidden.file.flush()
        with open(self._hidden.path, "rb") as file:
            file.seek(offset)
            pieces = (data[start : start + CHUNK] for start in range(0, len(data), CHUNK))
            return all(file.read(len(piece)) == piece for piece in pieces)

    def _append(self, tensor: ir.TensorProtocol, chunks: Iterable[bytes | memoryview]) -> tuple[int, int]:
        length = nbytes_of(tensor)
        alignment = PAGE if length >= PAGE else SMALL_ALIGNMENT
        self._write(bytes(-self._size % alignment))
        offset = self._size
        for chunk in chunks:
            self._write(chunk)
        if self._size - offset != length:
            raise ModelError(
                f"has {self._size - offset} bytes where type and shape need {length}", where=f"tensor {tensor.name!r}"
            )
        return offset, length

    def _write(self, data: bytes | memoryview) -> None:
        self._digest.update(data)
        self._hidden.file.write(data)
        self._size += len(data)

    @property
    def sha256(self) -> str:
        """Hex SHA-256 of the bytes written so far."""
        return self._digest.hexdigest()

    def finish(self) -> str:
        """Put the file in its place, or use the one of the same name and content; its name.

        A file of that name with other content is never overwritten: more of the digest goes into the name then.
        """
        digest = self.sha256
        self._hidden.sync()
        for digits in (8, 16, 64):
            name = f"{self.stem}.{digest[:digits]}.data"
            path = os.path.join(self.folder, name)
            if not os.path.lexists(path):
                self._hidden.keep_as(path)
                self.made = path
                return name
            if _is_plain(path) and os.path.getsize(path) == self._size and sha256_of_file(path) == digest:
                self._hidden.discard()
                return name
        raise ModelError("exists with other content", where=path, hint="move it away")

    def abandon(self) -> None:
        """Take away what was written."""
        self._hidden.discard()
        if self.made is not None and os.path.lexists(self.made):
            os.unlink(self.made)
            self.made = None


def _is_plain(path: str) -> bool:
    return os.path.isfile(path) and not os.path.islink(path) and os.stat(path).st_nlink == 1


def nbytes_of(tensor: ir.TensorProtocol) -> int:
    """Bytes of ``tensor`` as raw data."""
    return (tensor.size * tensor.dtype.bitwidth + 7) // 8


def chunks_of(tensor: ir.TensorProtocol) -> Iterator[bytes | memoryview]:
    """The raw bytes of ``tensor``; from a file they come in pieces, and the file is examined again when it is open.

    Raises:
        ModelError: the data file is missing, too short, a link, or outside its folder.
    """
    if isinstance(tensor, StreamedTensor):
        yield from tensor.chunks()
        return
    if not isinstance(tensor, ir.ExternalTensor):
        yield tensor.tobytes()
        return
    where, left = f"tensor {tensor.name!r}", nbytes_of(tensor)
    extent = Extent(os.fspath(tensor.location), tensor.offset or 0, tensor.length)
    handle = open_data(os.fspath(tensor.base_dir), extent.location, where)
    with os.fdopen(handle, "rb", buffering=0) as file:
        check_bounds(extent, left, os.fstat(handle).st_size, where)
        file.seek(extent.offset)
        buffer = bytearray(min(CHUNK, left))
        while left:
            count = file.readinto(memoryview(buffer)[: min(CHUNK, left)])
            if not count:
                raise ModelError(f"external data {extent.location!r} ended while it was read", where=where)
            left -= count
            yield memoryview(buffer)[:count]


def check_file(tensor: ir.ExternalTensor) -> None:
    """Whether the data of ``tensor`` is (still) there.

    Raises:
        ModelError: it is not.
    """
    where = f"tensor {tensor.name!r}"
    extent = Extent(os.fspath(tensor.location), tensor.offset or 0, tensor.length)
    handle = open_data(os.fspath(tensor.base_dir), extent.location, where)
    try:
        check_bounds(extent, nbytes_of(tensor), os.fstat(handle).st_size, where)
    finally:
        os.close(handle)

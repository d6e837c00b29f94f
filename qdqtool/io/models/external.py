"""External data: what an entry says, where it may point, and a way to open it that follows no link.

A model file is data from strangers, so its references stay inside its folder, and every reader opens them through here:

- CVE-2022-25882, CVE-2024-27318, CVE-2025-51480: no ``..``, no absolute location, when reading and when writing;
- CVE-2026-27489, CVE-2026-34447: no symbolic link, neither the file nor a folder on the way;
- CVE-2026-34446: no file with several hard links;
- GHSA-q56x-g2fj-4rj6: nothing is checked by name and opened later; the open file itself is examined;
- CVE-2026-34445: only keys of the specification, each once; offset and length are plain numbers inside the file."""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import TYPE_CHECKING

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError

if TYPE_CHECKING:
    import onnx

#: Keys of the specification, and ``basepath``, which onnx itself writes (and nobody reads).
KEYS = ("basepath", "checksum", "length", "location", "offset")
LINK_HINT = "copy the real files with `cp -L`"
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
#: O_NONBLOCK: opening a named pipe must not wait for somebody to write into it.
READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | NO_FOLLOW


@dataclass(frozen=True)
class Extent:
    """Where the bytes of a tensor lie.

    Args:
        location: path relative to the model's folder.
        offset: first byte.
        length: bytes, or None: as many as the tensor has.
        checksum: hex SHA-1 of the whole file; empty where it is not said.
    """

    location: str
    offset: int
    length: int | None
    checksum: str = ""


def extent_of(tensor: onnx.TensorProto) -> Extent:
    """Read the external data entries of ``tensor``.

    Raises:
        ModelError: unknown or repeated keys, no location, a location outside the folder, or no plain numbers.
    """
    where = f"tensor {tensor.name!r}"
    entries: dict[str, str] = {}
    for entry in tensor.external_data:
        if entry.key not in KEYS:
            raise ModelError(
                f"unknown external data key {str(entry.key)[:40]!r}",
                where=where,
                hint=f"known are {', '.join(KEYS)}: save the model again with the onnx package",
            )
        if entry.key in entries:
            raise ModelError(f"external data key {entry.key!r} is given twice", where=where, hint="keep one of them")
        entries[entry.key] = entry.value
    location = check_location(entries.get("location", ""), where)
    offset, length = (_number(key, entries[key], where) if key in entries else None for key in ("offset", "length"))
    return Extent(location, offset or 0, length, entries.get("checksum", "").lower())


def _number(key: str, text: str, where: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", str(text)):
        raise ModelError(
            f"external data {key} {str(text)[:24]!r} is not a number of bytes in a file",
            where=where,
            hint="the file is damaged or made to do harm",
        )
    return int(text)


def check_location(location: str | bytes, where: str) -> str:
    """``location`` when it stays inside the model's folder, by its text.

    Raises:
        ModelError: empty, absolute, or with a ``..`` in it.
    """
    if not isinstance(location, str) or not location.strip() or "\0" in location:
        raise ModelError("external data without a location", where=where, hint="the file is damaged: fetch it again")
    parts = re.split(r"[/\\]", location)
    if parts[0] == "" or re.match(r"[A-Za-z]:[/\\]", location) or (os.name == "nt" and ":" in location):
        raise ModelError(
            f"external data location {location!r} is absolute",
            where=where,
            hint="data must lie beside the model: put it there and give its name only",
        )
    if ".." in parts:
        raise ModelError(
            f"external data location {location!r} leaves the model's folder",
            where=where,
            hint="data must lie beside the model or below it",
        )
    return location


def open_data(folder: str, location: str, where: str) -> int:
    """A read-only file descriptor of ``location`` in ``folder``: a regular file with one name, reached through no link.

    Raises:
        ModelError: missing, a link, not a regular file, or unreadable.
    """
    parts = [part for part in check_location(location, where).split("/") if part not in ("", ".")]
    try:
        handle = _open_below(folder, parts)
    except FileNotFoundError as error:
        raise ModelError(
            f"external data file {location!r} is missing", where=where, hint=f"put it into {folder}"
        ) from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENOTDIR):
            raise ModelError(f"external data {location!r} is a symbolic link", where=where, hint=LINK_HINT) from error
        raise ModelError(
            f"external data file {location!r} cannot be opened ({error.strerror})", where=where, hint="check its rights"
        ) from error
    try:
        _check_open_file(handle, location, where)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _open_below(folder: str, parts: list[str]) -> int:
    """Open folder after folder, each relative to the one that is open, so that no name is resolved twice."""
    if os.open not in os.supports_dir_fd:
        path = folder
        for part in parts:
            path = os.path.join(path, part)
            if os.path.islink(path):
                raise OSError(errno.ELOOP, "symbolic link", path)
        return os.open(path, READ)
    handle = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY)
    for index, part in enumerate(parts):
        flags = READ if index == len(parts) - 1 else os.O_RDONLY | os.O_DIRECTORY | NO_FOLLOW
        try:
            below = os.open(part, flags, dir_fd=handle)
        finally:
            os.close(handle)
        handle = below
    return handle


def _check_open_file(handle: int, location: str, where: str) -> None:
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(
            f"external data {location!r} is not a regular file", where=where, hint="data must lie in a plain file"
        )
    if status.st_nlink > 1:
        raise ModelError(f"external data {location!r} has {status.st_nlink} hard links", where=where, hint=LINK_HINT)


def check_bounds(extent: Extent, nbytes: int, size: int, where: str) -> None:
    """Whether ``nbytes`` of a tensor fit into a data file of ``size`` bytes at ``extent``.

    Raises:
        ModelError: the length is another, or the file ends before.
    """
    if extent.length is not None and extent.length != nbytes:
        raise ModelError(
            f"external data has a length of {extent.length} bytes where type and shape need {nbytes}",
            where=where,
            hint="model and data file do not belong together: fetch both again",
        )
    if extent.offset + nbytes > size:
        raise ModelError(
            f"external data {extent.location!r} is too short: it has {size} bytes, "
            f"{nbytes} at offset {extent.offset} are needed",
            where=where,
            hint="the copy or download broke off: fetch it again",
        )

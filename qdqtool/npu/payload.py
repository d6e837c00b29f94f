"""What an EPContext node carries: a header that says what a program was compiled for, the program, and a checksum.

    "QDQNPU1\\n" | uint32 format | uint32 n | n bytes of JSON | uint64 m | m bytes of ModelProto | uint32 CRC-32 of all before

little end first; the JSON is {"qdqtool", "target", "target_sha256", "target_version"}, all texts."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import asdict
from typing import TYPE_CHECKING

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError
from qdq_passes.numerics.documents import json_of

if TYPE_CHECKING:
    from qdqtool.targets.target import Target

MAGIC = b"QDQNPU1\n"
#: Version of the layout and of the operators of programs.
FORMAT = 1
_HINT = "compile the model again"


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a program was compiled for, and by what.

    Args:
        target: name of the target.
        target_version: version that its file states.
        target_sha256: of what its file says.
        qdqtool: version of the tool.
    """

    target: str
    target_version: str
    target_sha256: str
    qdqtool: str


def write_payload(header: Header, program: bytes) -> bytes:
    """The payload of ``program``, the bytes of a ModelProto."""
    text = json.dumps(asdict(header), sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
    parts = [MAGIC, struct.pack("<II", FORMAT, len(text)), text, struct.pack("<Q", len(program)), program]
    data = b"".join(parts)
    return data + struct.pack("<I", zlib.crc32(data))


def read_payload(data: bytes, *, where: str | None = None) -> tuple[Header, bytes]:
    """(header, program) of a payload.

    Args:
        data: the payload.
        where: name of the node that carries it, for messages.

    Raises:
        ModelError: it is no payload, of another format, cut, or damaged.
    """
    if not data.startswith(MAGIC):
        raise _error(f"expected a program of the simulated NPU ({MAGIC[:7].decode()}), found {data[:8]!r}", where)
    format_, length = _numbers("<II", data, len(MAGIC), where)
    if format_ != FORMAT:
        raise _error(f"expected program format {FORMAT}, found {format_}", where)
    start = len(MAGIC) + 8 + length
    (size,) = _numbers("<Q", data, start, where)
    expected = start + 8 + size + 4
    if expected != len(data):
        raise _error(f"expected a compiled program of {expected} bytes, found {len(data)}", where)
    (checksum,) = struct.unpack_from("<I", data, expected - 4)
    found = zlib.crc32(memoryview(data)[: expected - 4])
    if found != checksum:
        raise _error(f"expected the checksum {checksum:08x}, found {found:08x}: the program is damaged", where)
    try:
        fields = json_of(data[len(MAGIC) + 8 : start])
        header = Header(**{name: str(fields[name]) for name in Header.__dataclass_fields__})
    except (ValueError, KeyError, TypeError) as error:
        raise _error("expected a header with target and versions, found none", where) from error
    return header, data[start + 8 : expected - 4]


def staleness(header: Header, target: Target) -> str | None:
    """In which way a program with ``header`` was not compiled for ``target`` as it is now; None where it was."""
    if header.target != target.name:
        return f"expected target {target.name}, found {header.target}"
    if header.target_sha256 == target.sha256:
        return None
    versions = (f"{v} (sha256 {s[:12]})" for v, s in _versions(header, target))
    return "expected {} version {}, found version {}".format(target.name, *versions)


def refuse_stale(header: Header, target: Target, *, where: str | None = None) -> None:
    """Refuse a program with ``header`` that was not compiled for ``target`` as it is now.

    Raises:
        ModelError: it was not; the message says what was expected and what was found.
    """
    stale = staleness(header, target)
    if stale is not None:
        raise _error(f"the compiled program is stale: {stale}", where)


def _versions(header: Header, target: Target) -> list[tuple[str, str]]:
    return [(target.version, target.sha256), (header.target_version, header.target_sha256)]


def _numbers(form: str, data: bytes, at: int, where: str | None) -> tuple[int, ...]:
    needed = at + struct.calcsize(form)
    if len(data) < needed:
        raise _error(f"expected a compiled program of at least {needed} bytes, found {len(data)}", where)
    return struct.unpack_from(form, data, at)


def _error(message: str, where: str | None) -> ModelError:
    return ModelError(message, where=where, hint=_HINT)

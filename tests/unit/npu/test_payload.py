"""What EPContext nodes carry: written, read, and refused with what was expected and found."""

from __future__ import annotations

import dataclasses
import struct
import zlib

import pytest
from qdq_passes.errors import ModelError

from qdqtool.npu.payload import FORMAT, MAGIC, Header, read_payload, staleness, write_payload
from qdqtool.targets.loading import load_target
from tests.golden_messages.refusal import refusal

HEADER = Header(target="nüchtern", target_version="3", target_sha256="ab" * 32, qdqtool="1.2.3")
PROGRAM = bytes(range(256))
PAYLOAD = write_payload(HEADER, PROGRAM)


def test_layout() -> None:
    """Field by field, as docs/npu_program.md has it."""
    assert PAYLOAD[:8] == b"QDQNPU1\n"
    form, length = struct.unpack_from("<II", PAYLOAD, 8)
    assert form == 1
    text = '{"qdqtool":"1.2.3","target":"nüchtern","target_sha256":"' + "ab" * 32 + '","target_version":"3"}'
    assert PAYLOAD[16 : 16 + length] == text.encode()
    assert struct.unpack_from("<Q", PAYLOAD, 16 + length) == (256,)
    assert PAYLOAD[24 + length : -4] == PROGRAM
    assert struct.unpack("<I", PAYLOAD[-4:]) == (zlib.crc32(PAYLOAD[:-4]),)


def test_round_trip() -> None:
    assert read_payload(PAYLOAD) == (HEADER, PROGRAM)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 11, 15, 16, 60, len(PAYLOAD) - 260, len(PAYLOAD) - 4, len(PAYLOAD) - 1])
def test_cut(length: int) -> None:
    with refusal(ModelError) as caught:
        read_payload(PAYLOAD[:length], where="npu_0")
    assert caught.value.where == "npu_0"
    assert caught.value.hint == "compile the model again"


def test_every_flipped_bit_is_found() -> None:
    for place in range(len(PAYLOAD)):
        damaged = bytearray(PAYLOAD)
        damaged[place] ^= 1 << place % 8
        with pytest.raises(ModelError):
            read_payload(bytes(damaged))


def test_more_than_all() -> None:
    with refusal(ModelError):
        read_payload(PAYLOAD + b"\0")


def test_another_format() -> None:
    other = bytearray(PAYLOAD)
    struct.pack_into("<I", other, len(MAGIC), FORMAT + 1)
    with refusal(ModelError):
        read_payload(bytes(other))


def test_a_header_that_says_nothing() -> None:
    data = MAGIC + struct.pack("<II", FORMAT, 2) + b"{}" + struct.pack("<Q", 0)
    with refusal(ModelError):
        read_payload(data + struct.pack("<I", zlib.crc32(data)))


def test_staleness() -> None:
    target = load_target("generic_int8")
    fresh = Header(target="generic_int8", target_version=target.version, target_sha256=target.sha256, qdqtool="")
    assert staleness(fresh, target) is None
    assert staleness(HEADER, target) == "expected target generic_int8, found nüchtern"
    older = dataclasses.replace(fresh, target_version="0", target_sha256="cd" * 32)
    found = f"found version 0 (sha256 {'cd' * 6})"
    assert staleness(older, target) == (
        f"expected generic_int8 version {target.version} (sha256 {target.sha256[:12]}), {found}"
    )

"""Compiled files that are cut, flipped or made up end in a refusal, never in a crash: each case runs in a process of its own."""

from __future__ import annotations

import struct
import zlib

import pytest

from tests.dial import sized
from tests.npu.small_programs import HEADER, MIXED, context_model, payload, python, refusal, succeeds

START = """
import random, struct, sys, zlib
from tests.npu.small_programs import MIXED, context_model, equal, feed, mixed, payload, session
whole = payload()
header = struct.unpack_from("<I", whole, 12)[0]
program = 8 + 8 + header + 8
ran = refused = wrong = 0
def attempt(data):
    global ran, refused
    try:
        made = session(context_model(MIXED, data))
        made.run(None, {"x": feed()})
    except Exception as error:
        assert "FAIL" in str(error), error
        refused += 1
    else:
        ran += 1
"""
END = "\nprint(ran, refused)"


def counts(code: str) -> tuple[int, int]:
    """(runs, refusals) of the attempts in ``code``."""
    ran, refused = map(int, succeeds(python(START + code + END)).split())
    return ran, refused


def test_cut_anywhere() -> None:
    """At every byte, or in the part at some, always around the ends of the header and of the program."""
    code = f"""
sizes = {{*range(0, len(whole), {sized(1, 13)}), *range(8), *range(program - 9, program + 9), len(whole) - 1}}
for size in sizes: attempt(whole[:size])
print(len(sizes))
attempt(whole)
"""
    sizes, ran, refused = map(int, succeeds(python(START + code + END)).split())
    assert (ran, refused) == (1, sizes)


def test_longer_than_it_says() -> None:
    assert "the compiled program is cut: it says" in refusal(context_model(MIXED, payload() + b"\0"))


def test_a_flipped_bit_is_found() -> None:
    count = sized(400, 50)
    code = f"""
rng = random.Random(1)
for _ in range({count}):
    data = bytearray(whole)
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    attempt(bytes(data))
"""
    assert counts(code) == (0, count)


@pytest.mark.parametrize("seed", [1, 2])
def test_flipped_programs_with_a_good_checksum(seed: int) -> None:
    """Some still run, as something else; none reads or writes where it must not."""
    count = sized(1200, 100)
    code = f"""
rng = random.Random({seed})
for _ in range({count}):
    data = bytearray(whole[:-4])
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(program, len(data))
        data[at] = rng.choice([data[at] ^ 1 << rng.randrange(8), rng.randrange(256), 0, 255])
    attempt(bytes(data) + struct.pack("<I", zlib.crc32(data)))
"""
    ran, refused = counts(code)
    assert ran + refused == count
    assert refused > count / 2


def test_spliced_programs_with_a_good_checksum() -> None:
    """Pieces left out, doubled or swapped; lengths follow."""
    count = sized(800, 80)
    code = f"""
rng = random.Random(3)
body = whole[program:-4]
for _ in range({count}):
    i, j = sorted(rng.randrange(len(body) + 1) for _ in range(2))
    piece = rng.choice([b"", body[i:j] * 2, body[i:j][::-1], bytes(rng.randrange(256) for _ in range(8))])
    made = body[:i] + piece + body[j:]
    data = whole[:program - 8] + struct.pack("<Q", len(made)) + made
    attempt(data + struct.pack("<I", zlib.crc32(data)))
"""
    ran, refused = counts(code)
    assert ran + refused == count


def test_sizes_beyond_all_memory() -> None:
    big = "int64[3] big = {1073741824, 1073741824, 1073741824}, "
    text = (
        MIXED.replace("N", "2")
        .replace("<int64[2] shape", f"<{big}int64[2] shape")
        .replace("t = Transpose", "e = Expand (two, big)\n  t = Transpose")
    )
    assert "node 'e' (Expand): " in refusal(context_model(MIXED, payload(text)))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it does not begin with QDQNPU1"),
        (b"not a program", "it does not begin with QDQNPU1"),
        (b"QDQNPU1\n", "the compiled program is cut at its header"),
        (b"QDQNPU1\n" + struct.pack("<II", 2, 0), "expected program format 1, found 2"),
        (b"QDQNPU1\n" + struct.pack("<II", 1, 1 << 31), "the compiled program is cut in its header"),
        (
            b"QDQNPU1\n" + struct.pack("<IIQ", 1, 0, 1 << 63) + b"1234",
            "it says 9223372036854775808 bytes, and 4 follow",
        ),
        (payload()[:-1] + b"?", "its checksum is wrong"),
    ],
)
def test_it_says_why(data: bytes, reason: str) -> None:
    assert reason in refusal(context_model(MIXED, data))


def test_a_header_that_is_no_json() -> None:
    data = b"QDQNPU1\n" + struct.pack("<II", 1, 3) + b'{"a' + struct.pack("<Q", 0)
    whole = data + struct.pack("<I", zlib.crc32(data))
    assert "the header of the compiled program is not the JSON object" in refusal(context_model(MIXED, whole))


def test_python_and_c_read_the_same_header() -> None:
    name = 'quote " backslash \\ umlaut ü'
    data = payload(target=name)
    assert 'found quote " backslash \\ umlaut ü (sha256' in refusal(context_model(MIXED, data), target=HEADER.target)

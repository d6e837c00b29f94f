"""Integer counts as a short text for JSON, the same text on every machine: variable-length bytes in base64.

Counts are written one after the other in groups of 7 bits, lowest first, the top bit set on all bytes but the last of a number
(LEB128). A run of n zeros is written as the two numbers 0, n: a histogram with one far outlier is mostly zeros."""

from __future__ import annotations

import base64
import binascii
import itertools

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]

#: Bytes of the longest number: 9 groups of 7 bits hold 2^63 − 1.
_LONGEST = 9
#: More counts than this are no histogram of ours.
_MOST = 1 << 26


def text_of(counts: Counts) -> str:
    """``counts`` (flat, none negative) as text; inverse of `counts_of`."""
    return base64.b64encode(_bytes_of(_shortened(counts))).decode("ascii")


def counts_of(text: str) -> Counts:
    """The counts that `text_of` wrote.

    Raises:
        ValueError: the text was not written by it.
    """
    try:
        data = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
    except binascii.Error as error:
        raise ValueError(f"counts are no base64: {error}") from error
    return _lengthened(_numbers_of(data))


def _shortened(counts: Counts) -> Counts:
    """``counts`` with every run of zeros as 0, length."""
    is_zero = counts == 0
    starts = np.flatnonzero(is_zero & ~np.concatenate([[False], is_zero[:-1]]))
    stops = np.flatnonzero(is_zero & ~np.concatenate([is_zero[1:], [False]])) + 1
    kept = ~is_zero
    kept[starts] = True
    places = np.cumsum(kept)[starts]  # where, among what is kept, the length follows its 0
    return np.insert(counts[kept], places, stops - starts).astype(np.int64)


def _lengthened(numbers: Counts) -> Counts:
    """Inverse of `_shortened`."""
    marks = np.flatnonzero(numbers == 0)
    if marks.size and marks[-1] + 1 == numbers.size:
        raise ValueError("counts end in the middle of a run")
    repeats = np.ones(numbers.size, np.int64)
    repeats[marks], repeats[marks + 1] = numbers[marks + 1], 0
    if float(repeats.sum(dtype=np.float64)) > _MOST:
        raise ValueError("a run of zeros is too long")
    return np.repeat(numbers, repeats)


def _bytes_of(numbers: Counts) -> bytes:
    values = numbers.astype(np.uint64)
    lengths = np.ones(values.size, np.int64)
    for group in range(1, _LONGEST):
        lengths += values >> np.uint64(7 * group) > 0
    ends = np.cumsum(lengths)
    data = np.zeros(int(ends[-1]) if ends.size else 0, np.uint8)
    for group in range(_LONGEST):
        there = lengths > group
        byte = (values[there] >> np.uint64(7 * group)) & np.uint64(127)
        byte[lengths[there] > group + 1] |= np.uint64(128)
        data[(ends - lengths)[there] + group] = byte
    return data.tobytes()


def _numbers_of(data: npt.NDArray[np.uint8]) -> Counts:
    ends = np.flatnonzero(data < 128)
    if data.size and (not ends.size or ends[-1] + 1 != data.size):
        raise ValueError("counts end in the middle of a number")
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)
    lengths = ends - starts + 1 if ends.size else np.zeros(0, np.int64)
    if ends.size and int(lengths.max()) > _LONGEST:
        raise ValueError("a count is too long")
    numbers = np.zeros(ends.size, np.int64)
    for group in itertools.takewhile(lambda g: bool((lengths > g).any()), range(_LONGEST)):
        there = lengths > group
        numbers[there] |= (data[starts[there] + group].astype(np.int64) & 127) << (7 * group)
    return numbers

"""Fingerprint of a sequence of feeds that joins: the hash of a concatenation follows from the hashes of its parts.

    h(feed)  = SHA-256 of names, types, shapes and bytes, as an integer
    H(a‖[f]) = H(a)·G + h(f)  mod 2^255 − 19        H([]) = 0
    H(a‖b)   = H(a)·G^|b| + H(b)

so that calibrating in parts and merging gives the same file as calibrating at once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

_PRIME = 2**255 - 19
_BASE = 0x9E3779B97F4A7C15F39CC0605CEDC8341082276BF3A27251F86C6A11D0C18E95 % _PRIME
EMPTY = f"{0:064x}"


def add_feed(chain: str, feed: Mapping[str, npt.NDArray[Any]]) -> str:
    """The fingerprint of the feeds of ``chain`` followed by ``feed``, 64 hex digits."""
    digest = hashlib.sha256()
    for name in sorted(feed):
        array = feed[name]
        digest.update(f"{name}\0{array.dtype.name}\0{list(array.shape)}\0".encode())
        if array.dtype.kind in "OSU":
            digest.update("\0".join(map(str, array.ravel())).encode())
        else:
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return f"{(int(chain, 16) * _BASE + int.from_bytes(digest.digest())) % _PRIME:064x}"


def join(first: str, second: str, second_count: int) -> str:
    """The fingerprint of two sequences one after the other; ``second_count`` is the number of feeds in the second."""
    return f"{(int(first, 16) * pow(_BASE, second_count, _PRIME) + int(second, 16)) % _PRIME:064x}"

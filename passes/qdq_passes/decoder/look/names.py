"""What the names of a decoder's caches tell: key or value, and the number of the layer."""

from __future__ import annotations

import re
from typing import Literal

Part = Literal["key", "value", "both"]

PART_WORDS: dict[str, Part] = {
    "ck": "key", "k": "key", "key": "key", "keys": "key", "cv": "value", "v": "value", "value": "value", "values": "value",
}  # fmt: skip


def number_of(name: str) -> int | None:
    """The first number in a name."""
    return next((int(token) for token in _tokens(name) if token.isdigit()), None)


def _tokens(name: str) -> list[str]:
    """Words and numbers of a name in camel case or with any separators; ``key_values`` as such is no word."""
    spread = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()
    return re.findall(r"[a-z]+|\d+", re.sub(r"key_?values?", "", spread))


def part_by_name(name: str) -> Part | None:
    """Key or value, where words of ``name`` tell one of them."""
    parts = {PART_WORDS[word] for word in _tokens(name) if word in PART_WORDS}
    return parts.pop() if len(parts) == 1 else None

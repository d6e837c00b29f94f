"""Widths that a device wants of the KV cache: bytes of the last axis, and sizes that are powers of two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CacheWidths:
    """What a device wants of a tensor of the cache.

    Args:
        last_axis_bytes: the last axis is a multiple of so many bytes; 0 for any. Rows that are not are padded in memory.
        powers_of_two: every size but the first is a power of two.
        itemsize: bytes of a number as the device keeps it; 0 for those of the file.
    """

    last_axis_bytes: int = 0
    powers_of_two: bool = False
    itemsize: int = 0

    def complaints(self, sizes: Sequence[int], itemsize: int) -> list[str]:
        """What is wrong with a tensor of ``sizes`` and ``itemsize`` bytes a number, in words; empty when nothing is."""
        found = []
        width = sizes[-1] * (self.itemsize or itemsize)
        if self.last_axis_bytes and width % self.last_axis_bytes:
            padded = -(-width // self.last_axis_bytes) * self.last_axis_bytes
            found.append(
                f"its last axis of {sizes[-1]} is {width} bytes, padded to {padded}: {padded / width:.3g} times the memory"
            )
        odd = [size for size in sizes[1:] if size < 1 or size & (size - 1)]
        if self.powers_of_two and odd:
            found.append(f"sizes {', '.join(map(str, odd))} of {list(sizes)} are no powers of two")
        return found

"""Numbers and grids in the words of findings."""

from __future__ import annotations

from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.pow2 import position_of


def grid(encoding: Encoding) -> str:
    """``int8 scale 2^-5``; of several scales the range."""
    low, high = min(encoding.scale), max(encoding.scale)
    scales = f"scale {step(low)}" if low == high else f"{len(encoding.scale)} scales {step(low)} to {step(high)}"
    return f"{encoding.dtype.name.lower()} {scales}"


def step(scale: float) -> str:
    """``2^-5`` where it is a power of two, else four digits."""
    position = position_of(scale)
    return f"{scale:.4g}" if position is None else f"2^{-position}"


def some(items: list[str], most: int = 6) -> str:
    """The first few of ``items``, and how many there are besides."""
    return ", ".join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")

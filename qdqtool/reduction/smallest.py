"""The search for the smallest part that still fails: the end and the beginning are cut off by bisection, the rest is thinned out
by delta debugging.

    bisection   find the shortest prefix that fails, of it what its end needs, and the shortest suffix of that: 2·log2 n checks
    ddmin       split into k chunks; go on with a chunk that fails, else with what is left without one of them, else with twice
                as many chunks, until they hold one unit each (Zeller, Hildebrandt 2002, "Simplifying and isolating
                failure-inducing input", IEEE TSE 28(2), section 3.2)

What comes out fails, and passes when any single unit is left out of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")

#: Whether a part of the units, in their order, fails.
Fails = Callable[[Sequence[T]], bool]


def smallest(units: Sequence[T], fails: Fails[T], above: Callable[[Sequence[T]], list[T]]) -> list[T]:
    """A part of ``units`` that fails and from which none can be left out.

    Args:
        units: all of them, which fail together, in their order.
        fails: whether a part does; asked about many parts, some of them twice.
        above: of a part, its last unit and those that this needs: what a prefix is cut down to where that fails, too.
    """
    kept = list(units)
    kept = kept[: least(len(kept), lambda count: fails(kept[:count]))]
    needed = above(kept)
    kept = needed if fails(needed) else kept
    kept = kept[len(kept) - least(len(kept), lambda count: fails(kept[len(kept) - count :])) :]
    chunks = 2
    while len(kept) >= 2:
        parts = _split(kept, chunks)
        smaller = next((part for part in parts if fails(part)), None)
        if smaller is not None:
            kept, chunks = smaller, 2
            continue
        rests = ([u for other in parts if other is not part for u in other] for part in parts)
        rest = next((rest for rest in rests if fails(rest)), None) if chunks > 2 else None
        if rest is not None:
            kept, chunks = rest, max(chunks - 1, 2)
        elif chunks >= len(kept):
            break
        else:
            chunks = min(2 * chunks, len(kept))
    return kept


def least(count: int, fails: Callable[[int], bool]) -> int:
    """The least number of 1 to ``count`` that fails, where all greater ones do; ``count`` does."""
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(middle) else (middle, high)
    return high


def _split(units: list[T], count: int) -> list[list[T]]:
    """``units`` in ``count`` chunks of about one size."""
    edges = [len(units) * k // count for k in range(count + 1)]
    return [units[a:b] for a, b in pairwise(edges)]

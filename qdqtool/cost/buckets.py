"""Which lengths of chunks to compile: the least expected time of the prompts that come, padding among it.

A prompt of N tokens runs in chunks c with Σ c ≥ N. A static graph takes as long wherever in the context it stands, so the
cheapest chunks are found by T(n) = min over c of (t(c) + T(max(0, n - c))), T(0) = 0; t rises with c, and T with n."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

#: Lengths of chunks that are tried, tokens, and lengths of one list at most: each is a graph with buffers of its own.
CHUNKS, MOST = (32, 64, 128, 256, 512), 3
#: NPU → milliseconds of preparing a graph online, (tokens, ms): QNN on 8 Gen 3, arXiv 2501.14794.
PREPARING: Mapping[str, tuple[tuple[int, float], tuple[int, float]]] = {"Hexagon v75": ((135, 408.0), (1000, 2050.0))}


def bucket_lists(chunks: Sequence[int], most: int = MOST) -> list[tuple[int, ...]]:
    """Every list of at most ``most`` of these lengths, the shorter lists first, each ascending."""
    lengths = sorted(set(chunks))
    return [one for count in range(1, most + 1) for one in itertools.combinations(lengths, count)]


def covering(tokens: int, ms: Mapping[int, float]) -> tuple[int, ...]:
    """The chunks that take a prompt in the least time, the longest first; of equal times the fewest.

    Args:
        tokens: of the prompt, at least 1.
        ms: length of a chunk → its time.
    """
    best: list[tuple[float, int, int]] = [(0.0, 0, 0)]  # per number of tokens: time, runs, the last run
    for n in range(1, tokens + 1):
        best.append(min((best[max(0, n - c)][0] + t, best[max(0, n - c)][1] + 1, c) for c, t in sorted(ms.items())))
    found = []
    while tokens > 0:
        found.append(best[tokens][2])
        tokens -= found[-1]
    return tuple(sorted(found, reverse=True))


def padding_of(prompts: Sequence[int], runs: Iterable[Sequence[int]]) -> float:
    """Tokens computed ÷ real tokens, 1 and more."""
    return sum(map(sum, runs)) / sum(prompts)


def preparing_ms(npu: str, lengths: Iterable[int]) -> float | None:
    """Milliseconds of preparing graphs of these lengths online, on the line through two measured ones; None where none were."""
    if npu not in PREPARING:
        return None
    (near, fast), (far, slow) = PREPARING[npu]
    slope = (slow - fast) / (far - near)
    return sum(max(fast + slope * (length - near), 0.0) for length in lengths)

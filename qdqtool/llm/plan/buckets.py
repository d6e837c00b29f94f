"""Which graphs run for how many tokens, and on which.

A run of S tokens costs about ``RUN + S``: weights are read once a run, and each token is computed, a padded one like a real
one."""

from __future__ import annotations

from functools import lru_cache

#: What a run costs beside its tokens, in tokens. Qwen2-0.5B on a CPU: 128 tokens 3.4 s, one token 0.4 s, hence 0.38 s + 0.024 s
#: a token.
RUN = 16


@lru_cache(maxsize=256)
def chunks(length: int, seq_lens: tuple[int, ...]) -> tuple[int, ...]:
    """The runs that take ``length`` tokens at the least cost, the longest first; the sum is at least ``length``.

    Args:
        length: how many tokens, at least 1.
        seq_lens: lengths of the graphs there are.
    """
    best: list[tuple[int, int]] = [(0, 0)]  # per number of tokens: cost, minus the last run
    for tokens in range(1, length + 1):
        best.append(min((best[max(0, tokens - s)][0] + RUN + s, -s) for s in seq_lens))
    found = []
    while length > 0:
        found.append(-best[length][1])
        length -= found[-1]
    return tuple(sorted(found, reverse=True))


def from_left(begin: int, end: int, size: int, ctx_len: int) -> tuple[int, int]:
    """(first, behind the last) token of a run of ``size`` in place, which is padded on the right.

    A run that would end behind the context begins earlier, and runs tokens again that are known: it writes the same rows. A
    row that has come to its end, ``begin`` ≥ ``end``, waits.
    """
    first = min(begin, end)
    return min(first, ctx_len - size), min(first + size, end)


def from_right(known: int, end: int, size: int) -> tuple[int, int]:
    """(first, behind the last) token of a run of ``size`` that slides, which is padded on the left, and only from token 0.

    A run that is longer than what is new begins before it, and runs tokens again that are ``known``. A row whose turn is
    later, ``end`` ≤ ``known``, waits: (0, 0).
    """
    return (max(0, end - size), end) if end > known else (0, 0)

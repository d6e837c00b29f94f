"""Which graphs run for how many tokens, and on which; and how many tokens padding costs.

A run of S tokens costs about ``RUN + S``: weights are read once a run, and each token is computed, a padded one like a real
one.

What padding costs, in tokens computed ÷ real tokens of prompts, is told by strategy.
A prompt of n tokens runs in chunks, and what the last one lacks is filled up. The session chooses chunks of least cost among the
graphs of the smallest context that holds the prompt; the other strategies run each prompt at once, at one length."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.llm.plan.specializations import Specialization

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


@dataclass(frozen=True, kw_only=True)
class Padding:
    """What one strategy costs.

    Args:
        strategy: in words.
        padded: tokens computed.
        real: tokens of the prompts.
    """

    strategy: str
    padded: int
    real: int

    @property
    def waste(self) -> float:
        """Tokens computed ÷ real tokens, 1 and more."""
        return self.padded / self.real

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"strategy": self.strategy, "padded_tokens": self.padded, "real_tokens": self.real, "waste": self.waste}


def padding_of(prompts: Sequence[int], shapes: Sequence[Specialization]) -> tuple[Padding, ...]:
    """The waste of padding to the largest context, of the graphs of ``shapes``, and of the next power of two.

    Args:
        prompts: lengths of prompts, tokens; at least one.
        shapes: the graphs; those of the smallest batch size are looked at.

    Raises:
        UsageError: a prompt is longer than the largest context.
    """
    rows = min(one.batch_size for one in shapes)
    lengths: dict[int, set[int]] = {}
    for one in shapes:
        if one.batch_size == rows:
            lengths.setdefault(one.ctx_len, set()).add(one.seq_len)
    largest, real = max(lengths), sum(prompts)
    if max(prompts) > largest:
        raise UsageError(
            f"a prompt of {max(prompts)} tokens does not fit {largest} slots", hint="give a larger --context"
        )
    buckets = 0
    for count in prompts:
        fitting = min(context for context in lengths if context >= count)
        buckets += sum(chunks(count, tuple(sorted(lengths[fitting]))))
    powers = sum(1 << (count - 1).bit_length() for count in prompts)
    names = ", ".join(map(str, sorted(set().union(*lengths.values()))))
    return (
        Padding(strategy=f"the context, {largest}", padded=largest * len(prompts), real=real),
        Padding(strategy=f"chunks of {names}", padded=buckets, real=real),
        Padding(strategy="the next power of two", padded=powers, real=real),
    )

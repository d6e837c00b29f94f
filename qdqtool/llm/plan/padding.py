"""How many tokens padding costs: tokens computed ÷ real tokens of prompts, by strategy.

A prompt of n tokens runs in chunks, and what the last one lacks is filled up. The session chooses chunks of least cost among the
graphs of the smallest context that holds the prompt; the other strategies run each prompt at once, at one length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qdq_passes.errors import UsageError

from qdqtool.llm.plan.buckets import chunks
from qdqtool.llm.plan.specializations import Specialization


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

"""Generate text token by token: the next token of logits, the greatest or one drawn, until it ends; and how long it took."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.numerics.arrays import Array

if TYPE_CHECKING:
    from qdqtool.llm.run.session import Ids, Session

#: Told (row, token) as tokens come.
OnToken = Callable[[int, int], None]
Stop = Literal["eos", "length"]


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What was generated, and what it took.

    Args:
        tokens: new tokens of each row; one that ends the text is the last.
        stopped: why each row ended: a token that ends the text, or as many tokens as were wanted.
        prompt_tokens: tokens of the prompts, with those that the turn before had left to run.
        prefill_s: seconds until the first logits.
        decode_s: seconds from there to the end; sampling and ``on_token`` count.
        runs: name of a graph → how often it ran.
        padded_tokens: tokens computed beyond those of the text: padding, and tokens run again.
        context: slots of the cache at the end.
        cached: false when every token ran the whole text again.
    """

    tokens: tuple[tuple[int, ...], ...]
    stopped: tuple[Stop, ...]
    prompt_tokens: int
    prefill_s: float
    decode_s: float
    runs: dict[str, int] = field(default_factory=dict)
    padded_tokens: int = 0
    context: int = 0
    cached: bool = True

    @property
    def new_tokens(self) -> int:
        """How many tokens are new, in all rows."""
        return sum(map(len, self.tokens))

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """Prompt tokens a second."""
        return self.prompt_tokens / self.prefill_s if self.prefill_s else None

    @property
    def decode_tokens_per_s(self) -> float | None:
        """New tokens a second, without the first of each row, which prefill gives; None when there is no other."""
        others = self.new_tokens - len(self.tokens)
        return others / self.decode_s if others > 0 and self.decode_s else None

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        single = len(self.tokens) == 1
        return {
            "tokens": list(self.tokens[0]) if single else [list(row) for row in self.tokens],
            "stopped": self.stopped[0] if single else list(self.stopped),
            "prompt_tokens": self.prompt_tokens,
            "new_tokens": self.new_tokens,
            "prefill_s": self.prefill_s,
            "decode_s": self.decode_s,
            "prefill_tokens_per_s": self.prefill_tokens_per_s,
            "decode_tokens_per_s": self.decode_tokens_per_s,
            "runs": self.runs,
            "padded_tokens": self.padded_tokens,
            "context": self.context,
            "cached": self.cached,
        }


def generate(
    session: Session,
    prompt_ids: Ids,
    max_new: int,
    *,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    eos: Iterable[int] | None = None,
    cached: bool = True,
    on_token: OnToken | None = None,
) -> Generation:
    """Run a prompt and then token by token, behind what the session's cache holds.

    The last new token is not run; the next call of the session begins with it.

    Args:
        session: the model.
        prompt_ids: tokens; a list of lists for several rows.
        max_new: how many new tokens at most, at least 1.
        temperature: 0 takes the most likely token.
        top_k: draw among the k most likely; 0 for all.
        top_p: draw among the most likely that together reach this probability.
        seed: equal seeds draw equal tokens.
        eos: tokens that end a text; None takes those of the manifest.
        cached: false runs the whole text again for each token, which shows what the cache buys.
        on_token: called with (row, token) as they come.

    Raises:
        UsageError: the prompt is empty, or prompt and new tokens do not fit into the largest context: before anything runs.
    """
    sampler = Sampler(Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed))
    ends = frozenset(session.manifest.eos_token_ids if eos is None else eos)
    rows = session.prompt_rows(prompt_ids)
    refuse(session, rows, max_new)
    before = Counter(session.runs)
    start = time.perf_counter()
    logits = session.extend(rows)
    prefilled = time.perf_counter()
    new: list[list[int]] = [[] for _ in rows]
    live = list(range(len(rows)))
    step: list[list[int]] = [[] for _ in rows]
    try:
        while True:
            step = [[] for _ in rows]
            for row in live:
                token = sampler.pick(logits[row])
                new[row].append(token)
                step[row].append(token)
                if on_token is not None:
                    on_token(row, token)
            live = [row for row in live if new[row][-1] not in ends and len(new[row]) < max_new]
            if not live:
                break
            if cached:
                logits = session.advance([tokens if row in live else [] for row, tokens in enumerate(step)])
            else:
                whole = [[*known, *tokens] for known, tokens in zip(session.tokens, step, strict=True)]
                session.reset()
                logits = session.extend(whole)
    except BaseException:  # whoever listens broke it off: what was shown and has not run goes before the next turn
        session.leave([step[row] if row in live else tokens[-1:] for row, tokens in enumerate(new)])
        raise
    finished = time.perf_counter()
    session.leave([row[-1:] for row in new])
    runs = {name: count for name, count in (session.runs - before).items() if count}
    return Generation(
        tokens=tuple(map(tuple, new)),
        stopped=tuple("eos" if row[-1] in ends else "length" for row in new),
        prompt_tokens=sum(map(len, rows)),
        prefill_s=prefilled - start,
        decode_s=finished - prefilled,
        runs=runs,
        padded_tokens=session.computed(runs) - sum(map(len, rows)) - sum(len(row) - 1 for row in new),
        context=session.ctx_len,
        cached=cached,
    )


def refuse(session: Session, rows: Sequence[Sequence[int]], max_new: int) -> None:
    """Refuse prompts and a number of new tokens that cannot run to their end. The last new token takes no slot.

    Raises:
        UsageError: a prompt is empty, or they do not fit into the largest context.
    """
    if max_new < 1:
        raise UsageError(f"{max_new} new tokens are wanted", hint="give at least 1")
    if not all(rows):
        raise UsageError("a prompt is empty", hint="give at least one token")
    most = max(known + len(row) for known, row in zip(session.lengths, rows, strict=True))
    if most + max_new - 1 > session.context:
        left = session.context - most + 1
        what = (
            f"{most} tokens and {max_new} new ones do not fit: the largest context of the folder is {session.context}"
        )
        hint = f"at most {left} new tokens do" if left > 0 else "give a shorter prompt, or reset the session"
        raise UsageError(what, hint=f"{hint}; or split with a larger --context")


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are chosen.

    Args:
        temperature: logits are divided by it before softmax; 0 takes the greatest (of equals, the first).
        top_k: draw among the k most likely; 0 for all.
        top_p: draw among the most likely that together reach this probability; 1 for all.
        seed: equal seeds draw equal tokens.

    Raises:
        UsageError: a number is out of its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UsageError(f"the temperature is {self.temperature}", hint="give 0 (greedy) or more")
        if self.top_k < 0:
            raise UsageError(f"top-k is {self.top_k}", hint="give 0 (all) or more")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top-p is {self.top_p}", hint="give more than 0, at most 1")
        if self.seed < 0:
            raise UsageError(f"the seed is {self.seed}", hint="give 0 or more")


class Sampler:
    """Draws token after token.

    Args:
        how: the rule.
    """

    def __init__(self, how: Sampling) -> None:
        self._how = how
        self._random = np.random.default_rng(how.seed)

    def pick(self, logits: Array) -> int:
        """The next token.

        Args:
            logits: [vocabulary].

        Raises:
            ModelError: a logit is NaN.
        """
        best = int(logits.argmax())
        if logits[best] != logits[best]:
            raise ModelError("the logits are not numbers (NaN)", hint="compare the model with its source: `llm verify`")
        if self._how.temperature == 0:
            return best
        scores = logits.astype(np.float64)
        order = np.argsort(-scores, kind="stable")
        if self._how.top_k:
            order = order[: self._how.top_k]
        shares = np.exp((scores[order] - scores[best]) / self._how.temperature)
        shares /= shares.sum()
        if self._how.top_p < 1:
            kept = int(np.searchsorted(np.cumsum(shares), self._how.top_p)) + 1
            order, shares = order[:kept], shares[:kept] / shares[:kept].sum()
        return int(
            order[min(int(np.searchsorted(np.cumsum(shares), self._random.random(), side="right")), len(order) - 1)]
        )

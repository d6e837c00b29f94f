"""The next token, of logits: the greatest, or one drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.numerics.arrays import Array


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

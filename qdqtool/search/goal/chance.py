"""Whether a goal is met, or only by chance: the margin on samples drawn again and again from those that there are.

A draw takes as many samples as there are, some of them twice, the same for both models: so what differs is the quantization. The
low end is the margin that `CONFIDENCE` of the draws exceed (the percentile bootstrap of Efron, 1979)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from qdqtool.search.goal.goal import Goal
from qdqtool.search.metrics import Arrays, Metric

DRAWS, CONFIDENCE = 200, 0.95

#: ``met``: the low end reaches the bound too. ``close``: the figure does, its low end does not. ``missed``: neither.
Verdict = Literal["met", "close", "missed"]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How a figure stands to a goal.

    Args:
        figure: of the quantized model; None where it is exact.
        margin: above the bound.
        low: end of the interval of the margin.
    """

    figure: float | None
    margin: float
    low: float

    @property
    def verdict(self) -> Verdict:
        """Whether the goal is met."""
        return "missed" if self.margin < 0 else "met" if self.low >= 0 else "close"


def standing(
    goal: Goal, metric: Metric, outputs: Sequence[Arrays], feeds: Sequence[Arrays], references: Sequence[Arrays]
) -> Standing:
    """How a model that gives ``outputs`` stands to ``goal`` where the float model gives ``references``.

    Raises:
        UsageError: the metric fails.
    """

    def of(at: Sequence[int]) -> tuple[float | None, float]:
        own, given, floating = ([part[i] for i in at] for part in (outputs, feeds, references))
        figure = metric.measure(own, given, floating)
        whole = metric.measure(floating, given, floating) if goal.is_relative else None
        return figure, goal.margin(figure, whole)

    count = len(feeds)
    figure, margin = of(range(count))
    random = np.random.default_rng(0)
    draws = [of([int(i) for i in random.integers(0, count, count)])[1] for _ in range(DRAWS if count > 1 else 0)]
    finite = sorted(value for value in draws if math.isfinite(value))
    if len(finite) < len(draws):  # a draw of samples that are exact
        finite += [math.inf] * (len(draws) - len(finite))
    low = finite[math.floor((1 - CONFIDENCE) * len(finite))] if finite else margin
    return Standing(figure=figure, margin=margin, low=low)

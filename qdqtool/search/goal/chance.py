"""Whether a goal is met, or only by chance: the margin on samples drawn again and again from those that there are.

A draw takes as many samples as there are, some of them twice, the same for both models: so what differs is the quantization. The
low end is the margin that `CONFIDENCE` of the draws exceed (the percentile bootstrap of Efron, 1979)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from qdqtool.search.goal.goal import Goal
from qdqtool.search.goal.standing import Standing
from qdqtool.search.metrics import Arrays, Metric

DRAWS, CONFIDENCE = 200, 0.95

#: Samples that every variant is judged on; one that is below the bound there, whatever one draws, is judged on no more.
FEW = 64


def early_of(samples: int) -> int:
    """How many of ``samples`` come first: all, where that spares little."""
    return FEW if samples > 2 * FEW else samples


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
    drawn = [of([int(i) for i in random.integers(0, count, count)])[1] for _ in range(DRAWS if count > 1 else 0)]
    finite = sorted(value for value in drawn if math.isfinite(value))
    if len(finite) < len(drawn):  # a draw of samples that are exact
        finite += [math.inf] * (len(drawn) - len(finite))
    at = math.floor((1 - CONFIDENCE) * len(finite))
    low, high = (finite[at], finite[-1 - at]) if finite else (margin, margin)
    return Standing(figure=figure, margin=margin, low=low, high=high, samples=count)

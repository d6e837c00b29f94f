"""Whether a goal is met, or only by chance: the margin on samples drawn again and again from those that there are.

A draw takes as many samples as there are, some of them twice, the same for both models: so what differs is the quantization. The
low end is the margin that `CONFIDENCE` of the draws exceed (the percentile bootstrap of Efron, 1979)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from qdq_passes.errors import UsageError

from qdqtool.search.goal.goal import SHARES, Goal
from qdqtool.search.goal.standing import Fresh, Standing
from qdqtool.search.metrics import Arrays, Metric

DRAWS, CONFIDENCE = 200, 0.95
#: Groups of samples that are left out one after the other, at most.
GROUPS = 50

#: Samples that every variant is judged on; one that is below the bound there, whatever one draws, is judged on no more.
FEW = 64


def early_of(samples: int) -> int:
    """How many of ``samples`` come first: all, where that spares little."""
    return FEW if samples > 2 * FEW else samples


def stages_of(samples: int) -> Iterator[int]:
    """How many of ``samples`` are judged on first, next, …, at last: twice as many each time, all where that spares little."""
    count = early_of(samples)
    while count < samples:
        yield count
        count = 2 * count if samples > 4 * count else samples
    yield samples


def standing(
    goal: Goal,
    metric: Metric,
    outputs: Sequence[Arrays],
    feeds: Sequence[Arrays],
    references: Sequence[Arrays],
    *,
    early: int = 0,
    floating: Callable[[Sequence[int]], float | None] | None = None,
) -> Standing:
    """How a model that gives ``outputs`` stands to ``goal`` where the float model gives ``references``.

    Args:
        goal: the goal.
        metric: what judges.
        outputs: of the model, a sample each.
        feeds: the samples.
        references: outputs of the float model.
        early: that so many come first, which others are judged on alone; 0 where none are.
        floating: figures of the float model, where they are known (`Metric.figures`).

    Raises:
        UsageError: the metric fails.
    """

    figures = metric.figures(outputs, feeds, references)
    if goal.is_relative and floating is None:
        floating = metric.figures(references, feeds, references)

    def of(at: Sequence[int]) -> tuple[float | None, float]:
        figure = figures(at)
        return figure, goal.margin(figure, floating(at) if goal.is_relative and floating is not None else None)

    def drawn_margin(at: Sequence[int]) -> float:
        try:
            return of(at)[1]
        except UsageError:  # a metric that one class alone is too little for: a draw that does not meet the goal
            return -math.inf

    count = len(feeds)
    figure, margin = of(range(count))
    random = np.random.default_rng(0)
    draws = [[int(i) for i in random.integers(0, count, count)] for _ in range(DRAWS if count > 1 else 0)]
    drawn = [drawn_margin(at) for at in draws]
    ordered = sorted(drawn)
    at = math.floor((1 - CONFIDENCE) * len(ordered))
    alone = margin if math.isinf(margin) else -math.inf  # one sample says nothing of others, unless it is exact
    low, high = (ordered[at], ordered[-1 - at]) if ordered else (alone, margin)
    first = drawn_margin(range(early)) if 0 < early < count else None
    return Standing(figure=figure, margin=margin, low=low, high=high, samples=count, early=first)


def on_others(
    goal: Goal, metric: Metric, outputs: Sequence[Arrays], feeds: Sequence[Arrays], references: Sequence[Arrays]
) -> Fresh:
    """How a model that gives ``outputs`` stands to ``goal`` on ``feeds``, by which it was not chosen.

    Raises:
        UsageError: the metric fails.
    """
    figures, every = metric.figures(outputs, feeds, references), range(len(feeds))
    floating = metric.measure(references, feeds, references) if goal.is_relative else None
    figure = figures(every)
    ends = None if figure is None else _interval(figures, figure, len(feeds))
    if ends is not None and goal.metric in SHARES:
        ends = max(ends[0], 0.0), min(ends[1], 1.0)
    margin = goal.margin(figure, floating)
    return Fresh(figure=figure, floating=floating, margin=margin, samples=len(feeds), interval=ends)


def _interval(
    figures: Callable[[Sequence[int]], float | None], figure: float, count: int
) -> tuple[float, float] | None:
    """95 % interval of the figure on as many other samples of the same kind; None where samples without a group of them cannot
    be judged, or all give the same.

    ``figure`` ± t₀.₉₇₅(g − 1)·√2·s, where s² = (g − 1)/g · Σ(θᵢ − θ̄)² of the figures θᵢ without one of g groups of samples (the
    jackknife: Tukey, 1958; its s² is rather too large: Efron and Stein, The Annals of Statistics 9, 1981), and √2, as the
    figure of the other samples varies as much as this one (prediction intervals: Hahn and Meeker, Statistical Intervals, 1991).
    Student's t is by four terms of its series (Abramowitz and Stegun, 26.7.5)."""
    groups = min(count, GROUPS)
    try:
        found = [figures([at for at in range(count) if at % groups != group]) for group in range(groups)]
    except UsageError:
        return None
    without = [each for each in found if each is not None]
    if len(without) < len(found) or len(set(without)) < 2:
        return None
    mean, free = math.fsum(without) / groups, groups - 1
    spread = math.sqrt(free / groups * math.fsum((each - mean) ** 2 for each in without))
    half = (1.960 + 2.372 / free + 2.823 / free**2 + 2.556 / free**3) * math.sqrt(2) * spread
    return figure - half, figure + half

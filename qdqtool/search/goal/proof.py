"""What the hardest samples prove: where a figure is a share of right answers, enough wrong ones refute a variant for certain.

The float model's scores tell which samples are hard: those that it answers wrong, and those where another answer is close. They
are run first, and the rest is taken for right: if the goal is missed even so, nothing else need be run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.search.goal.chance import FEW
from qdqtool.search.goal.goal import Goal
from qdqtool.search.goal.standing import Standing
from qdqtool.search.metrics import Answer, Arrays, Metric

#: Twice as many samples as wrong answers that are too many: not every hard one is answered wrong.
SPARE = 2


@dataclass(frozen=True, kw_only=True)
class Hardest:
    """The hardest samples, and what is to be known of the others.

    Args:
        goal: the goal.
        answers: of the float model, to each sample.
        samples: their numbers, the hardest first.
    """

    goal: Goal
    answers: tuple[Answer, ...]
    samples: tuple[int, ...]

    @classmethod
    def of(cls, goal: Goal, metric: Metric, feeds: Sequence[Arrays], references: Sequence[Arrays]) -> Hardest | None:
        """As many as can refute a variant; None where that is no fewer than half of all, or the figure is no share of answers.

        Args:
            goal: the goal.
            metric: what judges.
            feeds: the samples.
            references: outputs of the float model for them.
        """
        if metric.digest is None or not metric.are_answers or len(feeds) <= 2 * FEW:
            return None
        answers = tuple(metric.digested(given, feed) for given, feed in zip(references, feeds, strict=True))
        total = sum(each.count for each in answers)
        wrong = total * (1 - goal.bound(sum(each.right for each in answers) / total)) + 1
        count = max(FEW, math.ceil(SPARE * wrong * len(feeds) / total))
        if 2 * count > len(feeds):
            return None
        order = sorted(range(len(feeds)), key=lambda at: (answers[at].ease, at))
        return cls(goal=goal, answers=answers, samples=tuple(order[:count]))

    def refuted(self, found: Iterable[Answer]) -> Standing | None:
        """How a variant that gives the answers ``found`` to the hardest samples stands to the goal: its figure and margin are
        those with the float model's answers to the others, the upper end is that with all others right. None where that is no
        miss."""
        kept, own = set(self.samples), sum(each.right for each in found)
        others = [each for at, each in enumerate(self.answers) if at not in kept]
        total = sum(each.count for each in self.answers)
        floating = sum(each.right for each in self.answers) / total
        most = self.goal.margin((own + sum(each.count for each in others)) / total, floating)
        if most >= 0:
            return None
        figure = (own + sum(each.right for each in others)) / total
        margin = self.goal.margin(figure, floating)
        return Standing(
            figure=figure, margin=margin, low=-math.inf, high=most, samples=len(self.samples), is_proven=True
        )

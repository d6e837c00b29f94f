"""Goals: how they are said, when they are met, and what tells that from chance."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from qdq_passes.errors import UsageError

from qdqtool.search.goal.chance import standing
from qdqtool.search.goal.goal import Goal
from qdqtool.search.goal.trials import Candidate, Trial, best_of, why_lost
from qdqtool.search.metrics import open_metric
from qdqtool.search.precision_cost import Cost


@pytest.mark.parametrize(
    ("text", "metric", "bound"),
    [
        ("accuracy >= 0.99 * float", "accuracy", 0.99 * 0.8),
        ("top1 >= 99% of float", "accuracy", 0.99 * 0.8),
        ("accuracy >= float*0.5", "accuracy", 0.4),
        ("accuracy>=float - 0.01", "accuracy", 0.79),
        ("accuracy >= float", "accuracy", 0.8),
        ("sqnr >= 30", "sqnr", 30),
        ("cosine >= -.5", "cosine", -0.5),
    ],
)
def test_how_a_goal_is_said(text: str, metric: str, bound: float) -> None:
    goal = Goal.of(text)
    assert goal.metric == metric
    assert goal.bound(0.8) == pytest.approx(bound, rel=1e-12)  # one product and one sum of floats


def test_a_metric_of_ones_own_has_any_name() -> None:
    assert Goal.of("map >= 0.99 * float", "mine.py:map50").metric == "mine.py:map50"


@pytest.mark.parametrize(
    ("text", "metric", "error"),
    [
        ("accuracy", None, "'accuracy' is no goal"),
        ("accuracy > 0.9", None, "is no goal"),
        ("accuracy <= 0.9", None, "is no goal"),
        ("accuracy >= float + 1", None, "'float + 1' is no bound"),
        ("accuracy >= much", None, "'much' is no bound"),
        ("map >= 0.5", None, "there is no metric 'map'; sqnr, cosine, accuracy, top1, or --metric"),
        ("sqnr >= 0.99 * float", None, "the float model has no SQNR of its own; say it in dB"),
        ("accuracy >= 0.9", "sqnr", "is of accuracy, and --metric says sqnr"),
    ],
)
def test_what_is_no_goal(text: str, metric: str | None, error: str) -> None:
    with pytest.raises(UsageError, match=error.replace("*", r"\*").replace("+", r"\+")):
        Goal.of(text, metric)


def answers(right: int, count: int = 100) -> tuple[list[Any], list[Any]]:
    """Outputs of which ``right`` are right, and feeds with labels."""
    outputs = [{"y": np.eye(2, dtype=np.float32)[[0 if at < right else 1]]} for at in range(count)]
    return outputs, [{"labels": np.array([0])} for _ in range(count)]


def test_few_samples_do_not_tell_a_loss_from_chance() -> None:
    """Of 100 samples the float model has 90 right. With the same 90 the goal is met however one draws; with 90 others that are as
    many it is not known; 80 miss it."""
    goal, metric = Goal.of("accuracy >= 0.99 * float"), open_metric("accuracy")
    reference, feeds = answers(90)
    assert standing(goal, metric, reference, feeds, reference).verdict == "met"
    others = [*reference[10:], *reference[:10]]  # the wrong ones stand elsewhere
    found = standing(goal, metric, others, feeds, reference)
    assert found.verdict == "close"
    assert found.figure == 0.9
    assert found.low < 0 < found.margin
    assert standing(goal, metric, answers(80)[0], feeds, reference).verdict == "missed"


def test_what_is_exact_is_met() -> None:
    outputs: list[Any] = [{"y": np.array([1, 2], np.float32)}] * 3
    found = standing(Goal.of("sqnr >= 90"), open_metric("sqnr"), outputs, [{}, {}, {}], outputs)
    assert (found.verdict, found.figure, found.margin) == ("met", None, math.inf)


def trial(margin: float, *, cost: float = 0.0, refused: int = 0, low: float | None = None, **options: Any) -> Trial:
    from qdqtool.search.goal.chance import Standing

    found = Standing(figure=30 + margin, margin=margin, low=margin if low is None else low)
    price = Cost(macs={"8": 1}, crossings=0, bytes=0, total=cost)
    candidate = Candidate(options=options, nodes={}, why="")
    return Trial(candidate=candidate, standing=found, cost=price, refused=refused, units=1.0)


def test_the_cheapest_that_meets_it_is_taken_and_the_rest_told_why() -> None:
    plain, dear, cheap = trial(-2), trial(3, cost=5, a=1), trial(1, cost=2, b=1)
    lucky, refused = trial(1, low=-1, c=1), trial(9, refused=1, d=1)
    listed = [plain, dear, cheap, lucky, refused]
    assert best_of(listed, plain) is cheap
    assert [why_lost(each, cheap, plain) for each in listed] == [
        "28: 2 below the bound", "meets it too, and costs more", "",
        "31: above the bound, but perhaps by chance (1 below on 5 % of draws)", "the target refuses 1 more operators",
    ]  # fmt: skip
    assert best_of([plain, lucky, refused], plain) is lucky


def test_a_trial_is_read_as_it_was_written() -> None:
    for each in (trial(1.5, cost=3, method="mse"), trial(math.inf)):
        assert Trial.from_json(each.to_json()) == each

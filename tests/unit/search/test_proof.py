"""What the hardest samples prove of all: never a miss that is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtool.search.goal.chance import FEW
from qdqtool.search.goal.goal import Goal
from qdqtool.search.goal.proof import Hardest
from qdqtool.search.goal.trials import are_alike, why_lost
from qdqtool.search.metrics import open_metric
from tests.dial import examples
from tests.unit.search.test_goal import trial

ACCURACY = open_metric("accuracy")


def data(
    random: np.random.Generator, samples: int, noise: float, labels: int = 1
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Feeds, outputs of a float model that is mostly right, and of one whose scores are off by ``noise``."""
    shape = (samples, labels, 4)
    truth = random.integers(0, 4, shape[:2])
    scores = random.normal(0, 1, shape) + 3 * (np.arange(4) == truth[..., None])
    others = scores + random.normal(0, 1, shape) * noise
    feeds = [{"labels": each} for each in truth]
    return feeds, [{"y": each} for each in scores], [{"y": each} for each in others]


@settings(max_examples=examples(100), deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), samples=st.integers(1, 400), noise=st.sampled_from([0, 0.1, 0.5, 2, 9]),
    factor=st.sampled_from([0.5, 0.9, 0.97, 0.99, 1, 1.01, 1.5]), labels=st.sampled_from([1, 3]),
)  # fmt: skip
def test_what_is_refuted_misses_the_goal_on_all(
    seed: int, samples: int, noise: float, factor: float, labels: int
) -> None:
    random = np.random.default_rng(seed)
    feeds, references, outputs = data(random, samples, noise, labels)
    goal = Goal.of(f"accuracy >= {factor} * float")
    hardest = Hardest.of(goal, ACCURACY, feeds, references)
    assert hardest is None or FEW <= len(hardest.samples) <= samples / 2
    if hardest is None:
        return
    assert ACCURACY.digest is not None
    found = hardest.refuted(ACCURACY.digest(outputs[at], feeds[at]) for at in hardest.samples)
    figure = ACCURACY.measure(outputs, feeds, references)
    margin = goal.margin(figure, ACCURACY.measure(references, feeds, references))
    if found is None:
        return
    assert found.verdict == "missed"
    assert max(margin, found.margin) <= found.high < 0


def test_hard_is_what_is_wrong_then_what_is_close() -> None:
    """Sample 130 is wrong, 7 just right, the rest sure; 64 of 200 are taken."""
    scores = np.tile([0.0, 9.0], (200, 1))
    scores[130], scores[7] = [5, 0], [1.5, 2]
    feeds, references = [{"labels": np.array([1])}] * 200, [{"y": each} for each in scores]
    found = Hardest.of(Goal.of("top1 >= 0.99 * float"), ACCURACY, feeds, references)
    assert found is not None
    assert found.samples == (130, 7, *range(7), *range(8, 63))  # what is as hard as others comes in its order
    assert ACCURACY.digest is not None
    flipped = [ACCURACY.digest({"y": scores[130]}, feeds[0])] * 4 + [ACCURACY.digest({"y": scores[0]}, feeds[0])] * 60
    proven = found.refuted(flipped)  # 196 of 200 right at best, the goal is 197.01
    assert proven is not None
    assert (proven.figure, proven.samples) == (196 / 200, 64)
    assert found.refuted(flipped[2:] + flipped[-2:]) is None


@pytest.mark.parametrize(
    ("metric", "samples", "goal"),
    [("sqnr", 400, "sqnr >= 30"), ("accuracy", 128, "top1 >= 0.99 * float"), ("accuracy", 400, "top1 >= 0.5 * float")],
    ids=["no-share-of-answers", "few-samples", "as-many-may-be-wrong"],
)
def test_where_nothing_would_be_spared_none_are_hard(metric: str, samples: int, goal: str) -> None:
    feeds, references, _ = data(np.random.default_rng(0), samples, 0.0)
    assert Hardest.of(Goal.of(goal), open_metric(metric), feeds, references) is None


def test_a_label_that_no_score_stands_for_is_hard() -> None:
    assert ACCURACY.digest is not None
    found = ACCURACY.digest({"y": np.array([[1.0, 2.0]])}, {"labels": np.array([-100])})
    assert (found.right, found.count, found.ease) == (0, 1, -np.inf)


def test_why_it_lost_says_that_others_were_not_run() -> None:
    plain, chosen, proven = trial(-2), trial(1, a=1), trial(-1, low=-np.inf, proven=True, b=1)
    assert why_lost(proven, chosen, plain) == "29 by the hardest samples: at best 1 short of the bound"
    assert are_alike([plain, proven])
    assert proven.is_better(plain)

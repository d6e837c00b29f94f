"""Goals: how they are said, when they are met, and what tells that from chance."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from qdq_passes.errors import UsageError
from qdq_passes.numerics.agreement import Accumulator

from qdqtool.search.goal.chance import _interval, early_of, standing
from qdqtool.search.goal.goal import Goal
from qdqtool.search.goal.standing import Standing
from qdqtool.search.goal.trials import Candidate, Trial, best_of, why_lost
from qdqtool.search.metrics import open_metric
from qdqtool.search.precision_cost import Cost
from qdqtool.search.variants import Measured, Placing


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


def test_of_perplexity_the_lower_is_better() -> None:
    """exp of the mean of −ln p: of two tokens that are as likely as not, and of one that is sure, 2^(2/3)."""
    goal, metric = Goal.of("perplexity <= 1.02 * float"), open_metric("perplexity")
    even, sure = [0.0, 0.0], [0.0, 1000.0]
    logits = np.array([[even, even, sure, even]], np.float32)  # the last one is of a token that is not there
    feed = {"input_ids": np.array([[0, 1, 0, 1]])}
    figure = metric.measure([{"logits": logits}], [feed], [])
    assert figure == pytest.approx(2 ** (2 / 3), rel=1e-15)
    assert goal.bound(2.0) == 2.04
    assert goal.margin(2.0, 2.0) > 0 > goal.margin(2.1, 2.0)
    masked = {**feed, "attention_mask": np.array([[0, 1, 1, 1]])}
    assert metric.measure([{"logits": logits}], [masked], []) == pytest.approx(2**0.5, rel=1e-15)


def test_a_metric_of_ones_own_has_any_name() -> None:
    for word in ("map", "mAP50", "score"):
        assert Goal.of(f"{word} >= 0.99 * float", "mine.py:map50").metric == "mine.py:map50"
    assert Goal.of("mAP >= 0.99 * float").metric == "map"


@pytest.mark.parametrize(
    ("text", "metric", "error"),
    [
        ("accuracy", None, "'accuracy' is no goal"),
        ("accuracy > 0.9", None, "is no goal"),
        ("accuracy <= 0.9", None, "of accuracy the higher is better; write >="),
        ("perplexity >= 5", None, "of perplexity the lower is better; write <="),
        ("accuracy >= float / 2", None, "'float / 2' is no bound"),
        ("accuracy >= much", None, "'much' is no bound"),
        (
            "auc >= 0.5",
            None,
            "there is no metric 'auc'; sqnr, cosine, accuracy, map, map50, perplexity, top1, mAP, mAP50, or --metric",
        ),
        ("map50 >= 62", None, "no map50 is 62; write 0.62, or 'map50 >= 0.99 * float'"),
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


def trial(
    margin: float,
    *,
    cost: float = 0.0,
    refused: tuple[str, ...] = (),
    low: float | None = None,
    ms: float = 1.0,
    proven: bool = False,
    **options: Any,
) -> Trial:
    ends = {"low": margin if low is None else low, "high": margin}
    found = Standing(figure=30 + margin, margin=margin, samples=8 if proven else 16, is_proven=proven, **ends)
    measured = Measured(
        figure=found.figure, cost=Cost(macs={"8": 1}, crossings=0, bytes=0, total=cost), standing=found,
        placing=Placing(refused=refused, ms=ms),
    )  # fmt: skip
    return Trial(candidate=Candidate.of("", options), measured=measured, units=1.0, most_ms=2.0)


def test_the_cheapest_that_meets_it_is_taken_and_the_rest_told_why() -> None:
    plain, dear, cheap = trial(-2), trial(3, cost=5, a=1), trial(1, cost=2, b=1)
    lucky, refused, slow = trial(1, low=-1, c=1), trial(9, refused=("a",), d=1), trial(9, ms=3, e=1)
    listed = [plain, dear, cheap, lucky, refused, slow]
    assert best_of(listed, plain) is cheap
    assert [why_lost(each, cheap, plain) for each in listed] == [
        "28: 2 short of the bound", "meets it too, and costs more", "",
        "31: meets it, but perhaps by chance (1 short on 5 % of draws)", "the target does not take a then",
        "a run takes 3 ms, over 2",
    ]  # fmt: skip
    assert best_of([plain, slow, lucky, refused], plain) is lucky


def test_what_the_target_no_longer_takes_is_known_by_name() -> None:
    """One lost for one won is one lost; what was left float on purpose is not."""
    plain, swapped = trial(-2, refused=("a", "b")), trial(1, refused=("a", "c"), x=1)
    assert swapped.unwanted(plain) == {"c"}
    assert best_of([plain, swapped], plain) is plain
    meant = replace(swapped, candidate=Candidate.of("", {}, {"c": "float"}))
    assert not meant.unwanted(plain)
    assert best_of([plain, meant], plain) is meant


def test_what_was_measured_is_read_as_it_was_written() -> None:
    for each in (trial(1.5, cost=3, method="mse").measured, trial(math.inf).measured, trial(-1, proven=True).measured):
        assert Measured.from_json(each.to_json()) == each


def test_what_the_first_samples_refute_is_judged_on_no_more() -> None:
    """Of a few samples all; of many the first 64."""
    assert [early_of(n) for n in (1, 128, 129, 1000)] == [1, 128, 64, 64]


@pytest.mark.parametrize("labels", [np.array([0.5]), np.array([np.nan]), np.array(["a"])], ids=["half", "nan", "text"])
def test_labels_that_are_no_classes_are_told(labels: Any) -> None:
    outputs, _ = answers(3, 3)
    goal, metric = Goal.of("accuracy >= 0.5"), open_metric("accuracy")
    with pytest.raises(UsageError, match="'labels' are no whole numbers"):
        standing(goal, metric, outputs, [{"labels": labels}] * 3, outputs)


def test_whatever_a_built_in_metric_raises_is_told_as_its_failure() -> None:
    empty = {"labels": np.zeros(0, np.int64)}, {"y": np.zeros((0, 2), np.float32)}
    with pytest.raises(UsageError, match="--metric accuracy: the metric fails with ZeroDivisionError"):
        standing(Goal.of("accuracy >= 0.5"), open_metric("accuracy"), [empty[1]], [empty[0]], [empty[1]])


def test_digests_of_the_float_model_are_made_once() -> None:
    made = []
    accuracy = open_metric("accuracy")
    assert accuracy.digest is not None
    metric = replace(accuracy, digest=lambda output, feed: made.append(1) or accuracy.digest(output, feed))  # type: ignore[misc]
    outputs, feeds = answers(90)
    floating = metric.figures(outputs, feeds, outputs)
    for _ in range(2):
        found = standing(Goal.of("accuracy >= 0.9 * float"), metric, outputs, feeds, outputs, floating=floating)
        assert found.verdict == "met"
    assert len(made) == 300


@pytest.mark.parametrize("name", ["sqnr", "cosine"])
def test_sums_of_samples_give_the_figure_of_them_together(name: str) -> None:
    """To the last bit, also of samples that are there twice, infinite values and outputs of several samples at once."""
    random, metric = np.random.default_rng(0), open_metric(name)
    references = [{"a": random.normal(0, 9, (k % 3 + 1, 4)), "b": random.normal(0, 1, 5)} for k in range(20)]
    outputs = [{n: (a + random.normal(0, 0.1, a.shape)).astype(np.float32) for n, a in r.items()} for r in references]
    outputs[3]["a"][0] = references[3]["a"][0] = -np.inf
    feeds: list[dict[str, Any]] = [{}] * 20
    figures = metric.figures(outputs, feeds, references)
    for at in (list(range(20)), *random.integers(0, 20, (50, 20)).tolist()):
        chosen = [[part[i] for i in at] for part in (outputs, references)]
        totals = {"a": Accumulator(), "b": Accumulator()}
        for output, reference in zip(*chosen, strict=True):
            for each, total in totals.items():
                total.add(reference[each], output[each])
        found = [total.result() for total in totals.values()]
        wanted = min(each.sqnr_db or 0 for each in found) if name == "sqnr" else min(each.cosine for each in found)
        assert figures(at) == metric.measure(chosen[0], feeds, chosen[1]) == wanted


def test_the_interval_holds_the_figure_of_other_samples() -> None:
    """Of 500 pairs of 8 normal samples 95 % hold the mean of the second eight: 475 ± 3·√(500·0.95·0.05) = 15, and what the series of
    t lacks."""
    drawn = np.random.default_rng(1).normal(0, 1, (500, 2, 8))
    held = 0
    for first, second in drawn:
        ends = _interval(lambda at, of=first: float(of[list(at)].mean()), float(first.mean()), 8)
        assert ends is not None
        held += ends[0] <= second.mean() <= ends[1]
    assert abs(held - 475) <= 15


def test_the_interval_of_samples_that_all_say_the_same_is_unknown() -> None:
    assert _interval(lambda at: 1.0, 1.0, 8) is None

"""The search for a goal, on a subject whose figures are known: what it tries, in which order, and that it stays within its budget."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from qdq_passes.errors import UsageError

from qdqtool.search.goal.proposals import go_together
from qdqtool.search.goal.seeking import Seeking
from qdqtool.search.goal.standing import Standing
from qdqtool.search.goal.subject import Raise
from qdqtool.search.goal.trials import Candidate
from qdqtool.search.precision_cost import Cost
from qdqtool.search.variants import FAILED, Measured, Placing, Point

NODES = ("a", "b", "c", "d", "e")


@dataclass
class Table:
    """Each option and each raised node adds so much to the margin, and costs so much; every candidate takes one unit."""

    gains: dict[str, float]
    missing: float = -5.0
    asked: list[Sequence[Point]] = field(default_factory=list)
    broken: str = ""
    interrupted_at: int = 10**9
    luck: float = 0.0
    early: str = ""
    later: str = ""
    singles: tuple[str, ...] = ("round", "bias", "worse")
    beside: dict[str, str] = field(default_factory=dict)

    def measure(self, points: Sequence[Point]) -> list[Measured]:
        self.asked.append(points)
        if len(self.asked) > self.interrupted_at:
            raise KeyboardInterrupt
        return [self._of(point) for point in points]

    def _of(self, point: Point) -> Measured:
        if self.broken and self.broken in dict(point.options):
            return Measured(figure=None, cost=FAILED, reason="it is broken")
        raised = [name for _, names in point.raised for name in names]
        margin = self.missing + sum(self.gains.get(name, 0.0) for name in [*dict(point.options), *raised])
        samples = 4 if self.early in dict(point.options) else 8
        standing = Standing(figure=margin, margin=margin, low=margin, high=margin, samples=samples)
        cost = Cost(macs={"8": 8 - len(raised)}, crossings=0, bytes=0, total=float(len(raised)))
        return Measured(
            figure=margin, cost=cost, standing=standing, placing=Placing(ms=1.0 + len(raised), sha256=str(margin))
        )

    def whole(self, point: Point) -> Measured:
        found = self._of(point)
        assert found.standing is not None
        margin = found.standing.margin + self.luck
        return replace(found, standing=Standing(figure=margin, margin=margin, low=margin, high=margin, samples=8))

    def whole_units(self) -> float:
        return 0.5

    def units(self, point: Point) -> float:
        return 1.0

    def pay(self, point: Point, measured: Measured) -> float:
        return 1.0

    def writing(self, point: Point) -> float:
        return 1.0

    def pay_for_causes(self, point: Point) -> float:
        return 0.5

    def mends(self, point: Point) -> Iterator[Candidate]:
        yield from (Candidate.of("a cause", {name: True}) for name in self.singles)
        if self.later and point.options:
            yield Candidate.of("what is left", {self.later: True})

    def others(self) -> Iterator[Candidate]:
        yield Candidate.of("another scheme", {"preset": "other"})

    def raises(self, best: Point) -> Iterator[Raise]:
        yield Raise(precision="int16", sets=tuple((name,) for name in NODES))

    def along(self, point: Point, refused: Iterable[str]) -> Point:
        ((precision, names),) = point.raised
        beside = [self.beside[name] for name in names if name in self.beside and self.beside[name] not in refused]
        return Point.of(dict.fromkeys(sorted({*names, *beside}), precision), dict(point.options))

    def last(self, *, wider: bool) -> Iterator[Candidate]:
        yield Candidate.of("the last resort", {"wide" if wider else "poor": True})


def sought(budget: float = 100.0, most_ms: float = 100.0, **table: Any) -> Seeking:
    seeking = Seeking(Table(**table), budget=budget, most_ms=most_ms, samples=8)
    seeking.run()
    return seeking


def texts(seeking: Seeking) -> list[str]:
    return [trial.candidate.text for trial in seeking.trials]


def test_what_meets_the_goal_at_once_is_all_that_is_tried() -> None:
    assert texts(sought(gains={}, missing=1.0)) == ["as it is said"]


def test_mends_are_tried_alone_and_then_together() -> None:
    found = sought(gains={"round": 3.0, "bias": 2.5, "worse": -1.0})
    assert texts(found) == ["as it is said", "--round", "--bias", "--worse", "--bias --round"]
    assert found.best.candidate.text == "--bias --round"
    assert found.units == 5 + 0.5


def test_what_is_learned_does_what_two_others_do() -> None:
    assert go_together(["round_weights"], ["correct_bias"])
    assert not go_together(["learn_rounding", "method"], ["correct_bias"])
    assert not go_together(["round_weights"], ["learn_rounding"])
    assert not go_together(["method"], ["smooth", "method"])


def test_mends_are_measured_side_by_side() -> None:
    table = Table(gains={})
    Seeking(table, budget=100.0, most_ms=100.0).run()
    assert [len(points) for points in table.asked][:2] == [1, 3]


def test_what_no_mend_meets_another_scheme_meets() -> None:
    assert sought(gains={"preset": 5.0}).best.candidate.text == "--preset other"


def test_another_scheme_is_tried_with_the_best_mend() -> None:
    found = sought(gains={"round": 3.0, "preset": 2.5})
    assert texts(found)[-2:] == ["--preset other", "--preset other --round"]
    assert found.best.is_met


def test_of_schemes_the_better_one_is_taken() -> None:
    class Two(Table):
        def others(self) -> Iterator[Candidate]:
            yield from (Candidate.of("another scheme", {"preset": name}) for name in ("a", "b"))

        def _of(self, point: Point) -> Measured:
            better = dict(point.options).get("preset") == "b"
            return replace(self, gains={"preset": 2.0 if better else 1.0, "late": 3.0})._plain_of(point)

        _plain_of = Table._of

    seeking = Seeking(Two(gains={}, later="late"), budget=100.0, most_ms=100.0, samples=8)
    seeking.run()
    assert seeking.best.candidate.options == {"late": True, "preset": "b"}


def test_single_mends_that_were_put_off_are_tried_in_the_end() -> None:
    """They take two fifths of the budget at first; what is left when nothing else helped is theirs."""
    names = tuple(f"m{n}" for n in range(10))
    found = sought(gains={"m8": 6.0}, singles=names, budget=20.0)
    assert found.best.candidate.text == "--m8"


def test_cheap_mends_are_not_put_off() -> None:
    class Cheap(Table):
        def units(self, point: Point) -> float:
            return 0.25 if "m9" in dict(point.options) else 1.0

        def pay(self, point: Point, measured: Measured) -> float:
            return self.units(point)

    seeking = Seeking(Cheap(gains={}, singles=tuple(f"m{n}" for n in range(10))), budget=10.0, most_ms=100.0, samples=8)
    seeking.run()
    assert texts(seeking)[:5] == ["as it is said", "--m0", "--m1", "--m9", "--preset other"]


def test_causes_are_asked_for_again_behind_the_best_mend() -> None:
    """What is left then has a mend that the plain quantization did not ask for."""
    found = sought(gains={"round": 3.0, "late": 2.5}, later="late")
    assert texts(found)[-1] == "--late --round"
    assert found.trials[-1].candidate.why == "what is left, behind --round"
    assert found.best.is_met


def test_what_there_is_no_budget_for_is_not_made() -> None:
    looked = []

    class Watched(Table):
        def along(self, point: Point, refused: Iterable[str]) -> Point:
            looked.append(point)
            return super().along(point, refused)

    seeking = Seeking(Watched(gains=dict.fromkeys(NODES, 1.1), singles=()), budget=7.0, most_ms=100.0, samples=8)
    seeking.run()
    assert looked == [trial.candidate.point for trial in seeking.trials if trial.candidate.point.raised]


def test_what_is_refused_beside_raised_nodes_is_raised_with_them() -> None:
    found = sought(gains={"a": 3.0, "e": 3.0}, beside={"a": "e"})
    assert dict(found.best.candidate.point.raised) == {"int16": ("a", "e")}
    assert found.best.candidate.why == "the dearest node in int16, and 1 beside them"


def test_what_the_float_model_does_not_reach_no_node_is_raised_for() -> None:
    seeking = Seeking(Table(gains={"c": 6.0}), budget=100.0, most_ms=100.0, samples=8, reachable=False)
    seeking.run()
    assert not any(trial.candidate.point.raised for trial in seeking.trials)
    assert texts(seeking)[-1] == "--poor"


def test_nodes_are_raised_twice_as_many_each_time_and_lowered_one_by_one() -> None:
    """Only the third node counts: four are raised, and three of them lowered again."""
    found = sought(gains={"c": 6.0})
    assert found.best.candidate.point == Point.of({"c": "int16"})
    raised = [
        len(dict(trial.candidate.point.raised).get("int16", ()))
        for trial in found.trials
        if trial.candidate.point.raised
    ]
    assert raised == [1, 2, 4, 3, 2, 1]


def test_the_fewest_that_are_enough_are_found_by_halving() -> None:
    """Three nodes are: one, two and four are raised, then three; none of the three can be lowered."""
    found = sought(gains={"a": 2.0, "b": 2.0, "c": 2.0})
    assert found.best.candidate.point == Point.of(dict.fromkeys("abc", "int16"))
    raised = [dict(trial.candidate.point.raised).get("int16", ()) for trial in found.trials]
    assert ["".join(names) for names in raised if names] == ["a", "ab", "abcd", "abc", "ac", "bc"]


def test_with_little_budget_many_are_raised_at_once() -> None:
    """All five are needed, and one try is left beside the writing: beginning with one node would miss."""
    found = sought(gains=dict.fromkeys(NODES, 1.2), budget=6.5)
    assert found.best.is_met
    assert [trial.candidate.point.raised for trial in found.trials if trial.candidate.point.raised] == [
        (("int16", NODES),)
    ]


def test_where_nothing_helps_the_last_resort_is_tried_last() -> None:
    found = sought(gains={"wide": 6.0})
    assert texts(found)[-1] == "--wide"
    assert found.best.is_met


@pytest.mark.parametrize("budget", [2.0, 3.0, 5.5, 8.0, 11.0])
def test_the_budget_holds_and_the_best_is_made_once_more(budget: float) -> None:
    found = sought(budget=budget, gains=dict.fromkeys(("round", "bias", *NODES), 0.1))
    assert found.units + found.subject.writing(found.best.candidate.point) <= budget
    assert not found.best.is_met


def test_what_takes_too_long_is_not_taken() -> None:
    """Two nodes in 16 bit take 3 ms."""
    found = sought(gains={"a": 3.0, "b": 3.0}, most_ms=2.5)
    assert not found.best.is_met
    assert found.best.is_fast
    assert sought(gains={"a": 3.0, "b": 3.0}, most_ms=3.0).best.is_met


def test_what_cannot_be_made_loses_and_a_plain_one_that_cannot_is_an_error() -> None:
    found = sought(gains={"round": 3.0, "bias": 2.5}, broken="bias")
    assert found.trials[2].measured.reason == "it is broken"
    assert "bias" not in found.best.candidate.options
    with pytest.raises(UsageError, match="the plain quantization cannot be made: it is broken"):
        Seeking(_Broken(gains={}), budget=9.0, most_ms=9.0).run()


class _Broken(Table):
    def _of(self, point: Point) -> Measured:
        return Measured(figure=None, cost=FAILED, reason="it is broken")


def test_what_the_first_samples_refuted_is_judged_on_all_where_it_came_nearest() -> None:
    """Without it nodes would be raised: rounding misses by 1 on the first samples, and meets the goal on all."""
    found = sought(gains={"round": 4.0}, early="round", luck=2.0)
    assert found.best.candidate.text == "--round"
    assert (found.best.samples, found.best.units) == (8, 1.5)
    assert not any(trial.candidate.point.raised for trial in found.trials)
    worse = sought(
        gains={"round": -1.0}, early="round", luck=9.0
    )  # nothing else meets it, so what is left of the budget tells
    assert worse.best.candidate.text == "--round"
    assert worse.trials[-1].candidate.text == "--wide"
    poor = sought(gains={"round": -1.0}, early="round", luck=9.0, budget=worse.units + 0.9)  # to be written it takes 1
    assert [trial.samples for trial in poor.trials if trial.candidate.text == "--round"] == [4]


def test_with_what_is_left_of_the_budget_any_two_that_bring_something_are_tried_together() -> None:
    """Nothing reaches the goal: the nearest two that were not, until none are left."""
    gains = {"round": 1.0, "bias": 0.5, "preset": 0.25}
    found = Seeking(Table(gains=gains), budget=100.0, most_ms=100.0, samples=8, reachable=False)
    found.run()
    tried = texts(found)
    assert set(tried[tried.index("--poor") + 1 :]) == {"--preset other --round", "--bias --preset other"}
    assert len(set(tried)) == len(tried)


def test_of_pairs_that_are_as_near_one_is_tried_first_whatever_made_it() -> None:
    """Three mends of the same worth: all of them together come of any of three pairs."""
    names = ("a1", "a2", "a3", "a4")
    found = Seeking(
        Table(gains=dict.fromkeys(names, 1.0), singles=names, missing=-9.0),
        budget=100.0,
        most_ms=100.0,
        samples=8,
        reachable=False,
    )
    found.run()
    tried = texts(found)
    assert len(set(tried)) == len(tried)
    assert {trial.margin for trial in found.trials} == {-9.0, -8.0, -7.0, -6.0, -5.0}
    assert {len(trial.candidate.options) for trial in found.trials if trial.candidate.options.keys() <= set(names)} == {
        0,
        1,
        2,
        3,
        4,
    }
    assert sum(trial.candidate.options.keys() <= set(names) for trial in found.trials) == 2**4


def test_what_the_hardest_samples_refute_is_not_judged_again_but_for_its_figure() -> None:
    class Proven(Table):
        def _of(self, point: Point) -> Measured:
            made = super()._of(point)
            assert made.standing is not None
            if "round" not in dict(point.options):
                return made
            return replace(made, standing=replace(made.standing, samples=2, is_proven=True))

    seeking = Seeking(Proven(gains={"round": 1.0}, luck=-0.5), budget=100.0, most_ms=100.0, samples=8, reachable=False)
    seeking.run()
    assert [trial.samples for trial in seeking.trials if "round" in trial.candidate.options].count(8) == 1
    assert (seeking.best.candidate.text, seeking.best.samples, seeking.best.margin) == ("--round", 8, -4.5)


def test_an_interrupt_leaves_what_meets_the_goal() -> None:
    """While nodes are lowered; before the goal is met it goes on as an interrupt."""
    found = sought(gains={"c": 6.0}, interrupted_at=6)
    assert found.stopped == "interrupted"
    assert found.best.is_met
    with pytest.raises(KeyboardInterrupt):
        sought(gains={"c": 6.0}, interrupted_at=4)

"""The search for mixed precision and sensitivity on figures that are known: what is measured, in which order, what is chosen, and
that an interrupted one goes on. Nothing is quantized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from qdq_passes.errors import ModelError, UsageError

from qdqtool.io.files.journal import Journal
from qdqtool.presets.loading import load_preset
from qdqtool.quantization.quantizing import prepare
from qdqtool.record.record import NodeRecord, Record
from qdqtool.search.allowed_precisions import Allowed
from qdqtool.search.measuring import Measurements, Setting
from qdqtool.search.metrics import open_metric
from qdqtool.search.mixed_precision import Mixed
from qdqtool.search.node_groups import node_groups
from qdqtool.search.precision_cost import Cost
from qdqtool.search.precision_search import Search
from qdqtool.search.sensitivity import Sensitivity, sensitivity_of
from qdqtool.search.variants import FAILED, Measured, Point, Scheme
from qdqtool.workers.cluster import InProcess
from tests.cases.small_models import model

NAMES = ("a", "b", "c", "d")


@cache
def chain() -> Setting:
    """Four layers in a row, prepared, without ranges."""
    random = np.random.default_rng(0)
    text = """g (float[1,4] x) => (float[1,4] y) {
      [a] p = Gemm(x, wa) [b] q = Gemm(p, wb) [c] r = Gemm(q, wc) [d] y = Gemm(r, wd) }"""
    net = model(text, {f"w{name}": random.normal(size=(4, 4)).astype(np.float32) for name in NAMES})
    plan, _ = prepare(net, Scheme(preset=load_preset("a8w8")).plan())
    baseline: Any = SimpleNamespace(feeds=(0, 1), ranges=SimpleNamespace(method="minmax"))
    recovering: Any = None
    return Setting(baseline=baseline, model=net, plan=plan, floating=None, of={"model": "0"}, recovering=recovering)


@dataclass
class Table:
    """The figure of the plain quantization, and what each raised node adds to it and costs; what raises ``broken`` alone cannot be made."""

    gains: dict[str, float]
    costs: dict[str, float] = field(default_factory=dict)
    plain: float = 20.0
    broken: str = ""
    killed_after: int = 10**9
    asked: list[Point] = field(default_factory=list)

    def judge(self, _: object, point: Point) -> Measured:
        if len(self.asked) == self.killed_after:
            raise KeyboardInterrupt
        self.asked.append(point)
        names = set(point.precisions) if point.only is None else set(NAMES) - set(point.only)
        if names == {self.broken}:
            return Measured(figure=None, cost=FAILED, reason="it is broken")
        total = float(sum(self.costs.get(name, 1.0) for name in names))
        cost = Cost(macs={"8": 4 - len(names), "16": len(names)}, crossings=0, bytes=0, total=total)
        return Measured(figure=self.plain + sum(self.gains.get(name, 0.0) for name in names), cost=cost)

    def measurements(self, journal: Journal | None = None) -> Measurements[Any]:
        return Measurements(baseline=lambda point: None, workers=InProcess(), journal=journal, judge=self.judge)

    def mixed(
        self, bound: float, types: Sequence[str] = ("int16",), journal: Journal | None = None, **more: Any
    ) -> Mixed:
        setting = chain()
        groups = node_groups(setting.model, setting.plan, follow=True)
        allowed = more.pop("allowed", Allowed(precisions={group.name: tuple(types) for group in groups}))
        measurements, metric = self.measurements(journal), open_metric("sqnr")
        return Search(setting, measurements, metric, bound, tuple(types), allowed, **more).run()

    def sensitivity(self, **more: Any) -> Sensitivity:
        return sensitivity_of(chain(), self.measurements(), metric=open_metric("sqnr"), **more)


def raised(point: Point) -> str:
    return "".join(sorted(point.precisions))


def test_a_bound_that_holds_already_raises_nothing() -> None:
    table = Table(gains={})
    found = table.mixed(20.0)
    assert (found.met, found.chosen, found.measured) == (True, found.plain, 1)
    assert table.asked == [Point()]


def test_the_cheapest_that_holds_is_chosen_and_nothing_cheaper_holds() -> None:
    """What brings most a cost is raised first, and what is then not needed lowered: d alone brings what a and c do for less."""
    table = Table(gains={"a": 4.0, "b": 0.5, "c": 2.0, "d": 5.0}, costs={"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.5})
    found = table.mixed(25.0)
    assert (found.met, raised(found.chosen.point), found.chosen.measured.cost.total) == (True, "d", 1.5)
    assert found.chosen in found.pareto
    costs = [each.measured.cost.total for each in found.pareto]
    assert costs == sorted(costs)
    assert all(each.figure < 25 for each in found.pareto if each.measured.cost.total < 1.5)
    assert len(set(table.asked)) == len(table.asked), "no variant is measured twice"
    assert found.measured == len([point for point in table.asked if point.only is None])


def test_what_harms_most_for_its_cost_is_raised_first() -> None:
    """All of it is needed but b, which brings nothing."""
    table = Table(gains={"a": 1.0, "c": 2.0, "d": 4.0})
    assert raised(table.mixed(27.0).chosen.point) == "acd"
    order = [raised(point) for point in table.asked if point.only is None]
    steps = [names for names in ("d", "cd", "acd") if names in order]
    assert [order.index(names) for names in steps] == sorted(order.index(names) for names in steps)
    assert len(steps) == 3


def test_what_cannot_be_made_is_left() -> None:
    found = Table(gains={"a": 6.0, "d": 5.0}, costs={"a": 0.1}, broken="a").mixed(25.0)
    assert raised(found.chosen.point) == "d"
    with pytest.raises(UsageError, match="the plain quantization cannot be made: it is broken"):
        Broken(gains={}).mixed(25.0)


class Broken(Table):
    def judge(self, _: object, point: Point) -> Measured:
        return Measured(figure=None, cost=FAILED, reason="it is broken")


def test_a_bound_out_of_reach_is_told_with_the_best() -> None:
    table = Table(gains=dict.fromkeys(NAMES, 1.0))
    found = table.mixed(30.0)
    assert (found.met, found.limit.count("only int16 may be used"), raised(found.chosen.point)) == (False, 1, "abcd")
    assert found.chosen.figure == max(each.figure for each in found.pareto) == 24.0
    every = Table(gains=dict.fromkeys(NAMES, 1.0)).mixed(24.0, ("float",))
    assert every.limit == "nothing holds it but every node in floats, which is no quantization"


def test_the_target_decides_what_is_raised_to_what() -> None:
    refusals = (("a", "int16", "too wide"),)
    own = {"a": ("float",), "b": ("int16", "float"), "c": ("int16", "float"), "d": ("int16", "float")}
    table = Table(gains={"a": 5.0})
    found = table.mixed(25.0, ("int16", "float"), allowed=Allowed(precisions=own, refusals=refusals))
    assert found.chosen.point == Point.of({"a": "float"})
    assert found.refusals == refusals
    assert not any(point.precisions.get("a") == "int16" for point in table.asked)
    none = Allowed(precisions=dict.fromkeys(NAMES, ()), refusals=refusals)
    with pytest.raises(UsageError, match="no node may be raised to int16: too wide"):
        Table(gains={}).mixed(25.0, allowed=none)


def test_prices_of_a_record_stand_for_measuring_each_node_alone() -> None:
    record = Record(nodes=tuple(NodeRecord(name=n, price={"operator": 0.1 * (n == "d")}) for n in NAMES))
    plain, told = Table(gains={"a": 1.0, "d": 5.0}), Table(gains={"a": 1.0, "d": 5.0})
    assert plain.mixed(25.0).chosen == told.mixed(25.0, record=record).chosen
    assert [point for point in told.asked if point.only is not None] == []
    assert len([point for point in plain.asked if point.only is not None]) == 4


@pytest.mark.parametrize("kept", [0, 1, 6, 9])
def test_an_interrupted_search_goes_on(kept: int, tmp_path: Path) -> None:
    """It measures what is left, finds the same, and leaves the same journal; what is no result is refused."""
    of = {"model": "0"}
    table: dict[str, Any] = {"gains": {"a": 1.0, "c": 2.0, "d": 4.0}}
    whole = Table(**table)
    found = whole.mixed(27.0, journal=Journal(str(tmp_path / "whole"), kind="mixed-precision", of=of))
    killed, again = Table(**table, killed_after=kept), Table(**table)
    with pytest.raises(KeyboardInterrupt):
        killed.mixed(27.0, journal=Journal(str(tmp_path / "j"), kind="mixed-precision", of=of))
    resumed = Journal(str(tmp_path / "j"), kind="mixed-precision", of=of, resume=True)
    assert again.mixed(27.0, journal=resumed).to_json() == found.to_json()
    assert killed.asked + again.asked == whole.asked
    assert (tmp_path / "j").read_bytes() == (tmp_path / "whole").read_bytes()
    resumed.add(Point().key, {"figure": "?"})
    with pytest.raises(ModelError, match="a result cannot be read"):
        Table(**table).measurements(resumed)


def test_the_worst_node_stands_first() -> None:
    """By what it does alone; of equals by what leaving it out wins."""
    table = Table(gains={"a": 1.0, "b": 3.0, "c": 3.0, "d": 2.0})
    found = table.sensitivity()
    assert [row.group.name for row in found.rows] == ["b", "c", "d", "a"]
    assert [row.only and row.only.figure for row in found.rows] == [26.0, 26.0, 27.0, 28.0]
    assert [row.without and row.without.figure for row in found.rows] == [23.0, 23.0, 22.0, 21.0]
    assert (found.quantized, found.samples, len(table.asked)) == (20.0, 2, 1 + 2 * 4)


def test_sensitivity_measures_what_is_asked_for() -> None:
    table = Table(gains={"a": 1.0, "b": 3.0})
    (row,) = table.sensitivity(mode="only", select=("b",)).rows
    assert table.asked == [Point(), Point(only=("b",))]
    assert row.without is None
    assert "without_db" not in row.to_json(open_metric("sqnr"))
    (every,) = table.sensitivity(mode="without", by="type").rows
    assert (every.group.name, set(every.group.nodes)) == ("Gemm", set(NAMES))
    with pytest.raises(UsageError, match="selector 'x\\*' matches nothing"):
        table.sensitivity(select=("x*",))

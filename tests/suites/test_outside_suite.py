"""Every model of onnx's own backend tests goes through load → save and through every pass, and still computes the same."""

from __future__ import annotations

import pytest
from qdq_passes.core.registry import PASSES

from tests.suites.exclusions import Exclusion, complaints, exclusions, unexcused
from tests.suites.harness import ROUND_TRIP
from tests.suites.run import Report
from tests.suites.steps import ROWS, steps_of

pytestmark = pytest.mark.suite

#: Failures shown per step, the first by name.
SHOWN = 20


def test_every_model_is_there(report: Report) -> None:
    """A release of onnx with fewer cases, or a case module that stopped working, would empty the suite silently."""
    assert report.cases["node"] >= 1500
    assert report.cases["simple"] + report.cases["pytorch-converted"] + report.cases["pytorch-operator"] >= 140
    assert report.cases["frozen"] >= 1800
    assert report.engines()["none"] <= 10
    assert len(report.examinations) == report.cases.total()


def test_load_and_save(report: Report) -> None:
    _assert_all_hold(report, ROUND_TRIP)


@pytest.mark.parametrize("name", PASSES.names())
def test_pass(report: Report, name: str) -> None:
    for step in steps_of(name):
        _assert_all_hold(report, step.text)


def test_every_row_is_of_a_pass() -> None:
    assert set(ROWS) <= set(PASSES.names())


@pytest.mark.parametrize("exclusion", exclusions(), ids=lambda exclusion: exclusion.cases[0])
def test_exclusion_still_fails(report: Report, exclusion: Exclusion) -> None:
    _assert_empty(sorted(complaints(exclusion, report.examinations.values())), "complaints about an exclusion")


def _assert_all_hold(report: Report, step: str) -> None:
    assert report.results(step), f"{step} was not tried"
    _assert_empty(sorted(unexcused(report.examinations.values(), step, exclusions())), f"models fail in {step}")


def _assert_empty(faults: list[str], what: str) -> None:
    if faults:
        pytest.fail(f"{len(faults)} {what}:\n" + "\n".join(faults[:SHOWN]), pytrace=False)

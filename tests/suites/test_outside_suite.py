"""Every model of onnx's own backend tests goes through load → save and through every pass, and still computes the same. The part takes
for every pass models that it acts on, and a model for every operator through all of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from qdq_passes.core.registry import PASSES

from tests.dial import some
from tests.suites.acts import acts
from tests.suites.exclusions import Exclusion, complaints, exclusions, idle, unexcused
from tests.suites.harness import ROUND_TRIP, Examination
from tests.suites.run import every_case, examine_all, kinds, looked_at
from tests.suites.steps import ROWS, all_steps, steps_of

pytestmark = pytest.mark.suite

#: Failures shown, the first by name.
SHOWN = 20
#: Tests that the cases are divided among.
CHUNKS = 24
#: Number of models, of those that a step acts on, in the part.
FEW = 1


def test_every_model_is_there() -> None:
    """A release of onnx with fewer cases, or a case module that stopped working, would empty the suite silently."""
    found = kinds()
    assert found["node"] >= 1500
    assert found["simple"] + found["pytorch-converted"] + found["pytorch-operator"] >= 140
    assert found["frozen"] >= 1800
    assert len({case.name for case in every_case()}) == found.total()


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_pass_on_models(chunk: int, record_property: Callable[[str, object], None]) -> None:
    cases = looked_at()[chunk::CHUNKS]
    found = examine_all(cases, all_steps())
    record_property("examined", [len(cases), sum(e.runs for e in found), sum(e.engine is None for e in found)])
    assert len(found) == len(cases)
    assert all(ROUND_TRIP in e.results for e in found)
    _assert_empty(_faults(found), "failures")


@pytest.mark.parametrize("name", PASSES.names())
def test_a_pass_on_models_that_it_acts_on(name: str) -> None:
    """And acts on them."""
    cases, known = {case.name: case for case in every_case()}, acts()
    for step in steps_of(name):
        assert step.text in known, f"{step.text} is not in acts.json: run python -m tests.suites.acts"
        names = [case for case in known[step.text] if case in cases]
        found = examine_all([cases[case] for case in some(names, FEW)], [step])
        _assert_empty(_faults(found), f"models fail in {step.text}")
        assert not names or any(e.results[step.text].status in ("agrees", "accepted", "failed") for e in found), (
            step.text
        )


def test_every_row_is_of_a_pass() -> None:
    assert set(ROWS) <= set(PASSES.names())


@pytest.mark.parametrize("exclusion", exclusions(), ids=lambda exclusion: exclusion.cases[0])
def test_an_exclusion_speaks_of_something(exclusion: Exclusion) -> None:
    names, texts = (case.name for case in every_case()), (step.text for step in all_steps())
    _assert_empty(sorted(idle(exclusion, list(names), list(texts))), "complaints about an exclusion")


def _faults(found: list[Examination]) -> list[str]:
    """Failures that no exclusion speaks of, and exclusions that do not fail as they say."""
    steps = dict.fromkeys(step for examination in found for step in examination.results)
    known = exclusions()
    failed = [f"{step}: {line}" for step in steps for line in unexcused(found, step, known)]
    return sorted([*failed, *(line for exclusion in known for line in complaints(exclusion, found))])


def _assert_empty(faults: list[str], what: str) -> None:
    if faults:
        pytest.fail(f"{len(faults)} {what}:\n" + "\n".join(faults[:SHOWN]), pytrace=False)

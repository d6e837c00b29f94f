"""Calibration as a pass: what it gives to the passes behind it, and when it is not run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from qdq_passes.errors import UsageError
from qdq_passes.graph.annotate import CALIBRATED
from qdq_passes.graph.uses import all_values
from qdq_passes.pipeline.pipeline import parse_pipeline, run_pipeline

import qdqtool
from qdqtool.calibrate.observer import Range
from qdqtool.io.models.load import load
from qdqtool.io.models.save import serialize
from qdqtool.quantization.calibrating import Calibrator
from qdqtool.quantization.quantizing import quantize_model
from qdqtool.runtime.session import compute
from qdqtool.verbs.quantize import Quantize
from tests.cases.cli_helpers import DIGITS
from tests.golden_messages.refusal import refusal


def feeds() -> list[dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]]:
    shape = [d if isinstance(d, int) else 1 for d in load(DIGITS).graph.inputs[0].shape or ()]
    name = load(DIGITS).graph.inputs[0].name or ""
    return [{name: np.random.default_rng(n).standard_normal(shape, np.float32)} for n in range(3)]


def test_the_whole_pipeline_is_one_run() -> None:
    """With samples and a runtime its text does all that `quantize` does, and with the ranges that it found the same."""
    done = qdqtool.quantize(load(DIGITS), data=feeds(), preset="8a8w")
    whole, ranges = str(done.quantization.plan.whole), done.quantization.ranges
    inputs = {"data": feeds(), "runtime": Calibrator(), "tensors": tuple(ranges.tensors)}
    one, other = load(DIGITS), load(DIGITS)
    report = run_pipeline(one, whole, inputs=inputs)
    replayed = run_pipeline(other, whole, inputs={"ranges": ranges.bound, "runtime": compute})
    expected = serialize(done.model).SerializeToString()
    assert serialize(one).SerializeToString() == serialize(other).SerializeToString() == expected
    assert [p.text for p in report.passes if p not in replayed.passes and p.text.startswith("observe")]
    assert not any(p.text.startswith("observe") for p in replayed.passes)


def test_what_is_annotated_is_what_was_found() -> None:
    model, calibrator = load(DIGITS), Calibrator(statistics=True)
    run_pipeline(
        model, 'observe{data=@data runtime=@runtime options="{}"}', inputs={"data": feeds(), "runtime": calibrator}
    )
    seen = {value.name: found for value in all_values(model) if (found := CALIBRATED.get(value)) is not None}
    assert {name: (found.low, found.high) for name, found in seen.items()} == {
        name: (found.low, found.high) for name, found in calibrator.found.bound.items()
    }
    assert all(found.histogram is not None for found in seen.values())
    back = CALIBRATED.from_json(CALIBRATED.to_json(found := next(iter(seen.values()))))
    assert back == found
    assert back.histogram is not None
    assert back.histogram.state() == (found.histogram and found.histogram.state())


def test_a_calibrator_serves_one_plan_after_another() -> None:
    """It stays as it is: the second plan has the ranges of its own method."""
    calibrator = Calibrator()
    for method in ("minmax", "pow2-nonoverflow"):
        made = Quantize(load(DIGITS), preset="8a8w", method=method).plan()
        done = quantize_model(load(DIGITS), made, feeds=feeds(), calibrator=calibrator)
        assert done.ranges.method == method
        assert done.ranges.samples == 3
        assert calibrator.ranges is None


def test_what_the_data_raise_is_not_of_the_pass() -> None:
    def broken() -> Iterator[dict[str, object]]:
        raise ValueError("out of samples")
        yield {}

    with pytest.raises(ValueError, match=r"^out of samples$"):
        run_pipeline(
            load(DIGITS), "observe{data=@data runtime=@runtime}", inputs={"data": broken(), "runtime": Calibrator()}
        )


def test_what_it_gives_need_not_be_bound() -> None:
    text = "observe{data=@data runtime=@runtime},annotate-encodings{encodings=@ranges}"
    pipeline = parse_pipeline(text)
    assert pipeline.needs() == ["data", "runtime", "ranges"]
    assert (pipeline.todo(["data"]), pipeline.todo(["ranges"])) == (pipeline.passes, pipeline.passes[1:])
    with refusal(UsageError):
        run_pipeline(load(DIGITS), text)
    assert run_pipeline(
        load(DIGITS), text, inputs={"ranges": {v.name: Range(-1.0, 1.0) for v in all_values(load(DIGITS))}}
    ).modified

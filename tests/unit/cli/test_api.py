"""The verbs in Python: every one of them twice, models in memory left alone, data of every kind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from qdq_passes.errors import UsageError

import qdqtool
from qdqtool import api
from qdqtool.calibrate.ranges import Ranges
from qdqtool.verbs.work.quantizing import Quantized
from tests.cases.cli_helpers import CALIB, DIGITS, SAMPLES, Feed, cli, environment
from tests.golden_messages.refusal import refusal


def text(model: ir.Model) -> str:
    """Everything there is of a model, as one comparable value."""
    return str(ir.to_proto(model).SerializeToString(deterministic=True))


@pytest.fixture
def digits() -> ir.Model:
    return qdqtool.load(DIGITS)


def feeds(count: int = 4) -> list[Feed]:
    with np.load(CALIB) as data:
        return [{"input": data["input"][i : i + 1]} for i in range(count)]


def test_load_and_save_twice(tmp_path: Path) -> None:
    for name in ("a", "b"):
        qdqtool.save(qdqtool.load(DIGITS), tmp_path / f"{name}.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert text(qdqtool.load(tmp_path / "a.onnx")) == text(qdqtool.load(DIGITS))


def test_run_pipeline_twice(digits: ir.Model) -> None:
    before = text(digits)
    copied = qdqtool.run_pipeline(digits, "fold-batch-norm,remove-unused", copy=True)
    assert copied.modified
    assert text(digits) == before
    first = qdqtool.run_pipeline(digits, "fold-batch-norm,remove-unused")
    assert first.model is digits
    assert text(digits) == text(copied.model)
    assert not qdqtool.run_pipeline(digits, "fold-batch-norm,remove-unused").modified


def test_quantize_twice_and_the_callers_model_stays(digits: ir.Model, tmp_path: Path) -> None:
    before = text(digits)
    first, second = (qdqtool.quantize(digits, data=feeds()) for _ in range(2))
    assert text(digits) == before
    assert text(first.model) == text(second.model)
    assert first.comparison is not None
    assert first.comparison == second.comparison
    assert first.quantization.pairs == 27
    done = qdqtool.quantize(DIGITS, tmp_path / "q.onnx", data=feeds())
    assert onnx.load(tmp_path / "q.onnx").graph.node[0].op_type in ("QuantizeLinear", "DequantizeLinear")
    assert done.to_json()["samples"] == 4
    with refusal(UsageError):
        qdqtool.quantize(DIGITS, tmp_path / "q.onnx", data=feeds())


def test_python_and_command_line_give_the_same_bytes(tmp_path: Path) -> None:
    cli("quantize", DIGITS, "--data", CALIB, "--samples", "4", "--exclude", "/head/*", "-o", tmp_path / "a.onnx")
    qdqtool.quantize(DIGITS, tmp_path / "b.onnx", data=CALIB, samples=4, exclude=["/head/*"])
    qdqtool.quantize(DIGITS, tmp_path / "c.onnx", data=feeds(4), exclude=["/head/*"])
    assert (
        (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes() == (tmp_path / "c.onnx").read_bytes()
    )


class Reader:
    """What onnxruntime calls a CalibrationDataReader; it cannot be read twice, and hands out one buffer again and again."""

    def __init__(self) -> None:
        self.feeds = iter(feeds())
        self.buffer = np.empty((1, 1, 8, 8), np.float32)

    def get_next(self) -> Feed | None:
        feed = next(self.feeds, None)
        if feed is None:
            return None
        self.buffer[...] = feed["input"]
        return {"input": self.buffer}


def generated() -> Iterator[Feed]:
    yield from feeds()


@cache
def quantized_list() -> Quantized:
    """What `quantize` makes with a list of samples."""
    return qdqtool.quantize(DIGITS, data=feeds())


@pytest.mark.parametrize(
    "data",
    [
        lambda: feeds(),
        lambda: {"input": np.concatenate([f["input"] for f in feeds()])},
        lambda: generated(),
        lambda: generated,
        lambda: Reader(),
        lambda: Reader,
        lambda: [f["input"] for f in feeds()],
    ],
    ids=["list", "dict of arrays", "generator", "function", "data reader", "class of readers", "bare arrays"],
)
def test_data_of_every_kind(data: Any) -> None:
    """The same samples give the same ranges and the same figures."""
    done, wanted = qdqtool.quantize(DIGITS, data=data()), quantized_list()
    assert done.quantization.ranges == wanted.quantization.ranges
    assert done.comparison == wanted.comparison
    assert done.comparison is not None
    assert done.comparison.samples == 4


def test_compare_twice(digits: ir.Model) -> None:
    quantized = qdqtool.quantize(digits, data=feeds()).model
    a, b = text(digits), text(quantized)
    first, second = (qdqtool.compare(digits, quantized, feeds()) for _ in range(2))
    assert first == second
    assert (text(digits), text(quantized)) == (a, b)
    assert [o.name for o in first.outputs] == ["logits"]
    assert qdqtool.compare(DIGITS, digits, feeds()).min_sqnr is None


def test_the_bridge_twice(digits: ir.Model) -> None:
    before = text(digits)
    for _ in range(2):
        graph = qdqtool.to_gs(digits)
        back = qdqtool.from_gs(graph)
        assert [n.name for n in back.graph] == [n.name for n in digits.graph]
    assert text(digits) == before
    assert qdqtool.compare(digits, back, feeds()).min_sqnr is None


def test_calibrate_once_quantize_often(digits: ir.Model, tmp_path: Path) -> None:
    before = text(digits)
    ranges = api.calibrate(digits, feeds(), method="pow2-nonoverflow")
    assert ranges == api.calibrate(DIGITS, feeds(), method="pow2-nonoverflow")
    assert text(digits) == before
    ranges.write(tmp_path / "r.json")
    made = [qdqtool.quantize(digits, ranges=r).model for r in (ranges, tmp_path / "r.json", str(tmp_path / "r.json"))]
    assert len({text(model) for model in made}) == 1
    assert Ranges.read(tmp_path / "r.json") == ranges


def test_progress_and_warnings() -> None:
    told: list[tuple[str, int, int | None]] = []
    warned: list[str] = []
    told_of = {"progress": lambda *step: told.append(step), "warn": warned.append}
    qdqtool.quantize(DIGITS, data="random:3", preset="xint8", **told_of)
    assert told == [(stage, done, 3) for stage in ("calibrating", "comparing") for done in (1, 2, 3)]
    assert warned == ["random data: ranges and figures say nothing about accuracy"]


def test_what_is_wrong_is_an_error_of_ours(digits: ir.Model) -> None:
    with refusal(UsageError):
        qdqtool.quantize(digits)
    with refusal(UsageError):
        qdqtool.quantize(digits, preset="nope", data=feeds())
    with refusal(UsageError):
        qdqtool.quantize(digits, data=[{"x": np.zeros(1)}])


def test_models_with_external_data_stay_whole(tmp_path: Path) -> None:
    """Quantized in memory, saved elsewhere, and the source still reads."""
    source = qdqtool.load(SAMPLES / "external_data.onnx")
    done = qdqtool.quantize(source, data="random:2")
    qdqtool.save(done.model, tmp_path / "q.onnx")
    assert qdqtool.compare(source, tmp_path / "q.onnx", "random:2").outputs[0].agreement.sqnr_db > 20


def test_the_pass_library_under_our_name() -> None:
    from qdqtool.passes import Change, Keeps, Pass, Pipeline, dump, parse_pipeline, skip, surgeon_pass, verify

    model = qdqtool.load(DIGITS)
    assert verify(model) == []
    assert dump(model).startswith("model ir=10")
    pipeline = parse_pipeline("fold-batch-norm,sort")
    assert isinstance(pipeline, Pipeline)
    assert str(pipeline) == "fold-batch-norm,sort"
    assert all(isinstance(p, Pass) for p in pipeline.passes)
    assert Change("edit", "x").is_skip is False
    assert skip("x", "because").is_skip is True
    assert Keeps("exact").numerics == "exact"
    assert callable(surgeon_pass)
    import qdq_passes

    assert qdq_passes.Pass is Pass


def test_names_are_listed_and_unknown_ones_refused() -> None:
    assert {"load", "save", "run_pipeline", "quantize", "compare", "to_gs", "from_gs"} <= set(qdqtool.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        qdqtool.nope  # noqa: B018


def test_dir_shows_the_verbs_and_imports_none() -> None:
    code = (
        "import sys, qdqtool; print(*dir(qdqtool)); print(*[m for m in sys.modules if m.startswith('qdqtool.verbs')])"
    )
    shown, loaded = process_of(code)
    assert set(qdqtool.__all__) <= set(shown.split())
    assert not loaded


def process_of(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    return done.stdout.split("\n")[:2]


def test_results_show_themselves_in_a_line_and_a_table(tmp_path: Path) -> None:
    made = qdqtool.quantize(DIGITS, tmp_path / "q.onnx", data=CALIB, samples=2, target="vitis_xint8")
    results = [
        made,
        qdqtool.analyze(tmp_path / "q.onnx", target="vitis_xint8"),
        qdqtool.compare(DIGITS, tmp_path / "q.onnx", data=CALIB, samples=2),
        qdqtool.explain(str(tmp_path / "q.onnx"), CALIB, samples=2, worst=1),
        api.check(str(tmp_path / "q.onnx")),
        api.simplify(DIGITS, tmp_path / "s.onnx"),
        qdqtool.export_encodings(tmp_path / "q.onnx", format="qnn"),
    ]
    for result in results:
        line, name = repr(result), type(result).__name__
        assert line.startswith(f"{name}(")
        assert len(line) < 300
        assert f"<caption>{name}</caption>" in result._repr_html_()
    assert "on_npu=19, operators=19" in repr(results[1])
    assert "preset=xint8" in repr(made)


def test_a_share_is_said_as_on_the_command_line(tmp_path: Path) -> None:
    qdqtool.quantize(DIGITS, tmp_path / "q.onnx", data=CALIB, samples=2, target="vitis_xint8")
    assert qdqtool.analyze(tmp_path / "q.onnx", target="vitis_xint8", require_npu="95%").failures == ()
    assert qdqtool.analyze(DIGITS, target="vitis_xint8", require_npu="95%").failures
    with refusal(UsageError):
        qdqtool.analyze(DIGITS, target="vitis_xint8", require_npu="much")

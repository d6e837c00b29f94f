"""The SQNR that a model for a target must reach without being told: exit 1 below 10 dB, a warning below 20."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import qdqtool
from qdqtool.io.models.save import save
from qdqtool.verbs.edits.pipelines import opt
from tests.cases.cli_helpers import cli, run_script
from tests.cases.small_models import model

TARGET = ["--target", "qnn_htp"]


def difference(apart: float, end: str = "y = Sub(a, b)", output: str = "float[4,8] y") -> ir.Model:
    """Two products that are nearly the same, and what lies between them: the less it is, the more of it 8 bits lose."""
    w, other = np.random.default_rng(0).normal(size=(2, 8, 8)).astype(np.float32)
    weights = [", ".join(map(str, each.ravel())) for each in (w, w + apart * other)]
    text = """g (float[4,8] x) => (%s) <float[8,8] w = {%s}, float[8,8] u = {%s}, int64[1] k = {1}>
    { a = MatMul(x, w)  b = MatMul(x, u)  %s }"""
    return model(text % (output, *weights, end))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "data.npz"
    np.savez(path, x=np.random.default_rng(1).normal(size=(16, 8)).astype(np.float32))
    return str(path)


@pytest.mark.parametrize("verb", ["deploy", "quantize"])
def test_below_ten_decibels_the_exit_status_is_one(verb: str, data: str, tmp_path: Path) -> None:
    qdqtool.save(difference(0.01), tmp_path / "m.onnx")
    asked = [verb, tmp_path / "m.onnx", *TARGET, "--data", data, "-o"]
    done = cli(*asked, tmp_path / "out", code=1)
    assert "failed: output y: SQNR " in done.out
    assert (tmp_path / "out").exists(), "there all the same, to look at"
    cli(*asked, tmp_path / "less", "--min-sqnr", "-20")


def test_below_twenty_a_warning_says_what_costs_most(data: str, tmp_path: Path) -> None:
    qdqtool.save(difference(0.05), tmp_path / "m.onnx")
    told: list[str] = []
    done = qdqtool.deploy(
        tmp_path / "m.onnx", tmp_path / "out", target="qnn_htp", data=data, simulate_samples=0, warn=told.append
    )
    sqnr = done.comparison.min_sqnr
    assert sqnr is not None
    assert 10 < sqnr < 20
    (text,) = (text for text in told if text.startswith("output y"))
    assert text.startswith(f"output y: SQNR {sqnr:.1f} dB; ")
    explained = qdqtool.explain(
        tmp_path / "out" / "model.onnx", data=data, float_model=tmp_path / "out" / "float.onnx", samples=2, worst=9
    )
    dearest = max(explained.told, key=lambda one: one.share)
    assert f"; {dearest.record.name} (" in text
    assert f": {100 * dearest.share:.1f} % of the noise; {dearest.cause}: {dearest.why}" in text
    assert done.missed == ()


def test_without_a_target_nothing_is_required(data: str) -> None:
    assert qdqtool.quantize(difference(0.01), data=data, preset="a8w8").missed == ()
    assert qdqtool.quantize(difference(0.01), data=data, preset="a8w8", min_sqnr=10).missed != ()


def test_an_index_is_judged_before_the_operator_that_writes_it(data: str, tmp_path: Path) -> None:
    """Of values of which the best are close, a step turns the index; the bound is that of the values."""
    close = difference(0.5, "d = Sub(a, b)  y = ArgMax<axis=1, keepdims=0>(d)", "int64[4] y")
    done = qdqtool.deploy(close, tmp_path / "out", target="qnn_htp", data=data, simulate_samples=0, require_npu=0)
    assert done.missed == ()
    assert "y (compared at d)" in done.text
    assert done.to_json()["comparison"]["outputs"]["y"]["compared_at"] == "d"
    assert [(t.name, t.node) for t in done.comparison.tensors if t.node] == [
        (t.name, t.node) for t in done.comparison.tensors if t.name != "x"
    ]


def test_what_cannot_be_compared_is_missed(data: str, tmp_path: Path) -> None:
    """An output of which the values say how many there are, and of which there are others than before."""
    end = "d = Sub(a, b)  m = ReduceMax<keepdims=0>(d)  o = Constant<value=float {0.0}>()  i = Constant<value=float {0.01}>()  y = Range(o, m, i)"
    counting = difference(0.5, end, "float[M] y")
    done = qdqtool.deploy(counting, tmp_path / "out", target="qnn_htp", data=data, simulate_samples=0, require_npu=0)
    (text,) = done.missed
    assert text.startswith("compare: output 'y': shape [")


def apart(end: str) -> ir.Model:
    """A Concat of a product and a branch of other size; `end` reads the product too."""
    w = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    text = """g (float[4,8] x) => (float[4,16] c, float[4,8] y) <float[8,8] w = {%s}, float t = {10}>
    { a = MatMul(x, w)  s = Sigmoid(a)  b = Mul(x, t)  c = Concat<axis=1>(s, b)  y = %s }"""
    return model(text % (", ".join(map(str, w.ravel())), end))


def test_a_move_that_costs_a_tensor_two_bits_is_a_warning(data: str, tmp_path: Path) -> None:
    """A scale that a Concat makes that of a branch ten times as large."""
    told: list[str] = []
    done = qdqtool.quantize(apart("Neg(a)"), data=data, target="qnn_htp", warn=told.append)
    (text,) = (text for text in told if " changed scales " in text)
    assert re.fullmatch(
        r"align-concat changed scales at a cost in SQNR: s loses [\d.]+ dB; the scale of s went from uint8, scale 2\^-8, .* to uint8, .*",
        text,
    )
    assert any(one.name == "s" and one.moved[-1].by == "align-concat" for one in done.record.tensors)
    assert text in done.warnings
    ranges, pipeline = tmp_path / "ranges.json", str(done.quantization.plan.pipeline)
    done.quantization.ranges.write(ranges)
    save(apart("Neg(a)"), tmp_path / "float.onnx")
    again = opt(tmp_path / "float.onnx", tmp_path / "again.onnx", text=pipeline, ranges=ranges)
    assert text in again.warnings, "the same passes run by `opt`"


def test_a_move_that_costs_less_is_none(data: str) -> None:
    told: list[str] = []
    qdqtool.quantize(difference(0.5), data=data, target="qnn_htp", warn=told.append)
    assert not [text for text in told if " changed scales " in text]


def test_models_with_integer_ends_are_not_compared_and_a_bound_says_so(data: str, tmp_path: Path) -> None:
    """Also where a target has two forms of a Sigmoid to choose from."""
    gate = model("g (float[4,8] x) => (float[4,8] y) { a = Sigmoid(x) y = Mul(a, x) }")
    done = qdqtool.quantize(gate, data=data, target="vitis_xint8", integer_io=True, min_sqnr=20, warn=lambda text: None)
    assert (done.comparison, len(done.missed)) == (None, 1)
    assert "--min-sqnr 20 is not checked" in done.missed[0]


def test_a_baseline_judges_outputs_that_it_does_not_know(data: str, tmp_path: Path) -> None:
    first = qdqtool.deploy(
        difference(0.5), tmp_path / "a", target="qnn_htp", data=data, simulate_samples=0, require_npu=0
    )
    report = json.loads((tmp_path / "a" / "report.json").read_text())
    for figures in (report["comparison"]["outputs"], report["analysis"].get("outputs", {})):
        figures.pop("y", None)
    (tmp_path / "old.json").write_text(json.dumps(report))
    again = qdqtool.deploy(
        difference(0.5), tmp_path / "b", target="qnn_htp", data=data, simulate_samples=0, require_npu=0, min_sqnr=90,
        baseline=tmp_path / "old.json",
    )  # fmt: skip
    assert not first.missed
    assert any(text.startswith("output y: SQNR") for text in again.missed)


def test_no_bound_is_written_as_none(data: str, tmp_path: Path) -> None:
    """``--min-sqnr -inf`` requires nothing, nor does the script, and JSON has no infinity."""
    qdqtool.save(difference(0.01), tmp_path / "m.onnx")
    done = qdqtool.deploy(
        str(tmp_path / "m.onnx"), tmp_path / "out", target="qnn_htp", data=data, simulate_samples=0, require_npu=0,
        min_sqnr=-math.inf,
    )  # fmt: skip
    assert not done.missed
    assert json.loads((tmp_path / "out" / "report.json").read_text())["bounds"]["min_sqnr"] is None
    assert set(run_script(tmp_path / "out", tmp_path / "again").values()) == {0}

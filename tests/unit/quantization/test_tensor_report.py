"""What `quantize --report` says of each tensor, against figures worked out by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.histogram import Histogram
from qdq_passes.numerics.price import CHUNK, fit_of, fit_of_histogram

from tests.cases.cli_helpers import CALIB, DIGITS, cli

INT8 = Encoding.per_tensor(ir.DataType.INT8, 0.5)


def test_fit_of_a_constant() -> None:
    """On ±0.5·q with q in −128..127: 0.25 rounds to 0 (half to even), 100 is cut to 63.5, −64.2 rounds to −64."""
    fit = fit_of(np.array([0.25, 1.0, 100.0, -64.2], np.float32), INT8)
    noise = 0.25**2 + 36.5**2 + float(np.float32(-64.2) + np.float32(64)) ** 2
    signal = 0.25**2 + 1 + 100**2 + float(np.float32(-64.2)) ** 2
    assert (fit.low, fit.high, fit.clipped) == (float(np.float32(-64.2)), 100.0, 0.25)
    assert fit.sqnr_db == pytest.approx(10 * math.log10(signal / noise), rel=1e-12)  # sums of four in float64


def test_fit_of_what_is_on_the_grid_is_exact() -> None:
    fit = fit_of(np.array([[0.5, -2.0], [0.0, 63.5]], np.float32), INT8)
    assert (fit.clipped, fit.sqnr_db) == (0.0, None)
    assert fit_of(np.zeros((0, 3), np.float32), INT8).sqnr_db is None


def test_fit_along_an_axis() -> None:
    """Row 0 in steps of 1, row 1 in steps of 1/4: only row 0 loses, 0.25² of it."""
    encoding = Encoding(dtype=ir.DataType.INT8, scale=(1.0, 0.25), zero_point=(0, 0), shape=(2,), axis=0)
    fit = fit_of(np.array([[0.25, 3.0], [0.25, 3.0]], np.float32), encoding)
    assert fit.sqnr_db == pytest.approx(10 * math.log10((2 * 0.25**2 + 2 * 9) / 0.25**2), rel=1e-12)


def test_fit_in_pieces_is_that_of_the_whole() -> None:
    array = np.arange(CHUNK + 7, dtype=np.float32) / 1024
    expected = np.clip(np.rint(array / np.float32(0.5)), -128, 127) * np.float32(0.5)
    noise, signal = (float(np.sum(np.square(a, dtype=np.float64))) for a in (array - expected, array))
    fit = fit_of(array, INT8)
    assert fit.clipped == np.count_nonzero(array > 63.75) / array.size
    assert fit.sqnr_db == pytest.approx(10 * math.log10(signal / noise), rel=1e-12)


def test_fit_of_a_histogram_is_that_of_the_values_within_its_bins() -> None:
    """A step is 32 bins wide or more: what is lost inside of a bin is below 0.1 dB at 40 dB (measured 0.01)."""
    values = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    histogram = Histogram()
    histogram.add(values, float(values.min()), float(values.max()))
    encoding = Encoding.per_tensor(ir.DataType.INT8, 2.0**-6)
    found, exact = fit_of_histogram(histogram, encoding), fit_of(values, encoding)
    assert (found.low, found.high) == (exact.low, exact.high)
    assert found.sqnr_db == pytest.approx(exact.sqnr_db, abs=0.1)
    assert found.clipped == pytest.approx(exact.clipped, abs=1e-3)
    assert exact.clipped > 0.04


def test_the_report_has_every_pair(tmp_path: Path) -> None:
    output, report = tmp_path / "q.onnx", tmp_path / "r.json"
    cli("quantize", DIGITS, "--data", CALIB, "--samples", "8", "-o", output, "--report", report)
    data = json.loads(report.read_text())
    assert (data["format"], data["preset"], data["method"]) == ("qdqtool.quantization", "xint8", "pow2-minmse")
    listed = {p["tensor"]: p for p in cli("qdq", "list", output, "--json").json["pairs"]}
    assert {t["tensor"] for t in data["tensors"]} == set(listed)
    for tensor in data["tensors"]:
        assert tensor["position"] == listed[tensor["tensor"]]["position"]
        assert tensor["range"][0] <= tensor["range"][1]
        assert tensor["sqnr_db"] is None or 10 < tensor["sqnr_db"] < 80
        assert 0 <= tensor["clipped"] < 0.05
    assert data["moves"]
    assert all("price" in move["reason"] or "exact" in move["reason"] for move in data["moves"])


@pytest.mark.parametrize("method", ["minmax", "pow2-nonoverflow"])
def test_histograms_are_kept_for_the_report_alone(method: str, tmp_path: Path) -> None:
    """Without --report a method that needs no histogram keeps none, and the noise of activations is not known."""
    command = ("quantize", DIGITS, "--data", CALIB, "--samples", "4", "--method", method, "--json")
    known = {}
    for name, more in (("plain", ()), ("report", ("--report", tmp_path / "r.json"))):
        done = cli(*command, "-o", tmp_path / f"{name}.onnx", *more).json
        known[name] = [t["sqnr_db"] is not None for t in done["tensors"] if t["kind"] == "activation"]
    assert not any(known["plain"])
    assert all(known["report"])
    assert (tmp_path / "plain.onnx").read_bytes() == (tmp_path / "report.onnx").read_bytes()


def test_stored_weights_are_measured_against_the_float_ones(tmp_path: Path) -> None:
    command = ("quantize", DIGITS, "--data", CALIB, "--samples", "4", "--json")
    pair, stored = (
        {
            t["tensor"]: t["sqnr_db"]
            for t in cli(*command, "--weights", w, "-o", tmp_path / f"{w}.onnx").json["tensors"]
            if t["kind"] != "activation"
        }
        for w in ("qdq", "dq")
    )
    assert pair == stored
    assert len(stored) >= 14
    assert all(sqnr is not None for sqnr in stored.values())

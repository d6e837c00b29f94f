"""`qdq convert --target`: files of other tools come onto a target by conversions that keep every bit of the outputs, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdqtool
from tests.cases.cli_helpers import cli, outputs, same_outputs
from tests.cases.quantized_files import quantized_static
from tests.cases.small_models import Array, model
from tests.golden_messages.refusal import told

LAYER = """g (float[1,8,4,4] x) => (float[1,128] y) <float[8,8,1,1] w, float s = {%(scale)s}, %(type)s z = {%(zero)d}, float t = {0.0625},
    int8 n = {0}> {
    [qx] xq = QuantizeLinear(x, s, z) [dx] xd = DequantizeLinear(xq, s, z)
    [qw] wq = QuantizeLinear(w, t, n) [dw] wd = DequantizeLinear(wq, t, n)
    [conv] c = Conv(xd, wd) [qc] cq = QuantizeLinear(c, s, z) [dc] cd = DequantizeLinear(cq, s, z)
    [flat] f = Flatten(cd) [relu] r = Relu(f) [qr] rq = QuantizeLinear(r, s, z) [dr] y = DequantizeLinear(rq, s, z) }"""


def saved(file: Path, **said: Any) -> Path:
    """A layer whose Flatten and Relu have no pair between them."""
    weights: dict[str, Array] = {"w": np.random.default_rng(0).normal(size=(8, 8, 1, 1)).astype(np.float32)}
    qdqtool.save(model(LAYER % {"scale": 0.0625, "type": "uint8", "zero": 128, **said}, weights), file)
    return file


def feed() -> dict[str, Array]:
    return {"x": np.random.default_rng(1).normal(size=(1, 8, 4, 4)).astype(np.float32)}


@pytest.mark.parametrize("target", ["vitis_xint8", "qnn_htp"])
def test_a_chain_is_applied(target: str, tmp_path: Path) -> None:
    """Powers of two with the zero point 128, as Quark writes them; a pair that is not there on the other side of a Flatten."""
    source, made = saved(tmp_path / "m.onnx"), tmp_path / "c.onnx"
    done = cli("qdq", "convert", source, "--target", target, "-o", made)
    assert "insert-qdq" in done.out
    found = qdqtool.analyze(made, target=target)
    assert (found.npu_percent, found.verdict) == (100, "npu-int")
    same_outputs(source, made, feed())


@pytest.mark.parametrize("said", [{"scale": 0.07}, {"zero": 3}])
def test_what_would_round_anew_is_refused(said: dict[str, Any], tmp_path: Path) -> None:
    source, made = saved(tmp_path / "m.onnx", **said), tmp_path / "c.onnx"
    told(cli("qdq", "convert", source, "--target", "vitis_xint8", "-o", made, code=3).error)
    assert not made.exists()


@pytest.mark.newest
def test_operators_on_integers_become_pairs_first(tmp_path: Path) -> None:
    source, made = tmp_path / "m.onnx", tmp_path / "c.onnx"
    text = """g (float[1,8,4,4] x) => (float[1,8,4,4] y) <int8[8,8,1,1] w, float s = {0.0625}, uint8 z = {0}, float t = {0.0625},
        int8 n = {0}> { [qx] xq = QuantizeLinear(x, s, z) [conv] c = QLinearConv(xq, s, z, w, t, n, s, z)
        [again] d = QLinearConv(c, s, z, w, t, n, s, z) [dr] y = DequantizeLinear(d, s, z) }"""
    weights = {"w": np.random.default_rng(0).integers(-100, 100, size=(8, 8, 1, 1)).astype(np.int8)}
    qdqtool.save(model(text, weights), source)
    assert qdqtool.analyze(source, target="qnn_htp").npu_compute_nodes == 0
    done = cli("qdq", "convert", source, "--target", "qnn_htp", "-o", made)
    assert "convert-qoperators" in done.out
    assert qdqtool.analyze(made, target="qnn_htp").npu_percent == 100
    before, after = outputs(source, feed())["y"], outputs(made, feed())["y"]
    assert np.abs(before - after).max() <= (0.0625 if "differ by one step" in done.err else 0)


@pytest.mark.newest
def test_integer_operators_whose_pairs_compute_otherwise_are_refused(tmp_path: Path) -> None:
    quantized_static(tmp_path / "q.onnx")
    done = cli("qdq", "convert", tmp_path / "q.onnx", "--target", "qnn_htp", "-o", tmp_path / "c.onnx", code=None)
    assert done.code == 3 or qdqtool.analyze(tmp_path / "c.onnx", target="qnn_htp").npu_compute_nodes > 5


def test_what_has_nothing_to_convert(tmp_path: Path) -> None:
    floats = tmp_path / "f.onnx"
    qdqtool.save(model("g (float[2] x) => (float[2] y) { y = Relu(x) }"), floats)
    whole = tmp_path / "c.onnx"
    cli("qdq", "convert", saved(tmp_path / "m.onnx"), "--target", "qnn_htp", "-o", whole)
    texts = [
        cli("qdq", "convert", source, "--target", "qnn_htp", *more, "-o", tmp_path / "x.onnx", code=code).error
        for source, more, code in [(floats, (), 3), (whole, (), 3), (whole, ("--dtype", "int8"), 2)]
    ]
    assert len(set(texts)) == 3
    for text in texts:
        told(text)

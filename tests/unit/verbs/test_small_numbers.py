"""What a grid of 8 bits leaves no level keeps its value: small divisors, branches of unlike ranges, inputs that samples leave 0."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import qdqtool
from qdqtool.verbs.work.quantizing import Quantized
from tests.cases.small_models import model

TARGETS = ("vitis_xint8", "qnn_htp", "generic_int8")

#: A normalization whose deviation is an output too, so that nothing fuses it.
DEVIATION = """<ir_version: 10, opset_import: ["" : 17]>
g (float[1,4,8] x) => (float[1,4,8] y, float[1,4,1] s) <float[8,8] w, float two = {2}, float eps = {1e-5}>
{
  [one] a = MatMul(x, w)
  [mean] m = ReduceMean<axes = [-1]>(a)
  [sub] d = Sub(a, m)
  [square] p = Pow(d, two)
  [variance] v = ReduceMean<axes = [-1]>(p)
  [add] e = Add(v, eps)
  [sqrt] s = Sqrt(e)
  [div] n = Div(d, s)
  [two] y = MatMul(n, w)
}"""
#: Rows over their largest element, by its inverse.
INVERSE = """<ir_version: 10, opset_import: ["" : 17]>
g (float[1,4,8] x) => (float[1,4,8] y) <float[8,8] w, float eps = {1e-5}>
{
  [one] a = MatMul(x, w)
  [abs] b = Abs(a)
  [most] s = ReduceMax<axes = [-1], keepdims = 1>(b)
  [max] e = Max(s, eps)
  [inverse] r = Reciprocal(e)
  [mul] n = Mul(a, r)
  [two] y = MatMul(n, w)
}"""


def weighted(text: str, seed: int = 3) -> str:
    """``text`` with random weights ``float[8,8] w``."""
    values = ", ".join(f"{value:.4f}" for value in np.random.default_rng(seed).normal(0, 0.4, 64))
    return text.replace("float[8,8] w", f"float[8,8] w = {{{values}}}")


def quantized(text: str, target: str, path: Path, **samples: np.ndarray) -> tuple[Quantized, list[str]]:
    """The model of ``text`` for ``target``, by ``samples`` [samples, …]; with what was told."""
    np.savez(path / "data.npz", **samples)  # type: ignore[arg-type]
    told: list[str] = []
    return qdqtool.quantize(model(text), data=str(path / "data.npz"), target=target, warn=told.append), told


def least(found: Quantized) -> float:
    """SQNR of the worst output, dB."""
    assert found.comparison is not None
    return found.comparison.min_sqnr or 0.0


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("text", "node"), [(DEVIATION, "div"), (INVERSE, "inverse")])
def test_rows_of_zeros_are_not_divided_by_zero(text: str, node: str, target: str, tmp_path: Path) -> None:
    """The divisor of a row of zeros is √1e-5, or 1e-5, of which 8 bits make 0: the output had -9 to 0 dB."""
    x = np.random.default_rng(4).normal(0, 1, (8, 4, 8)).astype(np.float32)
    x[:, 2:] = 0
    found, told = quantized(weighted(text), target, tmp_path, x=x)
    assert least(found) > 25
    assert any(f"levels, by which {node}" in line for line in told)
    reasons = {each["node"].split("_")[0]: each["reason"] for each in found.to_json()["excluded"]}
    assert reasons[node].startswith("stays float: ")

"""What a grid of 8 bits leaves no level keeps its value: small divisors, branches of unlike ranges, inputs that samples leave 0."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from qdq_passes.numerics.agreement import agreement

import qdqtool
from qdqtool.runtime.session import compute
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


#: A layer of what another gives and zeros before it: `ZEROS` says where they come from, `INPUT` whether from outside.
PREFIXED = """<ir_version: 10, opset_import: ["" : 17]>
g (float[1,4,8] x INPUT) => (float[1,6,8] y) <float[8,8] w ZEROS>
{ [one] a = MatMul(x, w) NODE [join] k = Concat<axis = 1>(c, a) [two] y = MatMul(k, w) }"""
KINDS = {
    "constant": ("", f", float[1,2,8] c = {{{', '.join('0' * 16)}}}", ""),
    "shape": ("", ", int64[3] n = {1, 2, 8}", "[shape] c = ConstantOfShape(n)"),
    "difference": (
        "",
        ", int64[1] i = {0}, int64[1] j = {2}, int64[1] one = {1}",
        "[part] b = Slice(a, i, j, one) [sub] c = Sub(b, b)",
    ),
    "cache": (", float[1,2,8] c", "", ""),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", KINDS)
def test_zeros_have_the_scale_that_they_are_joined_with(kind: str, target: str, tmp_path: Path) -> None:
    """A grid of their own, of step 1, would leave what stands beside them nothing; and a cache is filled later."""
    text = weighted(PREFIXED)
    for hole, said in zip(("INPUT", "ZEROS", "NODE"), KINDS[kind], strict=True):
        text = text.replace(hole, said)
    rng = np.random.default_rng(4)
    x, filled = (rng.normal(0, 0.1, (8, rows, 8)).astype(np.float32) for rows in (4, 2))
    is_cache = kind == "cache"
    found, told = quantized(text, target, tmp_path, x=x, **({"c": np.zeros_like(filled)} if is_cache else {}))
    assert least(found) > 25
    warning = (
        "inputs that are 0 in all samples: c; their ranges, and those of what depends on them, are guesses; "
        "give samples with a filled cache or state"
    )
    assert [line for line in told if "all samples" in line] == ([warning] if is_cache else [])
    if is_cache:
        feeds = [{"x": each[None], "c": c[None]} for each, c in zip(x, filled, strict=True)]
        pairs = zip(compute(model(text), feeds), compute(found.model, feeds), strict=True)
        assert min(agreement(exact["y"], rounded["y"]).sqnr_db or 99 for exact, rounded in pairs) > 20


#: Two branches, one times `GAIN`, that a layer reads together; its weights even the gain out.
UNLIKE = """<ir_version: 10, opset_import: ["" : 17]>
g (float[1,2,4,4] x) => (float[1,2,4,4] y)
<float[2,2,1,1] w = {1.0, 0.5, -0.5, 1.0}, float[2,2,1,1] v = {300.0, 150.0, -150.0, 200.0},
float[2,4,1,1] u = {1.0, -1.0, 0.003, 0.003, 0.5, 1.0, -0.003, 0.003}>
{ [small] a = Conv(x, w) [large] b = Conv(x, v) [join] k = Concat<axis = 1>(a, b) [relu] r = Relu(k) [layer] y = Conv(r, u) }"""


@pytest.mark.parametrize("target", TARGETS)
def test_a_layer_behind_a_concat_of_unlike_ranges_stays_float(target: str, tmp_path: Path) -> None:
    """In one scale for both the small branch has less than a level, and the output 1 to 4 dB."""
    x = np.random.default_rng(4).normal(0, 1, (8, 2, 4, 4)).astype(np.float32)
    found, told = quantized(UNLIKE, target, tmp_path, x=x)
    assert least(found) > 30
    [line] = [line for line in told if "in the one scale of join" in line]
    assert line.startswith("join, relu, layer: stays float: a (up to ")
    assert {"join", "relu", "layer"} <= {each["node"] for each in found.to_json()["excluded"]}


def test_a_concat_of_unlike_ranges_stays_whole_where_the_output_is_good(tmp_path: Path) -> None:
    """What the small branch adds to the output is below its noise: nothing is gained by a float layer."""
    x = np.random.default_rng(4).normal(0, 1, (8, 2, 4, 4)).astype(np.float32)
    found, told = quantized(UNLIKE.replace("0.003", "1.0"), "qnn_htp", tmp_path, x=x)
    assert least(found) > 25
    assert not [line for line in told if "stays float" in line]

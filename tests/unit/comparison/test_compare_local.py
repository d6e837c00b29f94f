"""`compare --mode local`: each node of the quantized model on float inputs, its noise told apart by causes.

The hand-made nets compute on multiples of 1/64 that float32 holds exactly, so that numpy gives every figure to the last digits."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from qdq_passes.errors import UsageError
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.quantize import dequantize, quantize
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool import api
from qdqtool.calibrate.layer_sums import collect_statistics
from qdqtool.calibrate.observer import Range
from qdqtool.calibrate.ranges import Ranges
from qdqtool.comparison import sides
from qdqtool.comparison.local import compare_local
from qdqtool.comparison.report import Causes, LocalComparison, LocalNode
from qdqtool.io.models.provenance import PROVENANCE, Provenance, appended
from tests.cases.cli_helpers import CALIB, DIGITS, SAMPLES, cli, write
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal, told

Array = npt.NDArray[Any]

RNG = np.random.default_rng(3)
W1, W2 = (RNG.integers(-40, 41, (4, 4)).astype(np.float32) / 64 for _ in range(2))
BIAS = (RNG.integers(-40, 41, 4) / 64).astype(np.float32)
FEEDS = [{"x": RNG.integers(-60, 61, (3, 4)).astype(np.float32) / 64} for _ in range(2)]
X = np.concatenate([feed["x"] for feed in FEEDS])

FLOAT = "g (float[N,4] x) => (float[N,4] y) <float[4,4] w1, float[4,4] w2> { h = MatMul(x, w1)  y = MatMul(h, w2) }"
QUANTIZED = """g (float[N,4] x) => (float[N,4] y) <float[4,4] w1, float[4,4] w2, float s = {0.0625}, float sh = {0.125}, int8 z = {0}> {
    xq = QuantizeLinear(x, s, z)   xd = DequantizeLinear(xq, s, z)
    w1q = QuantizeLinear(w1, s, z) w1d = DequantizeLinear(w1q, s, z)
    w2q = QuantizeLinear(w2, s, z) w2d = DequantizeLinear(w2q, s, z)
    h = MatMul(xd, w1d)
    hq = QuantizeLinear(h, sh, z)  hd = DequantizeLinear(hq, sh, z)
    y = MatMul(hd, w2d)
}"""


def float_net() -> ir.Model:
    return model(FLOAT, {"w1": W1, "w2": W2})


def on_grid(x: Array, scale: float) -> Array:
    encoding = Encoding.per_tensor(ir.DataType.INT8, scale)
    return dequantize(quantize(x.astype(np.float32), encoding), encoding)


def noise(y: Array, reference: Array) -> float:
    return float(np.sum((y.astype(np.float64) - reference) ** 2))


def node(found: LocalComparison, name: str) -> LocalNode:
    (only,) = [n for n in found.nodes if name in n.tensors]
    return only


def causes(found: LocalComparison, name: str) -> Causes:
    these = node(found, name).causes
    assert these is not None
    return these


def total(these: Causes) -> float:
    return sum(value for value in these.to_json().values() if value is not None)


def test_every_cause_is_what_numpy_computes() -> None:
    found = compare_local(float_net(), model(QUANTIZED, {"w1": W1, "w2": W2}), FEEDS)
    h, y = X @ W1, X @ W1 @ W2
    first, second = causes(found, "h"), causes(found, "y")
    power = float(np.sum(h.astype(np.float64) ** 2))
    assert first.weight == pytest.approx(noise(X @ on_grid(W1, 0.0625), h) / power, rel=1e-9)
    assert first.activation == pytest.approx(noise(on_grid(X, 0.0625) @ W1, h) / power, rel=1e-9)
    assert first.output == pytest.approx(noise(on_grid(h, 0.125), h) / power, rel=1e-9)
    assert first.bias == first.operator == 0
    assert first.refinement is None
    whole = noise(on_grid(on_grid(X, 0.0625) @ on_grid(W1, 0.0625), 0.125), h) / power
    assert total(first) == pytest.approx(whole, rel=1e-9)
    assert node(found, "h").agreement.sqnr_db == pytest.approx(-10 * np.log10(whole), abs=1e-6)
    power = float(np.sum(y.astype(np.float64) ** 2))
    assert second.activation == pytest.approx(noise(on_grid(h, 0.125) @ W2, y) / power, rel=1e-6), "float h goes in"
    assert second.output == 0, "y has no pair"
    assert found.samples == 2
    assert found.unmatched == ()


def test_a_bias_is_a_cause_of_its_own() -> None:
    text = "g (float[N,4] x) => (float[N,4] y) <float[4,4] w1, float[4] b> { y = Gemm(x, w1, b) }"
    paired = """g (float[N,4] x) => (float[N,4] y) <float[4,4] w1, float[4] b, float s = {0.25}, int8 z = {0}> {
        bq = QuantizeLinear(b, s, z)  bd = DequantizeLinear(bq, s, z)  y = Gemm(x, w1, bd) }"""
    found = compare_local(model(text, {"w1": W1, "b": BIAS}), model(paired, {"w1": W1, "b": BIAS}), FEEDS)
    these, y = causes(found, "y"), X @ W1 + BIAS
    rounded = noise(X @ W1 + on_grid(BIAS, 0.25), y) / float(np.sum(y.astype(np.float64) ** 2))
    assert these.bias == pytest.approx(rounded, rel=1e-9)
    assert these.weight == these.activation == these.output == these.operator == 0
    assert these.rest == pytest.approx(0, abs=1e-12)


STORED = """g (float[N,4] x) => (float[N,4] h) <int8[4,4] w1_quantized, float s = {0.0625}, int8 z = {0}> {
    wd = DequantizeLinear(w1_quantized, s, z)  h = MatMul(x, wd) }"""
ONE = "g (float[N,4] x) => (float[N,4] h) <float[4,4] w1> { h = MatMul(x, w1) }"


@pytest.mark.parametrize("knows", [True, False])
def test_a_stored_weight_is_known_in_float_only_where_the_float_model_has_the_same(knows: bool) -> None:
    integers = quantize(W1, Encoding.per_tensor(ir.DataType.INT8, 0.0625))
    a = model(ONE, {"w1": W1}) if knows else model(ONE.replace("w1", "v1"), {"v1": W1})
    found = compare_local(a, model(STORED, {"w1_quantized": integers}), FEEDS)
    these, h = causes(found, "h"), X @ W1
    assert these.weight == pytest.approx(noise(X @ on_grid(W1, 0.0625), h) / float(np.sum(h**2.0)), rel=1e-6)
    assert these.operator == (0 if knows else None)
    assert total(these) == pytest.approx(these.weight)


def test_a_weight_of_the_same_name_that_is_another_one_is_no_float_form() -> None:
    """A folded BatchNormalization leaves the name of the weight, with other data."""
    integers = quantize(W1 / 2, Encoding.per_tensor(ir.DataType.INT8, 1 / 64))
    stored = STORED.replace("0.0625", "0.015625")
    found = compare_local(model(ONE, {"w1": W1}), model(stored, {"w1_quantized": integers}), FEEDS)
    assert causes(found, "h").operator is None


def test_what_moving_a_scale_cost_is_told_apart_with_ranges() -> None:
    quantized = model(QUANTIZED, {"w1": W1, "w2": W2})  # h at 0.125; its range asks for 2^-6
    reach = float(np.abs(X @ W1).max())
    assert 1 < reach < 127 / 64
    ranges = Ranges(method="minmax", samples=2, tensors={"h": Range(-reach, reach), "x": Range(-0.9375, 0.9375)})
    plain, told = (compare_local(float_net(), quantized, FEEDS, ranges=r) for r in (None, ranges))
    before, after = causes(plain, "h"), causes(told, "h")
    h = X @ W1
    power = float(np.sum(h.astype(np.float64) ** 2))
    at_64 = noise(on_grid(on_grid(X, 1 / 128) @ on_grid(W1, 0.0625), 1 / 64), h) / power
    assert before.refinement is None
    assert after.refinement == pytest.approx(total(before) - at_64, rel=1e-6)
    assert after.refinement > 0
    assert after.output == pytest.approx(noise(on_grid(h, 1 / 64), h) / power, rel=1e-6, abs=1e-12)
    assert total(after) == pytest.approx(total(before)), "they add up to the same noise"


def test_a_relu_that_a_grid_took_the_place_of_is_neither_rounding_nor_another_operator() -> None:
    """onnxruntime's quantizer drops a Relu before uint8 from 0 on: the grid cuts, and what is left of the error is a step."""
    text = "g (float[1,8] x) => (float[1,8] y) <float s = {0.0625}, uint8 z = {0}> { %s }"
    a = model(text % "h = Neg(x)  r = Relu(h)  y = Neg(r)")
    b = model(text % "r = Neg(x)  q = QuantizeLinear(r, s, z)  d = DequantizeLinear(q, s, z)  y = Neg(d)")
    x = np.array([[-3.01, -2, -1.03, -0.5, 0.5, 1, 2, 3]], np.float32)
    node = next(n for n in compare_local(a, b, [{"x": x}]).nodes if n.tensors == ("r",))
    assert node.causes is not None
    assert node.causes.operator == 0
    assert node.causes.output == pytest.approx((0.01**2 + 0.03**2) / (3.01**2 + 2**2 + 1.03**2 + 0.5**2), rel=1e-3)
    assert node.causes.rest == pytest.approx(0, abs=1e-9)
    wide = model(
        text.replace("{0}>", "{128}>")
        % "r = Neg(x)  q = QuantizeLinear(r, s, z)  d = DequantizeLinear(q, s, z)  y = Neg(d)"
    )
    node = next(n for n in compare_local(a, wide, [{"x": x}]).nodes if n.tensors == ("r",))
    assert node.causes is not None
    assert (node.causes.operator or 0) > 0.5, "nothing cuts there"


def test_a_stored_weight_whose_scale_was_moved_is_the_cause_of_its_own_noise_alone(tmp_path: Path) -> None:
    """A constant that a Concat puts on the grid of its other branch: no activation, output or bias errs by it."""
    text = "g (float[1,2] x) => (float[1,4] y) <float[1,2] k = {0.3, 0.4}> { [cat] y = Concat<axis = 1>(x, k) }"
    source, made, ranges = write(tmp_path / "f.onnx", text), tmp_path / "q.onnx", tmp_path / "r.json"
    feeds = {"x": np.array([[64.0, -64.0]], np.float32)}
    np.savez(tmp_path / "d.npz", **feeds)
    data = ("--data", tmp_path / "d.npz")
    cli("quantize", source, "--preset", "8a8w", *data, "-o", made, "--save-ranges", ranges, "-q")
    found = cli("compare", source, made, *data, "--mode", "local", "--ranges", ranges, "--json").json
    (node,) = found["nodes"]
    assert node["causes"]["bias"] == 0
    assert node["causes"]["weight"] > 0


def test_what_another_operator_does_is_neither_weight_nor_rounding() -> None:
    a = model("g (float[N,4] x) => (float[N,4] y) { h = Sigmoid(x)  y = Neg(h) }")
    b = model("g (float[N,4] x) => (float[N,4] y) { h = HardSigmoid<alpha = 0.25>(x)  y = Neg(h) }")
    found = compare_local(a, b, FEEDS)
    h = 1 / (1 + np.exp(-X.astype(np.float64)))
    lines = np.clip(X * 0.25 + 0.5, 0, 1)
    assert causes(found, "h").operator == pytest.approx(noise(lines, h) / np.sum(h * h), rel=1e-4)
    assert node(found, "y").agreement.is_exact, "on the float h"


def test_layers_with_activations_and_what_the_float_model_lacks_are_measured_together() -> None:
    a = model("g (float[N,4] x) => (float[N,4] z) { c = Neg(x)  h = Relu(c)  y = Neg(h)  z = Relu(y) }")
    b = model(
        "g (float[N,4] x) => (float[N,4] z) { [n1] c = Neg(x)  [n2] h = Relu(c)  [n3] t = Abs(h)  [n4] y = Neg(t)  [n5] z = Relu(y) }"
    )
    found = compare_local(a, b, FEEDS)
    assert node(found, "y").nodes == ("n3", "n4")
    assert found.unmatched == (("n3", "the float model has no tensor 't': measured together with n4"),)
    conv = "g (float[1,1,4,4] x) => (float[1,1,4,4] y) <float[1,1,1,1] w = {2.0}> { c = Conv(x, w)  y = Relu(c) }"
    (only,) = compare_local(model(conv), model(conv), [{"x": np.ones((1, 1, 4, 4), np.float32)}]).nodes
    assert only.op == "Conv"
    assert len(only.nodes) == 2


def test_models_without_a_common_tensor_are_refused() -> None:
    other = model("g (float[N,4] x) => (float[N,4] q) { r = Neg(x)  q = Relu(r) }")
    with refusal(UsageError):
        compare_local(float_net(), other, FEEDS)
    with refusal(UsageError):
        compare_local(float_net(), float_net(), [])


def test_large_models_are_cut_into_groups_with_the_same_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    quantized = model(QUANTIZED, {"w1": W1, "w2": W2})
    whole = compare_local(float_net(), quantized, FEEDS)
    monkeypatch.setattr(sides, "GROUP_BYTES", 1)
    ticks: list[tuple[int, int | None]] = []
    apart = compare_local(float_net(), quantized, iter(FEEDS), progress=lambda done, total: ticks.append((done, total)))
    assert apart.to_json() == whole.to_json()
    assert len(ticks) == 4


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ranges]:
    path = tmp_path_factory.mktemp("local") / "digits.onnx"
    done = api.quantize(DIGITS, path, data=CALIB, weights="dq")
    return path, done.quantization.ranges


def test_a_quantized_model_knows_how_it_was_made(digits: tuple[Path, Ranges]) -> None:
    path, ranges = digits
    found = api.compare(DIGITS, path, CALIB, mode="local", ranges=ranges, samples=4)
    assert found.warnings == ()
    assert found.unmatched == ()
    for each in found.nodes:
        assert each.causes is not None
        noise_share = 0.0 if each.agreement.sqnr_db is None else 10 ** (-each.agreement.sqnr_db / 10)
        assert total(each.causes) == pytest.approx(noise_share, rel=1e-6, abs=1e-15)
        assert each.causes.operator == pytest.approx(0, abs=1e-9), (
            "the folded float weights are those of the float model"
        )
    pool = causes(found, next(t for n in found.nodes if n.op == "GlobalAveragePool" for t in n.tensors))
    assert pool.refinement is not None
    assert pool.refinement > pool.output, "its scale was moved for the shift, which costs more than rounding"
    assert [db for n in found.nodes if (db := n.agreement.sqnr_db) is not None] == sorted(
        db for n in found.nodes if (db := n.agreement.sqnr_db) is not None
    )


def test_without_ranges_it_says_what_it_does_not_know(digits: tuple[Path, Ranges]) -> None:
    found = api.compare(DIGITS, digits[0], CALIB, mode="local", samples=2)
    assert found.warnings == ("what refinement cost is not known without @ranges (--ranges)",)
    assert all(n.causes is not None and n.causes.refinement is None for n in found.nodes)


def test_a_folded_batch_normalization_is_no_error(tmp_path: Path) -> None:
    text = """g (float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2,2,1,1] w = {0.5, 0.25, -0.75, 1.0}, float[2] g = {2.0, 0.5},
        float[2] b = {0.1, 0.2}, float[2] m = {0.3, -0.3}, float[2] v = {1.0, 2.0}> {
        c = Conv(x, w)  n = BatchNormalization(c, g, b, m, v)  y = Relu(n) }"""
    source, data = write(tmp_path / "a.onnx", text), "random:4:1"
    for stored in ("qdq", "dq"):
        made = tmp_path / f"{stored}.onnx"
        api.quantize(source, made, data=data, weights="dq" if stored == "dq" else "qdq")
        (only,) = api.compare(source, made, data, mode="local").nodes
        assert only.causes is not None
        assert only.causes.operator == pytest.approx(0, abs=1e-9)
        assert 0 < only.causes.weight < 1e-3


def test_the_detector_shows_whose_fault_it_is(tmp_path: Path) -> None:
    made = tmp_path / "detector.onnx"
    api.quantize(SAMPLES / "detector.onnx", made, data=SAMPLES / "detector_calib.npz")
    found = api.compare(SAMPLES / "detector.onnx", made, SAMPLES / "detector_calib.npz", mode="local", samples=4)
    worst = found.nodes[0]
    assert (worst.name, worst.op) == ("/head/cls/sigmoid", "HardSigmoid")
    assert worst.causes is not None
    assert worst.causes.operator is not None
    assert worst.causes.operator > 0.5 * total(worst.causes)


def test_the_command(digits: tuple[Path, Ranges], tmp_path: Path) -> None:
    ranges = tmp_path / "ranges.json"
    digits[1].write(ranges)
    asked = ("compare", DIGITS, digits[0], "--mode", "local", "--data", CALIB, "--samples", "2")
    data = cli(*asked, "--ranges", ranges, "--json").json
    assert data["mode"] == "local"
    assert {"name", "op", "nodes", "tensors", "sqnr_db", "causes"} <= set(data["nodes"][0])
    assert set(data["nodes"][0]["causes"]) == {
        "weight",
        "activation",
        "output",
        "bias",
        "refinement",
        "operator",
        "rest",
    }
    shown = cli(*asked).out
    assert "node, worst first" in shown
    assert cli(*asked, "--min-sqnr", "90", code=1).code == 1
    stored = tmp_path / "stored.json"
    cli(*asked, "--json-out", stored)
    cli(*asked, "--baseline", stored)
    better = json.loads(stored.read_text())
    better["nodes"][0]["sqnr_db"] += 1
    stored.write_text(json.dumps(better))
    assert "worse than the baseline" in cli(*asked, "--baseline", stored, code=1).out
    told(cli(*asked, "--per-slice", "1", code=2).error)
    told(cli("compare", DIGITS, digits[0], "--data", CALIB, "--ranges", ranges, code=2).error)


def test_neither_model_is_changed() -> None:
    a, b = float_net(), model(QUANTIZED, {"w1": W1, "w2": W2})
    before = [onnx.printer.to_text(ir.to_proto(m)) for m in (a, b)]
    compare_local(a, b, FEEDS)
    assert [onnx.printer.to_text(ir.to_proto(m)) for m in (a, b)] == before


def test_half_precision_counts_as_what_the_operator_does() -> None:
    half = """g (float[N,4] x) => (float[N,4] y) <float16[4,4] w1> { x16 = Cast<to = 10>(x)  h16 = MatMul(x16, w1)  h = Cast<to = 1>(h16)
        y = Neg(h) }"""
    plain = "g (float[N,4] x) => (float[N,4] y) <float[4,4] w1> { h = MatMul(x, w1)  y = Neg(h) }"
    weight = (W1 * 1.01).astype(np.float32)
    found = compare_local(model(plain, {"w1": weight}), model(half, {"w1": weight.astype(np.float16)}), FEEDS)
    these = causes(found, "h")
    assert these.operator is not None
    assert 0 < these.operator < 1e-6
    assert all(value == 0 for value in itertools.islice(these.to_json().values(), 4))


def test_integers_at_the_border_are_rounded_where_they_come_in() -> None:
    b = model(
        """g (int8[N,4] x_q) => (float[N,4] y) <float s = {0.0625}, int8 z = {0}> { x = DequantizeLinear(x_q, s, z)  y = Neg(x) }"""
    )
    a = model("g (float[N,4] x) => (float[N,4] y) { y = Neg(x) }")
    these = causes(compare_local(a, b, FEEDS), "y")
    assert these.activation == pytest.approx(noise(on_grid(X, 0.0625), X) / float(np.sum(X**2.0)), rel=1e-6)


def test_a_smoothed_model_is_compared_with_the_smoothed_float_model() -> None:
    """Smoothing divides what a norm writes by s and multiplies the weights behind by it: a tensor of the same name, other numbers."""
    text = """g (float[4,4] x) => (float[4,4] y) <float[4,4] w1, float[4] g> { [norm] h = LayerNormalization(x, g)  [linear] y = MatMul(h, w1) }"""
    a = model(text, {"w1": W1, "g": np.array([1, 30, 2, 0.5], np.float32)})
    feeds = [{"x": RNG.normal(size=(4, 4)).astype(np.float32)} for _ in range(3)]
    statistics = collect_statistics(a, feeds, wanted=("magnitudes",))
    pipeline = "smooth-activations{statistics=@statistics},annotate-encodings{encodings=@ranges ops=[MatMul]},insert-qdq{weights=qdq}"
    ranges = Ranges(method="minmax", samples=3, tensors={"h": Range(-8.0, 8.0), "y": Range(-40.0, 40.0)})
    done = run_pipeline(a, pipeline, inputs={"ranges": ranges.bound, "statistics": statistics.layers}, copy=True)
    assert any(not change.is_skip for change in done.passes[0].changes), "else nothing was smoothed"
    entry = Provenance(pipeline=pipeline)
    done.model.metadata_props[PROVENANCE] = appended(done.model.metadata_props, entry)
    known = api.compare(a, done.model, feeds, mode="local", ranges=ranges, statistics=statistics)
    assert known.warnings == ()
    assert all(n.causes is not None and n.causes.operator == pytest.approx(0, abs=1e-9) for n in known.nodes)
    blind = api.compare(a, done.model, feeds, mode="local", ranges=ranges)
    assert "it was quantized with @statistics, not at hand" in blind.warnings[0]

"""Lints on data: Concats of unlike branches, functions too steep for their grids, slices that quantize to constants."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from qdq_passes.core.findings import Finding
from qdq_passes.errors import UsageError
from qdq_passes.numerics.encoding import Encoding

from qdqtool import api
from qdqtool.lints.steep_function import steepest
from qdqtool.verbs.check import Check
from qdqtool.verbs.lint import lint
from tests.cases.cli_helpers import CALIB, DIGITS, SAMPLES, cli, write
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal

Array = npt.NDArray[Any]

CONCAT = """g (float[1,2,4] x, float[1,2,4] t) => (float[1,4,4] y) {
    [a] a = Relu(x)  [b] b = Relu(t)  [cat] y = Concat<axis = 1>(a, b) }"""


def rules(found: list[Finding]) -> list[tuple[str, str]]:
    return [(f.rule, f.where) for f in found]


def of(found: list[Finding], rule: str) -> list[Finding]:
    return [f for f in found if f.rule == rule]


def pair(high: float, low: float = 1.0) -> list[dict[str, Array]]:
    """Two branches that reach ``high`` and ``low``, every slice along both axes as far as its branch."""
    x = np.array([[0.0, 0.25, 0.5, 1.0], [1.0, 0.5, 0.25, 0.0]], np.float32)[None]
    return [{"x": x * high, "t": x * low}, {"x": x[..., ::-1] * high, "t": x[..., ::-1] * low}]


@pytest.mark.parametrize(("factor", "finds"), [(1, False), (15, False), (17, True), (1000, True)])
@pytest.mark.parametrize("preset", ["xint8", "a8w8"])
def test_branches_more_than_2_to_the_4_apart(factor: float, finds: bool, preset: str) -> None:
    found = of(lint(model(CONCAT), pair(factor), preset=preset), "concat-range-mismatch")
    assert bool(found) == finds
    for each in found:
        assert each.level == "warning"
        assert each.where == "cat"
        assert each.message.startswith("b (up to 1) and a (up to")
        assert f"are {factor:g} times apart" in each.message or factor == 1000


def test_16_bits_hold_branches_2_to_the_12_apart() -> None:
    assert not of(lint(model(CONCAT), pair(2000), preset="a16w8"), "concat-range-mismatch")
    assert of(lint(model(CONCAT), pair(6000), preset="a16w8"), "concat-range-mismatch")


def test_a_branch_of_zeros_and_an_excluded_concat_lose_nothing() -> None:
    data = pair(100)
    for feed in data:
        feed["t"] = -feed["t"]
    assert not of(lint(model(CONCAT), data), "concat-range-mismatch")
    assert not of(lint(model(CONCAT), pair(100), exclude=["cat"]), "concat-range-mismatch")


def test_a_concat_between_layers_has_no_head_to_cut() -> None:
    text = """g (float[1,2,4,4] x, float[1,2,4,4] t) => (float[1,1,4,4] y) <float[1,4,1,1] w = {1.0, 1.0, 1.0, 1.0}> {
        [cat] c = Concat<axis = 1>(x, t)  [conv] y = Conv(c, w) }"""
    x = np.linspace(0, 1, 32, dtype=np.float32).reshape(1, 2, 4, 4)
    (found,) = of(lint(model(text), [{"x": x * 100, "t": x}]), "concat-range-mismatch")
    assert "--int16 cat" in found.hint


@pytest.mark.parametrize(
    "between",
    [
        "a1 = Reshape(a, flat)  b1 = Reshape(b, flat)",
        "a1 = Transpose<perm = [0,2,1]>(a)  b1 = Transpose<perm = [0,2,1]>(b)",
        "a1 = Slice(a, zero, two, two)  b1 = Slice(b, zero, two, two)",
        "a0 = Concat<axis = 2>(a, a)  a1 = Reshape(a0, flat)  b0 = Concat<axis = 2>(b, b)  b1 = Reshape(b0, flat)",
    ],
    ids=["reshape", "transpose", "slice", "concat"],
)
def test_a_concat_behind_what_moves_values_is_found_once_it_has_pairs(between: str) -> None:
    """The grid of the Concat goes up to the branches: on it the small one is 0 before it gets there."""
    text = f"""g (float[1,2,4] x, float[1,2,4] t) => (float[A,B,C] y)
        <int64[3] flat = {{1, 1, -1}}, int64[1] zero = {{0}}, int64[1] two = {{2}}>
        {{ [a] a = Relu(x)  [b] b = Relu(t)  {between}  [cat] y = Concat<axis = 1>(a1, b1) }}"""
    done = api.quantize(model(text), preset="a8w8", data=pair(1000))
    found = of(lint(done.model, pair(1000)), "concat-range-mismatch")
    assert "cat" in [each.where for each in found]
    assert "(up to 1) and a1 (up to 1e+03) are 1e+03 times apart" in found[-1].message
    assert not of(lint(api.quantize(model(text), preset="a8w8", data=pair(4)).model, pair(4)), "concat-range-mismatch")


def test_quantize_says_so_too() -> None:
    said: list[str] = []
    api.quantize(model(CONCAT), data=pair(100), warn=said.append)
    assert any(text.startswith("cat: b (up to") and "concat-range-mismatch" in text for text in said)
    said.clear()
    api.quantize(model(CONCAT), data=pair(2), warn=said.append)
    assert not any("concat-range-mismatch" in text for text in said)


FUNCTION = "g (float[1,64] x) => (float[1,64] y) {{ [n] h = Neg(x)  [f] y = {op}(h) }}"


def spread(low: float, high: float) -> list[dict[str, Array]]:
    return [{"x": -np.linspace(low, high, 64, dtype=np.float32)[None]}]


@pytest.mark.parametrize(
    ("op", "low", "high", "finds"),
    [
        ("Sigmoid", -8, 8, False),  # 2^-4 · 1/4 / 2^-7 = 2
        ("Sigmoid", -40, 40, True),  # 2^-1 · 1/4 / 2^-7 = 16
        ("Tanh", -2, 2, False),
        ("Tanh", -20, 20, True),
        ("Gelu", -6, 6, False),
        ("Softmax", -4, 4, False),
        ("Softmax", -60, 60, True),
        ("Relu", -60, 60, False),
    ],
)
def test_a_step_of_the_input_against_steps_of_the_output(op: str, low: float, high: float, finds: bool) -> None:
    found = of(lint(model(FUNCTION.format(op=op)), spread(low, high), preset="a8w8"), "steep-function")
    assert [f.where for f in found] == (["f"] if finds else [])
    for each in found:
        assert "--exclude f --isolate" in each.hint
        assert "--int16 in:f" in each.hint


@pytest.mark.parametrize(
    ("op", "low", "high"), [("Exp", 0, 8), ("Sqrt", 0, 100), ("Reciprocal", 0.01, 1), ("Log", 0.001, 10)]
)
def test_functions_that_presets_leave_float_are_found_once_they_have_pairs(op: str, low: float, high: float) -> None:
    y = {"Exp": np.exp, "Sqrt": np.sqrt, "Reciprocal": np.reciprocal, "Log": np.log}[op]
    reach = max(abs(float(y(end))) if end else 0.0 for end in (low, high))
    text = f"""g (float[1,64] x) => (float[1,64] y) <float s = {{{high / 127:.9f}}}, float so = {{{reach / 127:.9f}}}, int8 z = {{0}}> {{
        q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  [f] v = {op}(d)  vq = QuantizeLinear(v, so, z)  y = DequantizeLinear(vq, so, z) }}"""
    (found,) = of(lint(model(text), [{"x": np.linspace(low, high, 64, dtype=np.float32)[None]}]), "steep-function")
    assert found.where == "f"


def test_the_divisor_of_a_division_is_a_function_too() -> None:
    text = """g (float[1,64] x, float[1,64] t) => (float[1,64] y) { [a] a = Neg(x)  [b] b = Neg(t)  [div] y = Div(a, b) }"""
    ones = -np.ones((1, 64), np.float32) + np.linspace(0, 0.5, 64, dtype=np.float32)
    narrow = -np.linspace(0.01, 1, 64, dtype=np.float32)[None]
    assert of(lint(model(text), [{"x": ones, "t": narrow}], preset="a8w8"), "steep-function")
    assert not of(lint(model(text), [{"x": ones, "t": ones}], preset="a8w8"), "steep-function")


def test_the_movement_is_computed_as_it_is_defined() -> None:
    written = Encoding.per_tensor(ir.DataType.INT8, 2**-7)
    moved, at = steepest(lambda x: np.tanh(x), (-8.0, 8.0), 2**-4, written)
    assert moved == pytest.approx((np.tanh(2**-5) - np.tanh(-(2**-5))) * 128, rel=1e-3)
    assert at == pytest.approx(0, abs=0.01)
    clipped, _ = steepest(lambda x: 1000 * x, (-8.0, 8.0), 1.0, written)
    assert clipped == pytest.approx(255, abs=1), "what lies beyond the grid saturates"


TWO_CHANNELS = """g (float[1,2,8,8] x) => (float[1,2,8,8] y) <float[2,2,1,2] w = W> {
    [conv] y = Conv<pads = [0, 0, 0, 1]>(x, w) }"""


def test_an_output_channel_of_a_weight_that_becomes_constant() -> None:
    weak = model(TWO_CHANNELS.replace("W", "{1.0, -0.5, 0.25, 0.75, 0.003, -0.002, 0.001, 0.002}"))
    for data in (None, "random:2:1"):
        (found,) = [f for f in lint(weak, data, preset="a8w8") if f.where == "w"]
        assert found.rule == "dead-slice"
        assert "1 of 2 output channels (axis 0: 1)" in found.message
        assert "--exclude conv" in found.hint
    strong = model(TWO_CHANNELS.replace("W", "{1.0, -0.5, 0.25, 0.75, 0.3, -0.2, 0.1, 0.2}"))
    assert not [f for f in lint(strong, preset="a8w8") if f.where == "w"]
    zero = model(TWO_CHANNELS.replace("W", "{1.0, -0.5, 0.25, 0.75, 0.0, 0.0, 0.0, 0.0}"))
    assert not [f for f in lint(zero, preset="a8w8") if f.where == "w"], "it does not vary in float either"


def test_a_scale_per_channel_lets_none_die() -> None:
    text = """g (float[1,2,8,8] x) => (float[1,2,8,8] y) <float[2,2,1,1] w = {1.0, -0.5, 0.003, -0.002}, float[2] s = {0.008, S}, int8[2] z = {0, 0}> {
        q = QuantizeLinear<axis = 0>(w, s, z)  d = DequantizeLinear<axis = 0>(q, s, z)  [conv] y = Conv(x, d) }"""
    assert rules(lint(model(text.replace("S", "0.00003")))) == []
    assert rules(lint(model(text.replace("S", "0.008")))) == [("dead-slice", "w")]


def test_a_channel_of_an_activation_that_becomes_constant() -> None:
    text = "g (float[1,3,4,4] x) => (float[1,3,4,4] y) { [a] h = Neg(x)  [b] y = Relu(h) }"
    x = np.linspace(-1, 1, 48, dtype=np.float32).reshape(1, 3, 4, 4)
    x[:, 1] = np.linspace(0.0005, 0.003, 16).reshape(4, 4)
    found = of(lint(model(text), [{"x": x}], preset="a8w8"), "dead-slice")
    assert [f.where for f in found] == ["h"], "where it dies, not behind"
    assert "1 of 3 slices (axis 1: 1)" in found[0].message
    assert "--int16 tensor:h" in found[0].hint
    x[:, 1] = 0.001
    assert not of(lint(model(text), [{"x": x}], preset="a8w8"), "dead-slice"), "constant in float"


def test_a_model_with_pairs_is_looked_at_on_its_own_grids() -> None:
    said: list[str] = []
    quantized = api.quantize(model(CONCAT), data=pair(100)).model
    found = lint(quantized, pair(100), preset="a16w8", warn=said.append)
    assert of(found, "concat-range-mismatch")[0].where == "cat"
    assert "its own grids" in said[0]


def test_no_false_alarms() -> None:
    assert lint(DIGITS, CALIB) == []
    assert lint(SAMPLES / "vit_block.onnx", "random:4") == []
    found = lint(SAMPLES / "mobilenet_block.onnx", "random:4")
    assert {f.rule for f in found} <= {"dead-slice"}
    assert len(found) <= 1


def test_the_detector(tmp_path: Path) -> None:
    model_, data = SAMPLES / "detector.onnx", SAMPLES / "detector_calib.npz"
    found = cli("check", model_, "--data", data, "--json").json["findings"]
    named = {f["rule"]: f for f in found}
    assert named["concat-range-mismatch"]["where"] == "/head/concat"
    assert "/head/cls/sigmoid_output_0" in named["concat-range-mismatch"]["message"]
    assert "--exclude after:/box2 --exclude after:/cls2" in named["concat-range-mismatch"]["hint"]
    assert named["steep-function"]["where"] == "/head/cls/sigmoid"
    assert named["dead-slice"]["where"] == "predictions"
    stored = tmp_path / "stored.json"
    cli("check", model_, "--data", data, "--json-out", stored)
    assert len(json.loads(stored.read_text())["findings"]) == len(found)
    cli("check", model_, "--data", data, "--baseline", stored)
    cut = cli("check", model_, "--data", data, "--exclude", "after:/box2", "--exclude", "after:/cls2", "--json").json
    assert cut["findings"] == []


def test_the_command(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", CONCAT)
    np.savez(tmp_path / "d.npz", x=pair(50)[0]["x"], t=pair(50)[0]["t"])
    assert cli("check", path, "--json").json["findings"] == []
    found = cli("check", path, "--data", tmp_path / "d.npz", "--preset", "a8w8", "--json")
    assert found.code == 0
    assert ("concat-range-mismatch", "cat") in [(f["rule"], f["where"]) for f in found.json["findings"]]
    with refusal(UsageError):
        Check("folder", data="random:1")._lints(None)


def test_the_options_named_repair_what_they_are_named_for() -> None:
    """Each hint's ``--int16`` taken: the finding is gone from the quantized model."""
    between = """g (float[1,2,4,4] x, float[1,2,4,4] t) => (float[1,1,4,4] y) <float[1,4,1,1] w = {1.0, 1.0, 1.0, 1.0}> {
        [a] a = Relu(x)  [b] b = Relu(t)  [cat] c = Concat<axis = 1>(a, b)  [conv] y = Conv(c, w) }"""
    x = np.linspace(0, 1, 32, dtype=np.float32).reshape(1, 2, 4, 4)
    dead = "g (float[1,3,4,4] x) => (float[1,3,4,4] y) { [a] h = Neg(x)  [b] r = Relu(h)  [c] y = Mul(r, r) }"
    weak = -np.linspace(-1, 1, 48, dtype=np.float32).reshape(1, 3, 4, 4)
    weak[:, 1] = -np.linspace(0.0005, 0.003, 16).reshape(4, 4)
    cases: list[tuple[str, str, list[dict[str, Array]]]] = [
        ("concat-range-mismatch", between, [{"x": x * 100, "t": x}]),
        (
            "steep-function",
            FUNCTION.replace("y = {op}(h)", "t = {op}(h)  [g] y = Neg(t)").format(op="Tanh"),
            spread(-20, 20),
        ),
        ("dead-slice", dead, [{"x": weak}]),
    ]
    for rule, text, data in cases:
        found = of(lint(model(text), data, preset="a8w8"), rule)[0]
        words = shlex.split(found.hint.replace(",", " "))
        option = words[words.index("--int16") + 1]
        before, after = (
            api.quantize(model(text), data=data, preset="a8w8", int16=each).model for each in ([], [option])
        )
        assert found.where in [f.where for f in of(lint(before, data), rule)], rule
        assert found.where not in [f.where for f in of(lint(after, data), rule)], f"{rule}: --int16 {option}"

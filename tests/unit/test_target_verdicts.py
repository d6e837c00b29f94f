"""Verdicts: which part of a target file decides, and what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from qdq_passes import run_pipeline
from qdq_passes.analysis.units import Unit, units_of
from qdq_passes.core.verdict import TargetRules, Verdict
from qdq_passes.errors import ModelError

from qdqtool.targets.loading import load_target
from qdqtool.targets.target import Target
from tests.unit.small_models import model

ACME = """
description = "Acme"
version = "1"
[limits]
batch = 2
max_rank = 4
[[case]]
when = "float_inputs and op != 'Conv'"
verdict = "npu-float"
rule = "floats"
reason = "{op} reads {x.dtype}"
[[case]]
when = "x.scale > 4"
verdict = "refused"
rule = "coarse"
reason = "the scale {x.scale} is too coarse for {target}"
suggestion = "calibrate {op} again"
[[op]]
types = ["Conv"]
ranks = [4, 4]
constant_inputs = [1]
attributes = {auto_pad = ["NOTSET"], group = [1]}
otherwise = "refused"
suggestion = "use int8 for {op}"
[[op.case]]
when = "attr.strides == [3, 3]"
verdict = "npu-float"
rule = "stride-3"
reason = "a stride of 3"
[[op.scheme]]
activations = ["int8"]
weights = ["int8", "float"]
[[op.scheme]]
activations = ["uint8"]
weights = ["int8"]
compute = "float"
[[op]]
types = ["Relu"]
[[op.scheme]]
activations = ["int8"]
[[op]]
types = ["Erf"]
suggestion = "use Tanh"
[[op]]
types = ["*"]
[[op.case]]
when = "op == 'com.acme::Odd'"
verdict = "npu-int"
rule = "odd"
[[engine]]
name = "array"
types = ["Conv"]
[[engine]]
name = "lanes"
[[engine]]
name = "float lanes"
kind = "float"
"""

CONSTANTS = "float s = {0.5}, float big = {8}, int8 z = {0}, uint8 m = {128}, int16 h = {0}, int8[2,2,1,1] wq = {1, 2, 3, 4}, float[2,2,1,1] wf = {1, 2, 3, 4}"


@pytest.fixture
def acme(tmp_path: Path) -> Target:
    (tmp_path / "acme.toml").write_text(ACME, "utf-8")
    return load_target(tmp_path / "acme.toml")


def unit(
    node: str, *, shape: str = "1,2,4,4", scale: str = "s", zero: str = "z", out: str = "z", dynamic: bool = False
) -> Unit:
    """The unit of ``node``, which reads xd and, as a weight, w and writes u."""
    shape = shape if not dynamic else f"N,{shape}"
    text = f"""g (float[{shape}] x, float[2,2,1,1] free) => (y) <{CONSTANTS}> {{
      xq = QuantizeLinear(x, {scale}, {zero}) xd = DequantizeLinear(xq, {scale}, {zero}) w = DequantizeLinear(wq, s, z)
      {node} yq = QuantizeLinear(u, s, {out}) y = DequantizeLinear(yq, s, {out}) }}"""
    graph = model(text)
    run_pipeline(graph, "infer-shapes")
    return units_of(graph)[0]


def test_a_target_is_the_rules_of_the_passes(acme: Target) -> None:
    rules: TargetRules = acme
    assert (rules.name, rules.policy, rules.boundary, rules.minimum_group) == ("acme", "node", "cpu", 1)
    assert rules.arithmetic.rounding == "half_up"
    assert acme.quantized_ops() == ("Conv", "Relu")


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (unit("u = Conv(xd, w)"), Verdict(kind="npu-int", engine="array", rule="conv")),
        (unit("u = Conv(xd, wf)"), Verdict(kind="npu-int", engine="array", rule="conv")),
        (unit("u = Relu(xd)"), Verdict(kind="npu-int", engine="lanes", rule="relu")),
        (unit("u = com.acme.Odd(xd)"), Verdict(kind="npu-int", engine="lanes", rule="odd")),
        (
            unit("u = Conv(xd, w)", zero="m", out="m"),
            Verdict(
                kind="npu-float", engine="float lanes", rule="conv-float", reason="Conv is computed in floating point"
            ),
        ),
        (
            unit("u = Conv<strides=[3,3]>(xd, w)", zero="m", out="m"),
            Verdict(kind="npu-float", engine="float lanes", rule="stride-3", reason="a stride of 3"),
        ),
        (
            unit("u = Conv<strides=[3,3]>(xd, w)", scale="big"),
            Verdict(
                kind="refused",
                engine="CPU",
                rule="coarse",
                reason="the scale 8 is too coarse for acme",
                suggestion="calibrate Conv again",
            ),
        ),
        (
            unit("u = Relu(x)"),
            Verdict(kind="npu-float", engine="float lanes", rule="floats", reason="Relu reads float"),
        ),
        (
            unit("u = Conv(xd, w)", zero="h", out="h"),
            Verdict(
                kind="refused",
                engine="CPU",
                rule="conv-types",
                reason="Conv with symmetric int16 input is not supported on acme",
                suggestion="use int8 for Conv",
            ),
        ),
        (
            unit("u = Conv(xd, w)", out="h"),
            Verdict(
                kind="refused",
                engine="CPU",
                rule="conv-types",
                reason="Conv on acme: activation is int16, not int8",
                suggestion="use int8 for Conv",
            ),
        ),
        (
            unit("u = Relu(xd)", zero="m"),
            Verdict(
                kind="fallback",
                engine="CPU",
                rule="relu-types",
                reason="Relu with uint8 input is not supported on acme",
            ),
        ),
        (
            unit("u = Erf(xd)"),
            Verdict(
                kind="fallback",
                engine="CPU",
                rule="no-rule",
                reason="Erf is not supported on acme",
                suggestion="use Tanh",
            ),
        ),
        (
            unit("u = Tanh(xd)"),
            Verdict(
                kind="fallback",
                engine="CPU",
                rule="tanh-types",
                reason="Tanh with symmetric int8 input is not supported on acme",
            ),
        ),
        (
            unit("u = Conv(xd, free)"),
            Verdict(
                kind="fallback",
                engine="CPU",
                rule="conv-demand",
                reason="Conv on acme: its input 1 is computed, not a constant",
            ),
        ),
        (
            unit('u = Conv<auto_pad="VALID">(xd, w)'),
            Verdict(
                kind="fallback",
                engine="CPU",
                rule="conv-demand",
                reason="Conv on acme: its auto_pad is VALID, not NOTSET",
            ),
        ),
        (
            unit("u = Conv(xd, w)", shape="1,2,4"),
            Verdict(
                kind="fallback",
                engine="CPU",
                rule="conv-demand",
                reason="Conv on acme: its input has 3 dimensions, not 4",
            ),
        ),
        (
            unit("u = Relu(xd)", shape="1,1,2,4,4"),
            Verdict(
                kind="fallback",
                engine="CPU",
                rule="max-rank",
                reason="one of its tensors has 5 dimensions, more than 4",
            ),
        ),
        (
            unit("u = Relu(xd)", shape="3,4"),
            Verdict(
                kind="fallback",
                engine="CPU",
                rule="batch",
                reason="its input has a batch of 3, more than 2",
                suggestion="qdqtool fix-shapes",
            ),
        ),
        (
            unit("u = Relu(xd)", shape="4", dynamic=True),
            Verdict(
                kind="fallback",
                engine="CPU",
                rule="static-shapes",
                reason="one of its tensors has the shape ?×4",
                suggestion="qdqtool fix-shapes",
            ),
        ),
        (
            unit("v = Conv(xd, w) u = LeakyRelu(v)"),
            Verdict(
                kind="fallback",
                engine="CPU",
                rule="tail",
                reason="LeakyRelu, which belongs to this Conv, is not supported on acme",
            ),
        ),
    ],
    ids=lambda value: value.rule if isinstance(value, Verdict) else "",
)
def test_verdicts(acme: Target, found: Unit, wanted: Verdict) -> None:
    assert acme.judge(found) == wanted


def test_without_a_star_an_operator_without_rule_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "bare.toml").write_text(
        'description = "b"\nversion = "1"\n[[op]]\ntypes = ["Add"]\nsuggestion = "no"\n', "utf-8"
    )
    verdict = load_target(tmp_path / "bare.toml").judge(unit("u = Relu(xd)"))
    assert (verdict.rule, verdict.reason, verdict.engine) == ("no-rule", "Relu is not supported on bare", "CPU")


def test_a_condition_that_compares_what_cannot_be_compared(tmp_path: Path) -> None:
    (tmp_path / "odd.toml").write_text(ACME.replace("x.scale > 4", "x.scale > op"), "utf-8")
    with pytest.raises(ModelError, match=r"'x\.scale > op'"):
        load_target(tmp_path / "odd.toml").judge(unit("u = Relu(xd)"))


SHIFTS = "float a = {0.0625}, float b = {0.00390625}, float c = {32}, int8 z = {0}, int8[2,2,1,1] wq = {1, 2, 3, 4}"


@pytest.mark.parametrize(
    ("node", "scales", "rule", "reason"),
    [
        ("u = Conv(xd, w)", ("a", "a"), "conv", ""),
        (
            "u = Conv(xd, w)",
            ("a", "c"),
            "adjust-shift-cut",
            "vitis_xint8 does not shift between the positions of this Conv: weight + input − output is 17, limits [0, 16]",
        ),
        ("u = Add(xd, w)", ("a", "a"), "add", ""),
        (
            "u = Add(xd, w)",
            ("c", "a"),
            "adjust-shift-read",
            "vitis_xint8 does not shift between the positions of this Add: largest − smallest input is 13, limits [0, 7]",
        ),
        (
            "u = Slice(xd, st, st, st)",
            ("a", "c"),
            "align-slice",
            "vitis_xint8 does not shift between the positions of this Slice: inputs and output at the smallest, -5",
        ),
    ],
)
def test_shifts_out_of_reach(node: str, scales: tuple[str, str], rule: str, reason: str) -> None:
    """Input and output at 2^-4 or 2^5, the weight at 2^-8."""
    text = f"""g (float[1,2,1,1] x) => (float y) <{SHIFTS}, int64[1] st = {{0}}> {{
      xq = QuantizeLinear(x, {scales[0]}, z) xd = DequantizeLinear(xq, {scales[0]}, z) w = DequantizeLinear(wq, b, z)
      {node} yq = QuantizeLinear(u, {scales[1]}, z) y = DequantizeLinear(yq, {scales[1]}, z) }}"""
    [found] = units_of(model(text))
    verdict = load_target("vitis_xint8").judge(found)
    assert (verdict.rule, verdict.reason) == (rule, reason)
    assert verdict.kind == ("npu-int" if not reason else "fallback")
    assert verdict.suggestion == (f"qdqtool opt -p {rule}" if reason else "")


@pytest.mark.parametrize("scale", ["0.5", "0.3"])
def test_vitis_takes_powers_of_two(scale: str) -> None:
    text = f"""g (float[1,2] x) => (float y) <float s = {{{scale}}}, int8 z = {{0}}> {{
      xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) u = Relu(xd)
      yq = QuantizeLinear(u, s, z) y = DequantizeLinear(yq, s, z) }}"""
    [found] = units_of(model(text))
    verdict = load_target("vitis_xint8").judge(found)
    assert (verdict.kind == "npu-int") == (scale == "0.5")
    assert load_target("generic_int8").judge(found).kind == "npu-int"
    assert verdict.kind == "npu-int" or "a scale that is no power of two" in verdict.reason


@pytest.mark.parametrize(
    ("symbolic", "shape", "rule"),
    [
        ("none", "N,4", "static-shapes"),
        ("batch", "N,4", "relu"),
        ("batch", "2,M", "static-shapes"),
        ("batch", "N,M", "static-shapes"),
        ("any", "N,M", "relu"),
    ],
)
def test_symbolic_dimensions(tmp_path: Path, symbolic: str, shape: str, rule: str) -> None:
    (tmp_path / "acme.toml").write_text(ACME.replace("batch = 2", f'batch = 2\nsymbolic = "{symbolic}"'), "utf-8")
    assert load_target(tmp_path / "acme.toml").judge(unit("u = Relu(xd)", shape=shape)).rule == rule


def test_a_float_unit_says_what_is_float() -> None:
    verdict = load_target("generic_int8").judge(unit("u = Relu(x)"))
    assert (verdict.kind, verdict.rule) == ("fallback", "not-quantized")
    assert verdict.reason == "Relu is not quantized: reads x as a float"
    assert "qdqtool quantize" in verdict.suggestion
    verdict = load_target("qnn_htp").judge(unit("u = Relu(x)"))
    assert (verdict.kind, verdict.rule) == ("npu-float", "not-quantized")
    assert verdict.reason == "Relu is computed in float16: reads x as a float"


MOVES = """g (float[1,2,4,4] x) => (float y) <float s = {{0.5}}, float r = {{0.25}}, uint8 z = {{0}}, uint8 m = {{9}}, int64[4] shape = {{1, 2, 2, 8}}> {{
  xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) {node}
  yq = QuantizeLinear(u, {scale}, {zero}) y = DequantizeLinear(yq, {scale}, {zero}) }}"""


@pytest.mark.parametrize(
    ("node", "scale", "zero", "opset", "rule"),
    [
        ("u = Reshape(xd, shape)", "s", "z", 21, "reshape"),
        ("u = Reshape(xd, shape)", "s", "m", 21, "reshape"),
        ("u = Reshape(xd, shape)", "r", "z", 21, "movement-requantizes"),
        ("u = MaxPool<kernel_shape=[2,2]>(xd)", "s", "z", 21, "max-pool"),
        ("u = MaxPool<kernel_shape=[2,2]>(xd)", "s", "z", 22, "max-pool-opset"),
        ("u = MaxPool<kernel_shape=[2,2], dilations=[2,2]>(xd)", "s", "z", 21, "pool-form"),
        ("u = Softmax<axis=1>(xd)", "r", "z", 21, "softmax"),
        ("v = Add(xd, xd) u = Relu(v)", "r", "z", 21, "add"),
        ("v = Add(xd, xd) u = Relu(v)", "r", "m", 21, "activation-without-pair"),
        ("v = Max(xd, xd, xd) u = Relu(v)", "r", "z", 21, "two-inputs"),
    ],
)
def test_what_the_htp_provider_makes_groups_of(node: str, scale: str, zero: str, opset: int, rule: str) -> None:
    """Other forms than the measured ones, by what its source says: movements keep their scale, an activation its range."""
    graph = model(f'<ir_version: 10, opset_import: ["" : {opset}]>\n' + MOVES.format(node=node, scale=scale, zero=zero))
    run_pipeline(graph, "infer-shapes")
    verdicts = [load_target("qnn_htp").judge(found) for found in units_of(graph)]
    assert rule in [verdict.rule for verdict in verdicts]
    for verdict in verdicts:
        assert (verdict.kind == "npu-int") == (not verdict.reason), verdict

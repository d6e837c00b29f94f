"""Verdicts: which part of a target file decides, and what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from qdq_passes import run_pipeline
from qdq_passes.errors import ModelError
from qdq_passes.npu.units.units import Unit, units_of
from qdq_passes.npu.units.verdict import TargetRules, Verdict

from qdqtool.targets.loading import load_target
from qdqtool.targets.target import Target
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal

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
                kind="npu-float",
                engine="float lanes",
                rule="conv-float",
                reason="Conv with uint8 input is computed in floating point",
                suggestion="use int8 for Conv",
            ),
        ),
        (
            unit("u = Conv<strides=[3,3]>(xd, w)", zero="m", out="m"),
            Verdict(
                kind="npu-float",
                engine="float lanes",
                rule="stride-3",
                reason="a stride of 3",
                suggestion="no pass is known that replaces this Conv: write it with what acme takes; or end the model before it: "
                "`qdqtool extract --outputs xd`",
            ),
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
            Verdict(
                kind="npu-float",
                engine="float lanes",
                rule="floats",
                reason="Relu reads float",
                suggestion="no pass is known that replaces this Relu: write it with what acme takes",
            ),
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
                suggestion="convert the encodings: `qdqtool qdq convert --dtype int8 --kinds activation`; or quantize the float model "
                "for this target: `qdqtool quantize --target acme`",
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
                suggestion="quantize the float model for this target: `qdqtool quantize --target acme`",
            ),
        ),
        (
            unit("u = Conv(xd, free)"),
            Verdict(
                kind="fallback",
                engine="CPU",
                rule="conv-demand",
                reason="Conv on acme: its input 1 is computed, not a constant",
                suggestion="no pass is known that makes a constant of a graph input: export the model with its data inside",
            ),
        ),
        (
            unit('u = Conv<auto_pad="VALID">(xd, w)'),
            Verdict(
                kind="fallback",
                engine="CPU",
                rule="conv-demand",
                reason="Conv on acme: its auto_pad is VALID, not NOTSET",
                suggestion="write out what is left to a rule: `qdqtool opt -p explicit-conv-attributes`",
            ),
        ),
        (
            unit("u = Conv(xd, w)", shape="1,2,4"),
            Verdict(
                kind="fallback",
                engine="CPU",
                rule="conv-demand",
                reason="Conv on acme: its input has 3 dimensions, not 4",
                suggestion="no pass is known that mends it: reshape its input where the model is exported",
            ),
        ),
        (
            unit("u = Relu(xd)", shape="1,1,2,4,4"),
            Verdict(
                kind="fallback",
                engine="CPU",
                rule="max-rank",
                reason="xd has 5 dimensions, more than 4",
                suggestion="move it with fewer: `qdqtool opt -p 'limit-rank{rank=4}'` on the float model; or merge dimensions where the "
                "model is exported",
            ),
        ),
        (
            unit("u = Relu(xd)", shape="3,2,4"),
            Verdict(
                kind="fallback",
                engine="CPU",
                rule="batch",
                reason="its input xd has a batch of 3, more than 2",
                suggestion="take 2 at a time: `qdqtool opt -p 'set-batch{size=2}'`, which names the operator where samples meet "
                "and leaves the model then; or export it with 2",
            ),
        ),
        (
            unit("u = Relu(xd)", shape="4", dynamic=True),
            Verdict(
                kind="fallback",
                engine="CPU",
                rule="static-shapes",
                reason="an input, xd, has the shape N×4, which is not static",
                suggestion="make the shapes static: `qdqtool fix-shapes --dim N=1`",
            ),
        ),
        (
            unit("v = Conv(xd, w) u = LeakyRelu(v)"),
            Verdict(
                kind="fallback",
                engine="CPU",
                rule="tail",
                reason="LeakyRelu, which belongs to this Conv, is not supported on acme",
                suggestion="put a pair between them, with the encoding of the one behind: `qdqtool qdq insert --select tensor:v "
                "--scale 0.5 --dtype int8`, so that only the LeakyRelu runs on the CPU; or write it with what acme takes",
            ),
        ),
    ],
    ids=lambda value: value.rule if isinstance(value, Verdict) else "",
)
def test_verdicts(acme: Target, found: Unit, wanted: Verdict) -> None:
    assert acme.judge(found) == wanted


def test_a_default_that_a_caller_may_replace_is_no_constant(acme: Target) -> None:
    """A float weight that is an initializer and a graph input."""
    text = """g (float[1,2,4,4] x, float[2,2,1,1] w) => (y) <float s = {0.5}, int8 z = {0}, float[2,2,1,1] w = {1, 2, 3, 4}> {
      xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) u = Conv(xd, w) yq = QuantizeLinear(u, s, z)
      y = DequantizeLinear(yq, s, z) }"""
    verdict = acme.judge(units_of(model(text))[0])
    assert (verdict.rule, verdict.reason) == ("conv-demand", "Conv on acme: its input 1 is computed, not a constant")
    assert verdict.suggestion == "take its default for good: `qdqtool opt -p remove-initializer-inputs`"


def test_without_a_star_an_operator_without_rule_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "bare.toml").write_text(
        'description = "b"\nversion = "1"\n[[op]]\ntypes = ["Add"]\nsuggestion = "no"\n', "utf-8"
    )
    verdict = load_target(tmp_path / "bare.toml").judge(unit("u = Relu(xd)"))
    assert (verdict.rule, verdict.reason, verdict.engine) == ("no-rule", "Relu is not supported on bare", "CPU")


def test_a_condition_that_compares_what_cannot_be_compared(tmp_path: Path) -> None:
    (tmp_path / "odd.toml").write_text(ACME.replace("x.scale > 4", "x.scale > op"), "utf-8")
    with refusal(ModelError):
        load_target(tmp_path / "odd.toml").judge(unit("u = Relu(xd)"))


@pytest.mark.parametrize(
    ("symbolic", "shape", "rule"),
    [
        ("none", "N,4", "static-shapes"),
        ("batch", "N,4", "relu"),
        ("bound-batch", "N,4", "relu"),
        ("bound-batch", "2,M", "static-shapes"),
        ("batch", "2,M", "static-shapes"),
        ("batch", "N,M", "static-shapes"),
        ("any", "N,M", "relu"),
    ],
)
def test_symbolic_dimensions(tmp_path: Path, symbolic: str, shape: str, rule: str) -> None:
    (tmp_path / "acme.toml").write_text(ACME.replace("batch = 2", f'batch = 2\nsymbolic = "{symbolic}"'), "utf-8")
    assert load_target(tmp_path / "acme.toml").judge(unit("u = Relu(xd)", shape=shape)).rule == rule

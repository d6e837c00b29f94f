"""What `analyze --target apple_ane` says: every rule that a model does not keep, and none of those that passes mended."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from qdq_passes import run_pipeline
from qdq_passes.npu.units.units import units_of

from qdqtool import api
from qdqtool.io.models.load import load
from qdqtool.io.models.save import save
from qdqtool.targets.loading import load_target
from qdqtool.targets.unit_facts import UnitFacts
from tests.cases.cli_helpers import CALIB, DIGITS, cli
from tests.cases.small_models import model
from tests.cases.suggested import complaint

SAMPLES = Path(__file__).parents[3] / "sample_models"
VIT, LLAMA = SAMPLES / "vit_block.onnx", SAMPLES / "tiny_llama.onnx"


def rules_of(source: Path | ir.Model) -> dict[str, set[str]]:
    """Rule → the nodes that do not keep it; of findings the places, without what the simulated NPU lacks."""
    found = api.analyze(source, target="apple_ane", trials=False).to_json()
    rules: dict[str, set[str]] = {}
    for rule in found["rules"]:
        rules.setdefault(rule["rule"], set()).update(rule["nodes"])
        assert rule["reason"]
        assert "`qdqtool " in rule["suggestion"], rule
    for finding in found["findings"]:
        if finding["rule"] != "not-simulated":
            rules.setdefault(finding["rule"], set()).add(finding["where"])
            assert "`qdqtool " in finding["hint"], finding
    return rules


def nodes_of(source: Path | ir.Model, *op_types: str) -> set[str]:
    graph = (load(source) if isinstance(source, Path) else source).graph
    return {node.name or "" for node in graph if node.op_type in op_types}


@cache
def llama() -> dict[str, set[str]]:
    return rules_of(LLAMA)


def test_the_vision_transformer_breaks_these_rules() -> None:
    rules = rules_of(VIT)
    assert set(rules) == {"static-shapes", "linear-layout", "attention-heads"}
    computing = {node.name for node in load(VIT).graph if node.op_type != "Constant"}
    assert rules["static-shapes"] == computing
    assert len(rules["linear-layout"]) == 13  # six a block, and the head
    assert rules["attention-heads"] == nodes_of(VIT, "Softmax")


def test_passes_mend_the_vision_transformer() -> None:
    work = load(VIT)
    run_pipeline(work, 'fix-shapes{dims=["N=1"]},infer-shapes,split-attention-heads,linear-to-conv,infer-shapes')
    assert set(rules_of(work)) == {"padded-tiles"}  # 16 tokens are 32 bytes
    found = api.analyze(work, target="apple_ane")
    assert (found.npu_percent, found.verdict, found.failures) == (100, "npu-float", ())
    assert found.reasons() == []


def test_the_llama_breaks_these_rules() -> None:
    rules = llama()
    assert set(rules) == {
        "static-shapes", "computed-parameter", "max-rank", "no-rule", "linear-layout", "attention-heads", "cache-per-layer",
        "half-angles",
    }  # fmt: skip
    assert rules["no-rule"] == nodes_of(LLAMA, "Pow", "IsNaN")
    assert rules["no-rule"] <= rules["static-shapes"]  # which decides hides neither
    assert rules["attention-heads"] == nodes_of(LLAMA, "Softmax")
    assert len(rules["cache-per-layer"]) == 2
    assert rules["half-angles"] == nodes_of(LLAMA, "Cos", "Sin")


def test_the_naming_profile_mends_the_llama(tmp_path: Path) -> None:
    """Every rule that the dynamic decoder breaks is gone; what one token does not fill is told of the decoding graph."""
    api.split(LLAMA, tmp_path / "ane", naming="ane", prefill=[32], context=[64])
    for path in sorted((tmp_path / "ane").glob("*.onnx")):
        rules = rules_of(path)
        assert set(rules) <= {"padded-tiles"}, path.name
        assert api.analyze(path, target="apple_ane").npu_percent == 100


@pytest.mark.parametrize(
    ("options", "rules"),
    [
        ({"prefill": [32], "context": [48]}, {"cache-sizes", "cache-per-layer", "attention-heads", "linear-layout"}),
        ({"prefill": [2048], "context": [2048]}, {"cache-per-layer", "attention-heads", "attention-queries"}),
    ],
)
def test_other_splits_break_rules_of_the_cache_and_of_attention(
    tmp_path: Path, options: dict[str, Any], rules: set[str]
) -> None:
    api.split(LLAMA, tmp_path / "s", decode=[], **options)
    [path] = (tmp_path / "s").glob("*.onnx")
    found = rules_of(path)
    assert rules <= set(found)
    assert ("cache-sizes" in found) == ("cache-sizes" in rules)


def test_compressed_weights_are_taken_and_16_bit_activations_are_not() -> None:
    """Weights alone: decompressed. 16-bit activations: no type of Core ML's."""
    text = """g (float[1,4,32] x) => (float[1,4,32] y) <float s = {0.5}, uint16 z = {32768}> {
      xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) [act] u = Sigmoid(xd)
      yq = QuantizeLinear(u, s, z) y = DequantizeLinear(yq, s, z) }"""
    work = model(text)
    run_pipeline(work, "give-names,infer-shapes")
    assert rules_of(work)["activation-16-bit"] == {"act"}
    [rule] = [r for r in api.analyze(work, target="apple_ane").to_json()["rules"] if r["rule"] == "activation-16-bit"]
    assert rule["reason"].startswith("Sigmoid reads or writes uint16")
    text = """g (float[1,32,1,32] x) => (float[1,32,1,32] y) <int8[32,32,1,1] wq, float s = {0.5}> {
      w = DequantizeLinear(wq, s) [conv] y = Conv(x, w) }"""
    text = text.replace("wq, float s", f"wq = {{{', '.join(['1'] * 1024)}}}, float s")
    work = model(text)
    run_pipeline(work, "give-names,infer-shapes")
    assert rules_of(work) == {}


U16 = """g (float[1,4,4,32] x) => (float[1,4,4,32] y)
  <float s = {0.5}, uint16 z = {32768}, int8[4,4,1,1] w = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}, int32[4] b = {1,1,1,1}> {
  xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) wd = DequantizeLinear(w, s) bd = DequantizeLinear(b, s)
  [n] u = Conv(xd, wd, bd) yq = QuantizeLinear(u, s, z) y = DequantizeLinear(yq, s, z) }"""


@pytest.mark.parametrize(
    ("target", "text", "rules"),
    [
        (
            "apple_ane", U16,
            {"activation-16-bit": "Conv reads or writes uint16: apple_ane has activations of 8 bits, or float16",
             "conv-types": "Conv with uint16 input is not supported on apple_ane"},
        ),
        (
            "apple_ane", "g (float[1,32] x) => (double[1,32] y) { [n] y = Cast<to=11>(x) }",
            {"element-type": "Cast on double is not supported on apple_ane",
             "cast-types": "Cast on apple_ane: output is double, not float or float16"},
        ),
        (
            "apple_ane", "g (float[1,4,33,33] x) => (float[1,4,11,11] y) { [n] y = MaxPool<kernel_shape=[3,3],strides=[3,3]>(x) }",
            {"large-pool": "MaxPool by 3×3 with strides 3×3 leaves the engine: up to 13, strides up to 2"},
        ),
        (
            "cloud_ai100", U16,
            {"activation-16-bit": "Conv reads or writes integers of 16 bits: it is computed in float16"},
        ),
    ],
)  # fmt: skip
def test_what_decides_does_not_contradict_itself(target: str, text: str, rules: dict[str, str]) -> None:
    """Reasons name the type that is refused, wherever it stands; what computes in float is not refused by another rule."""
    work = model(text)
    run_pipeline(work, "give-names,infer-shapes")
    found = api.analyze(work, target=target).to_json()["rules"]
    assert {rule["rule"]: rule["reason"] for rule in found} == rules
    assert [complaint(rule["suggestion"]) for rule in found] == [None] * len(found)


@pytest.mark.parametrize(("text", "rank"), [("Gemm<alpha = 0.5>(x, w)", 2), ("MatMul(x, w)", 4)])
def test_linear_layers_that_no_pass_makes_convolutions_of_are_named(text: str, rank: int) -> None:
    shape, zeros = ("1,32", "1,1,32,32")[rank == 4], ", ".join(["0"] * 1024)
    work = model(f"g (float[{shape}] x) => (float[{shape}] y) <float[32,32] w = {{{zeros}}}> {{ [n] y = {text} }}")
    run_pipeline(work, "infer-shapes")
    assert rules_of(work) == {"linear-layout": {"n"}}
    [rule] = api.analyze(work, target="apple_ane").to_json()["rules"]
    assert rule["reason"].startswith(f"a linear layer on {rank} dimensions, not plain")


def test_a_bias_of_32_bits_may_be_turned_as_constants_are() -> None:
    """As linear-to-conv writes the parameters of a quantized norm."""
    text = """g (float[1,32,1,32] x) => (float[1,32,1,32] y) <int32[32] b = {zeros}, float s = {0.01}, int64[2] a = {1, 2}> {
      d = DequantizeLinear(b, s) [turn] t = Unsqueeze(d, a) [add] y = Add(x, t) }"""
    work = model(text.replace("{zeros}", "{" + ", ".join(["0"] * 32) + "}"))
    run_pipeline(work, "infer-shapes")
    found = api.analyze(work, target="apple_ane")
    assert (found.npu_percent, found.rules) == (100, ())


def test_one_refused_operator_refuses_the_model() -> None:
    work = model("g (float[1,32] x) => (float[1,32] y) { [a] u = Relu(x) [b] v = Acosh(u) [c] y = Relu(v) }")
    found = api.analyze(work, target="apple_ane").to_json()
    assert {node["name"]: node["rule"] for node in found["nodes"]} == {
        "a": "whole-model",
        "b": "no-rule",
        "c": "whole-model",
    }
    [rule] = found["rules"]
    assert (rule["rule"], rule["nodes"], rule["ops"], rule["verdict"]) == ("no-rule", ("b",), ("Acosh",), "fallback")


def test_a_baseline_knows_the_rules(tmp_path: Path) -> None:
    """What broke a rule in the stored report may break it still; what kept it may not."""
    good, bad, report = tmp_path / "good.onnx", tmp_path / "bad.onnx", tmp_path / "report.json"
    text = "g (float[1,{d}] x) => (float[1,{d}] y) {{ [a] u = Relu(x) [b] v = {op}(u) [c] y = Relu(v) }}"
    save(model(text.format(d=32, op="Acosh")), good)
    done = cli("analyze", good, "--target", "apple_ane", "--json-out", report)
    assert "[no-rule]  b" in done.out
    assert "quantize it first" not in done.out
    assert cli("analyze", good, "--target", "apple_ane", "--baseline", report).code == 0
    work = load(good)
    run_pipeline(work, "infer-shapes")
    for node in work.graph:
        if node.name == "c":
            node.op_type = "Cosh"
    save(work, bad)
    done = cli("analyze", bad, "--target", "apple_ane", "--baseline", report, code=1)
    assert "failed: c: does not keep no-rule, did in the baseline" in done.out
    stored = json.loads(report.read_text("utf-8"))
    stored.pop("rules")  # a report of an older version
    report.write_text(json.dumps(stored), "utf-8")
    assert "does not keep" in cli("analyze", bad, "--target", "apple_ane", "--baseline", report, code=1).out


def test_targets_that_refuse_no_whole_model_list_no_rules() -> None:
    assert api.analyze(VIT, target="generic_int8").rules == ()
    assert api.analyze(VIT, target="cloud_ai100").rules != ()


def test_broken_starts_with_what_decides() -> None:
    work = load(LLAMA)
    run_pipeline(work, "give-names,infer-shapes")
    target = load_target("apple_ane")
    for unit in units_of(work):
        verdict, broken = target.judge(unit), target.broken(unit)
        assert (broken[:1] or [verdict]) == [verdict]
        assert len({v.rule for v in broken}) == len(broken)


@pytest.mark.parametrize(
    ("text", "linear", "heads", "queries"),
    [
        ("[n] y = MatMul(x, w)", True, None, None),
        ("t = Transpose(w) [n] y = MatMul(x, t)", True, None, None),
        ("[n] y = MatMul(x, x)", False, None, None),
        ("[n] p = Softmax(x) y = MatMul(p, v)", False, 4, 8),
        ("[n] p = Softmax(x) m = IsNaN(p) q = Where(m, z, p) y = MatMul(q, v)", False, 4, 8),
        ("[n] y = Softmax(x)", False, None, None),
    ],
)
def test_facts_of_linear_layers_and_attentions(text: str, linear: bool, heads: int | None, queries: int | None) -> None:
    shape = "1,8,8" if "MatMul(x," in text else "1,4,8,8"
    zeros = ", ".join(["0"] * 64)
    work = model(
        f"g (float[{shape}] x, float[{shape}] v) => (float[{shape}] y) <float[8,8] w = {{{zeros}}}, float z = {{0}}> {{ {text} }}"
    )
    run_pipeline(work, "infer-shapes")
    [unit] = [u for u in units_of(work) if u.core.name == "n"]
    facts = UnitFacts(unit, "any")
    assert (facts.linear, facts.heads, facts.queries) == (linear, heads, queries)
    assert facts.y.last_axis_bytes == 32


def test_float_engines_do_not_explain_themselves() -> None:
    """What a target computes in floating point anyhow needs no reason; what it has integers for does."""
    work = model("g (float[1,32] x) => (float[1,32] y) { [n] y = Relu(x) }")
    run_pipeline(work, "infer-shapes")
    [unit] = units_of(work)
    assert load_target("apple_ane").judge(unit).reason == ""
    assert load_target("tpu_like").judge(unit).reason == ""
    verdict = load_target("cloud_ai100").judge(unit)
    assert (verdict.kind, verdict.rule) == ("npu-float", "relu-float")
    assert verdict.reason == "Relu is computed in floating point: reads x as a float, a graph input without a pair"
    assert "`qdqtool quantize --target cloud_ai100`" in verdict.suggestion


@pytest.mark.parametrize("target", ["cloud_ai100", "tpu_like"])
def test_a_quantized_model_is_computed_on_integers(target: str, tmp_path: Path) -> None:
    """The sample of digits, quantized for the target."""
    cli("quantize", DIGITS, "--data", CALIB, "--target", target, "--samples", "4", "-o", tmp_path / "q.onnx")
    found = api.analyze(tmp_path / "q.onnx", target=target)
    kinds = {node.op: node.placement.verdict for node in found.nodes if node.is_compute}
    assert kinds["Conv"] == kinds["Gemm"] == "npu-int"
    assert found.npu_percent == 100


def test_a_tail_that_is_not_taken_keeps_a_float_layer_off(tmp_path: Path) -> None:
    text = """description = "floats"
version = "1"
[[op]]
types = ["Conv"]
scheme = [{activations = ["float"], weights = ["float"], compute = "float"}]
"""
    (tmp_path / "floats.toml").write_text(text, "utf-8")
    work = model(
        "g (float[1,1,4,4] x) => (float[1,1,4,4] y) <float[1,1,1,1] w = {1}> { u = Conv(x, w) y = LeakyRelu(u) }"
    )
    [unit] = units_of(work)
    verdict = load_target(tmp_path / "floats.toml").judge(unit)
    assert (verdict.kind, verdict.rule) == ("fallback", "tail")
    assert "LeakyRelu, which belongs to this Conv, is not supported on floats" in verdict.reason

"""Verdicts of the targets that come along: shifts, scales, floats, and the groups that a provider makes."""

from __future__ import annotations

import pytest
from qdq_passes import run_pipeline
from qdq_passes.npu.units.units import units_of

from qdqtool.npu.analyzing import silent_findings
from qdqtool.targets.loading import load_target
from tests.cases.small_models import model
from tests.unit.targets.test_target_verdicts import unit

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
            "vitis_xint8 does not shift between the positions of this Slice: its inputs and output must stand at one, the smallest, -5",
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
    assert verdict.suggestion.startswith("move the positions: `qdqtool opt -p refine-positions`" if reason else "")


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


def test_a_float_unit_says_what_is_float() -> None:
    verdict = load_target("generic_int8").judge(unit("u = Relu(x)"))
    assert (verdict.kind, verdict.rule) == ("fallback", "not-quantized")
    assert verdict.reason == "Relu is not quantized: reads x as a float, a graph input without a pair"
    assert "`qdqtool quantize --target generic_int8`" in verdict.suggestion
    verdict = load_target("qnn_htp").judge(unit("u = Relu(x)"))
    assert (verdict.kind, verdict.rule) == ("npu-float", "not-quantized")
    assert verdict.reason == "Relu is computed in float16: reads x as a float, a graph input without a pair"


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


#: A Concat at 2^-1 of x and of the DPU's HardSigmoid of it, at 2^-7 at most.
GATED = """g (float[1,2] x) => (float y) <float s = {0.5}, float f = {0.0078125}, int8 z = {0}> {
  xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)
  [gate] h = HardSigmoid<alpha=0.16666667, beta=0.5>(xd) hq = QuantizeLinear(h, f, z) hd = DequantizeLinear(hq, f, z)
  [cat] u = Concat<axis=1>(xd, hd) yq = QuantizeLinear(u, s, z) y = DequantizeLinear(yq, s, z) }"""


def test_positions_that_no_pass_moves_say_what_helps() -> None:
    """Moved to the others, the HardSigmoid would be out of its own reach: `refine-positions` does nothing here."""
    told = (
        "the output of gate before it cannot move so far; leave it float: `qdqtool quantize --target vitis_xint8 --exclude cat`; or "
        "keep Sigmoid, whose output moves and loses bits: `qdqtool quantize --target vitis_xint8 --keep-sigmoid`"
    )
    graph, chip = model(GATED), load_target("vitis_xint8")
    [concat] = [chip.judge(found) for found in units_of(graph) if found.core.name == "cat"]
    assert (concat.kind, concat.rule, concat.suggestion) == ("fallback", "align-concat", told)
    assert [f.hint for f in silent_findings(graph, chip) if f.rule == "shift-out-of-reach"] == [told]


@pytest.mark.parametrize("shape", ["1,4", "N,4"])
def test_a_batch_to_be_bound(shape: str) -> None:
    """The real provider leaves a model with any symbolic dimension to the CPU; the verdicts hold behind `fix-shapes`."""
    text = f"""g (float[{shape}] x) => (float y) <float s = {{0.5}}, int8 z = {{0}}> {{
      xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) u = Relu(xd)
      yq = QuantizeLinear(u, s, z) y = DequantizeLinear(yq, s, z) }}"""
    graph = model(text)
    found = {name: silent_findings(graph, load_target(name)) for name in ("qnn_htp", "qnn_htp_v68", "vitis_xint8")}
    wanted = [("warning", "unbound-batch", "x", "bind it: `qdqtool fix-shapes --dim N=1`")] if "N" in shape else []
    for name in ("qnn_htp", "qnn_htp_v68"):
        assert [(f.level, f.rule, f.where, f.hint) for f in found[name] if f.rule == "unbound-batch"] == wanted
        assert load_target(name).judge(units_of(graph)[0]).kind == "npu-int"
    assert found["vitis_xint8"] == []

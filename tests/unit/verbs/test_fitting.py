"""Operators that a target declines as they stand cost no more than themselves."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from qdq_passes.numerics.agreement import agreement

import qdqtool
from qdqtool.runtime.session import compute
from tests.cases.small_models import model

#: A detector's head: boxes of some ten and scores below one meet in a Concat, which a DPU does not shift for.
HEAD = """<ir_version: 10, opset_import: ["" : 17]>
g (float[1,2,4,4] x) => (float[1,4,4,4] y)
<float[2,2,1,1] w = {1.0, 0.5, -0.5, 1.0}, float[2,2,1,1] v = {9.0, 8.0, 7.0, 6.0}>
{
  [one] a = Conv(x, w)
  [two] b = Relu(a)
  [boxes] c = Conv(b, v)
  [scores] d = Conv(b, w)
  [sigmoid] e = Sigmoid(d)
  [join] y = Concat<axis = 1>(c, e)
}"""


@pytest.fixture
def data(tmp_path: Path) -> str:
    array = np.random.default_rng(3).uniform(-1, 1, (8, 2, 4, 4)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=array)
    return str(tmp_path / "data.npz")


def test_a_head_of_two_scales_leaves_the_network_on_the_npu(data: str) -> None:
    told: list[str] = []
    found = qdqtool.quantize(model(HEAD), data=data, target="vitis_xint8", keep_sigmoid=False, warn=told.append)
    assert found.placed is not None
    assert found.placed.npu_macs_share == 1.0
    assert [line for line in told if "join" in line] == [
        "join: stays float: at join (Concat), which the target does not take as it stands"
    ]
    report = found.to_json()
    assert [e["reason"] for e in report["excluded"] if e["node"] == "join"] == [
        "stays float: at join (Concat), which the target does not take as it stands"
    ]
    assert "join" not in [r["tensor"] for r in report["refused"]], "a node is no value"
    replayed = qdqtool.run_pipeline(
        model(HEAD), str(found.quantization.plan.pipeline), inputs={"ranges": found.quantization.ranges.bound}
    )
    assert [n.name for n in replayed.model.graph] == [n.name for n in found.model.graph]


@pytest.mark.parametrize("target", ["vitis_xint8", "qnn_htp", "generic_int8"])
def test_scores_beside_boxes_in_pixels_stay_float_on_every_target(data: str, target: str) -> None:
    """One scale for boxes up to 254 leaves scores up to 1 not two levels."""
    told: list[str] = []
    far = HEAD.replace("{9.0, 8.0, 7.0, 6.0}", "{90.0, 80.0, 70.0, 60.0}")
    found = qdqtool.quantize(model(far), data=data, target=target, warn=told.append)
    (line,) = [line for line in told if "join" in line]
    assert re.fullmatch(
        r"join: stays float: e \(up to [\d.]+\) would have [\d.]+ levels beside c \(up to \d+\) in the one scale of join",
        line,
    )
    assert [e["reason"] for e in found.to_json()["excluded"] if e["node"] == "join"] == [line.removeprefix("join: ")]
    with np.load(data) as arrays:
        feeds = [{"x": x[None]} for x in arrays["x"]]
    for exact, rounded in zip(compute(model(far), feeds), compute(found.model, feeds), strict=True):
        assert (agreement(exact["y"][:, 2:], rounded["y"][:, 2:]).sqnr_db or 99) > 20, "the scores"


def test_a_target_that_pays_for_single_nodes_is_not_asked_twice(data: str, tmp_path: Path) -> None:
    """Where a refused node costs itself alone, nothing else is left float for it."""
    chip = tmp_path / "chip.toml"
    chip.write_text(
        'extends = "vitis_xint8"\ndescription = "by node"\nversion = "1"\npolicy = "node"\n', encoding="utf-8"
    )
    found = qdqtool.quantize(model(HEAD), data=data, target=chip)
    assert "declined" not in str(found.quantization.plan.pipeline)


#: A gate whose Sigmoid sees what its first layer gives, times `GAIN`.
GATE = """<ir_version: 10, opset_import: ["" : 17]>
g (float[1,2,4,4] x) => (float[1,2,4,4] y)
<float[2,2,1,1] w = {GAIN, 0.5, -0.5, GAIN}, float[2,2,1,1] v = {1.0, -1.0, -1.0, 1.0}>
{ [one] a = Conv(x, w) [gate] b = Sigmoid(a) [two] y = Conv(b, v) }"""


@pytest.mark.parametrize(("gain", "op"), [("2.0", "Sigmoid"), ("6.0", "HardSigmoid")])
def test_the_sigmoid_that_is_closer_is_taken(gain: str, op: str, data: str, tmp_path: Path) -> None:
    """A hard sigmoid is 0.07 away at ±1.4, and exact where a sigmoid is nearly 0 or 1: of ±1, times 6."""
    if op == "HardSigmoid":
        np.savez(data, x=np.sign(np.load(data)["x"]))
    found = qdqtool.deploy(
        model(GATE.replace("GAIN", gain)), data=data, target="vitis_xint8", output=tmp_path / "out", simulate_samples=0
    )
    done, nodes = found.quantized, {node.name: node.op_type for node in found.quantized.model.graph}
    assert nodes["gate"] == op
    figures = [float(text) for text in re.findall(r"([\d.]+) dB", done.quantization.choice)]
    assert (figures[0] > figures[1]) == (op == "Sigmoid")
    assert found.comparison.min_sqnr == pytest.approx(max(figures), abs=0.1)
    assert done.quantization.choice in found.text
    converted = [change.where for change in done.quantization.conversions]
    assert ("gate" in converted) == (op == "HardSigmoid")
    assert all(f"\n{name} " in found.text for name in converted)
    [command] = [line for line in found.commands if line.startswith("qdqtool quantize")]
    assert ("--no-keep-sigmoid" in command) == (op == "HardSigmoid")
    assert ("--keep-sigmoid" in command) == (op == "Sigmoid")


def test_who_says_which_sigmoid_is_not_asked(data: str) -> None:
    for keep, op in ((True, "Sigmoid"), (False, "HardSigmoid")):
        found = qdqtool.quantize(model(GATE.replace("GAIN", "2.0")), data=data, target="vitis_xint8", keep_sigmoid=keep)
        assert [node.op_type for node in found.model.graph if node.name == "gate"] == [op]
        assert not found.quantization.choice

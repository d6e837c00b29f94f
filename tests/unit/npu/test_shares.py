"""How much of a model is on the NPU, what is required, and what keeps the rest off it."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest
from qdq_passes.pipeline.pipeline import run_pipeline

import qdqtool
from qdqtool.npu.analyzing import placed_on
from qdqtool.targets.loading import load_target
from tests.cases.small_models import HEADER, chain, model
from tests.unit.npu.test_analyze import run, saved, target_file


@pytest.mark.parametrize(("share", "code"), [("0.75", 0), ("0.8", 1), ("75", 0), ("1", 1), ("1%", 0), ("100%", 1)])
def test_a_share_is_written_with_a_sign_or_as_a_number(tmp_path: Path, share: str, code: int) -> None:
    file, target = saved(tmp_path, chain("Relu", "Softplus", "Tanh", "Relu")), target_file(tmp_path)
    result = run("analyze", file, "--target", target, "--require-npu", share, "--json")
    assert result.code == code
    assert len(result.json["failures"]) == code
    assert ("Softplus1 (Softplus): Softplus is not supported on tester" in result.err) == bool(code)


CONV = f"""{HEADER}
    g (float[1,2,4,4] x) => (float[1,3,4,4] y) <float s = {{0.5}}, int8 z = {{0}}, int8[3,2,1,1] wq = {{1,2,3,4,5,6}}> {{
      [qx] xq = QuantizeLinear(x, s, z) [dx] xd = DequantizeLinear(xq, s, z) [dw] w = DequantizeLinear(wq, s, z)
      [conv] c = Conv(xd, w) [qc] cq = QuantizeLinear(c, s, z) [dc] cd = DequantizeLinear(cq, s, z)
      [plus] r = Softplus(cd) [qr] rq = QuantizeLinear(r, s, z) [dr] y = DequantizeLinear(rq, s, z)
    }}"""


def test_the_share_is_that_of_the_multiply_accumulates(tmp_path: Path) -> None:
    file, target = saved(tmp_path, CONV), target_file(tmp_path)
    assert run("analyze", file, "--target", target, "--require-npu", "99%").code == 0
    result = run("analyze", file, "--target", target, "--require-npu", "100%", "--json")
    assert (result.code, result.json["npu_macs_share"]) == (1, 1.0)
    assert result.json["failures"] == ["50.0 % of the operators are on the NPU, required are 100 %"]


FOREIGN = f"""{HEADER}
    g (float[1,2,4,4] x) => (float[1,3,4,4] y) <float s = {{0.5}}, int8 z = {{0}}, int8[3,2,1,1] wq = {{1,2,3,4,5,6}}> {{
      [qx] xq = QuantizeLinear(x, s, z) [dx] xd = DequantizeLinear(xq, s, z) [dw] w = DequantizeLinear(wq, s, z)
      [conv] c = Conv(xd, w) [qc] cq = QuantizeLinear(c, s, z) [dc] cd = DequantizeLinear(cq, s, z)
      [mix] y = com.acme.Mix(cd)
    }}"""


def test_a_count_that_nobody_knows_makes_the_share_unknown(tmp_path: Path) -> None:
    file, target = saved(tmp_path, FOREIGN), target_file(tmp_path)
    result = run("analyze", file, "--target", target, "--require-npu", "50%", "--json")
    told = "those of mix (com.acme::Mix) are not counted"
    assert (result.code, result.json["npu_macs_share"], result.json["uncounted"]) == (1, None, ["mix"])
    assert result.json["failures"] == [
        f"an unknown share of the multiply-accumulates is on the NPU, {told}; required are 50 %"
    ]
    assert f"an unknown share of the MACs ({told})" in run("analyze", file, "--target", target).out
    assert run("analyze", file, "--target", target, "--require-npu", "0").code == 0


def test_of_what_the_cpu_runs_alone_no_count_is_missing(tmp_path: Path) -> None:
    """Where the NPU takes nothing that multiplies, its share is 0 whatever the others multiply."""
    file, target = saved(tmp_path, FOREIGN), target_file(tmp_path, takes=("Relu",))
    assert run("analyze", file, "--target", target, "--json").json["npu_macs_share"] == 0.0


RECURRENT = f"""{HEADER}
    g (float[9,2,4] x, float[1,24,4] w, float[1,24,8] r) => (float[1,2,8] h) {{ [gru] , h = GRU<hidden_size: int = 8>(x, w, r) }}"""
LOOP = f"""{HEADER}
    g (float[4,4] x) => (float[4,4] y) <int64 n = {{5}}, bool go = {{1}}> {{
      [loop] y = Loop(n, go, x)<body = b (int64 i, bool c, float[4,4] a) => (bool d, float[4,4] e) {{ d = Identity(c) [mm] e = MatMul(a, a) }}>
    }}"""


def test_recurrent_operators_and_bodies_count_each_step(tmp_path: Path) -> None:
    for text, name, macs in ((RECURRENT, "gru", 9 * 2 * 12 * 24), (LOOP, "mm", 5 * 64)):
        found = run("analyze", saved(tmp_path, text, f"{name}.onnx"), "--target", "vitis_xint8", "--json").json
        [node] = [node for node in found["nodes"] if node["name"] == name]
        assert (node["macs"], node["device"], found["npu_macs_share"]) == (macs, "CPU", 0.0)


def test_a_region_that_one_node_empties_is_said_with_the_node(tmp_path: Path) -> None:
    file, target = saved(tmp_path, CONV), target_file(tmp_path, 'policy = "region"')
    result = run("analyze", file, "--target", target, "--require-npu", "50%")
    assert result.code == 1
    assert "plus (Softplus), and 1 operator connected with it" in result.out.splitlines()[1]
    assert "0.0 % of the multiply-accumulates" in result.err
    [refusal] = run("analyze", file, "--target", target, "--json").json["refusals"]
    assert (refusal["nodes"], refusal["pulled"], refusal["macs"], refusal["rule"]) == (["plus"], 1, 96, "no-rule")


def test_check_has_findings_for_what_is_left_to_the_cpu(tmp_path: Path) -> None:
    file = saved(tmp_path, CONV)

    def found(target: str, model: str = file) -> list[tuple[str, str]]:
        findings = run("check", model, "--target", target, "--no-runtime", "--json").json["findings"]
        return [(f["level"], f["where"]) for f in findings if f["rule"] == "placement"]

    assert found(target_file(tmp_path)) == [("note", "plus")]
    assert found(target_file(tmp_path, 'policy = "region"')) == [("warning", "plus")]
    assert found(target_file(tmp_path, takes=("Softplus",))) == [("warning", "conv")]
    assert found(target_file(tmp_path, takes=("Conv", "Softplus"))) == []
    plain = saved(tmp_path, f"{HEADER} g (float[2] x) => (float[2] y) {{ [r] y = Relu(x) }}", "float.onnx")
    assert found(target_file(tmp_path), plain) == [("warning", "model")]


def test_what_is_placed_is_what_an_analysis_places(tmp_path: Path) -> None:
    """`placed_on` asks less, on the model itself where all is known of it, and finds the same; the model stays as it is."""
    given, chip = model(CONV), load_target(target_file(tmp_path, 'policy = "region"'))
    before = ir.to_proto(given).SerializeToString(deterministic=True)
    placed = placed_on(given, chip)
    whole = qdqtool.analyze(given, target=target_file(tmp_path, 'policy = "region"'), trials=False)
    assert ir.to_proto(given).SerializeToString(deterministic=True) == before
    assert (placed.nodes, placed.refusals, placed.partitions) == (whole.nodes, whole.refusals, len(whole.partitions))
    prepared = run_pipeline(model(CONV), "give-names,infer-shapes", copy=True).model
    assert placed_on(prepared, chip) == placed

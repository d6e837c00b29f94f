"""Advice that is tried: what helps on a copy is told, and works; where nothing does, that is told, also behind a declined operator."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

import qdqtool
from tests.cases.small_models import HEADER, model
from tests.cases.suggested import commands, complaint, follow

CHIP = """description = "c"\nversion = "1"\npolicy = "region"\n[[op]]\ntypes = ["Add", "Concat", "Mul", "Relu", "Reshape"]
[[op.scheme]]\nactivations = ["int8"]\nweights = ["int8"]\n"""
#: A sum that hangs on constants, and a node of which nothing is known.
PARTS = {
    "constants": ("[k] k = Abs(a) [m] m = Sinh(k)", "[n] n = Mul(d, m)"),
    "nobody's": ("", "[n] n = Sinh(d)"),
}


def written(part: str) -> ir.Model:
    before, after = PARTS[part]
    return model(f"""{HEADER}
    g (float[4] x) => (float[4] y) <float s = {{0.5}}, int8 z = {{0}}, float[4] a = {{1, 2, 3, 4}}> {{
      {before} [q] i = QuantizeLinear(x, s, z) [d0] d = DequantizeLinear(i, s, z) {after}
      [q2] j = QuantizeLinear(n, s, z) [d2] e = DequantizeLinear(j, s, z) [r] r = Relu(e)
      [q3] l = QuantizeLinear(r, s, z) [d3] y = DequantizeLinear(l, s, z)
    }}""")


def test_what_helps_on_a_copy_is_told_and_works(tmp_path: Path) -> None:
    (tmp_path / "chip.toml").write_text(CHIP)
    qdqtool.save(written("constants"), tmp_path / "m.onnx")
    found = qdqtool.analyze(tmp_path / "m.onnx", target=tmp_path / "chip.toml")
    [said] = {r.suggestion for r in found.refusals if "m" in r.nodes}
    assert said.endswith("takes it away, tried on a copy")
    assert len(commands(said)) == 1
    after = qdqtool.analyze(follow(said, str(tmp_path / "m.onnx"), str(tmp_path)), target=tmp_path / "chip.toml")
    assert "m" not in {node.name for node in after.nodes}
    plain = qdqtool.analyze(tmp_path / "m.onnx", target=tmp_path / "chip.toml", trials=False)
    assert "no pass is known that replaces this Sinh" in {r.nodes: r.suggestion for r in plain.refusals}["m",]


@pytest.mark.parametrize("trials", [True, False])
def test_that_nothing_helps_is_told_once_it_was_tried(tmp_path: Path, trials: bool) -> None:
    (tmp_path / "chip.toml").write_text(CHIP)
    found = qdqtool.analyze(written("nobody's"), target=tmp_path / "chip.toml", trials=trials)
    [refusal] = found.refusals
    assert (refusal.nodes, refusal.pulled) == (("n",), 1)
    assert refusal.suggestion.startswith("no pass is known that replaces this Sinh")
    assert ("; tried without success: " in refusal.suggestion) == trials
    assert {node.placement.suggestion for node in found.nodes if node.is_compute} == {refusal.suggestion}


#: A target of regions, for which one operator alone is too few.
PAIRED = """description = "c"\nversion = "1"\npolicy = "region"\nminimum_group = 2\n[[op]]\ntypes = ["Conv", "Relu"]
[[op.scheme]]\nactivations = ["int8"]\nweights = ["int8"]\n"""


def advised(body: str, tmp_path: Path) -> dict[str, str]:
    """Node on the CPU → what is advised, of an operator on integers and ``body`` behind its result d."""
    (tmp_path / "chip.toml").write_text(PAIRED)
    text = f"""{HEADER}
    g (float[1,2,4,4] x) => (float[1,2,4,4] y) <float s = {{0.5}}, int8 z = {{0}}, int8[2,2,1,1] wq = {{1,2,3,4}}> {{
      [qx] i = QuantizeLinear(x, s, z) [dx] xd = DequantizeLinear(i, s, z) [dw] w = DequantizeLinear(wq, s, z)
      [c] c = Conv(xd, w) [qc] j = QuantizeLinear(c, s, z) [dc] d = DequantizeLinear(j, s, z) {body} }}"""
    found = qdqtool.analyze(model(text), target=tmp_path / "chip.toml", trials=False)
    return {n.name: n.placement.suggestion for n in found.nodes if n.is_compute and not n.is_npu}


@pytest.mark.parametrize("follows", ["Relu", "Conv"])
def test_nothing_is_advised_behind_a_declined_operator_unless_a_layer_follows(follows: str, tmp_path: Path) -> None:
    last = "Conv(r, w)" if follows == "Conv" else "Relu(r)"
    said = advised(f"[e] e = Sinh(d) [r] r = Relu(e) [last] y = {last}", tmp_path)
    expected = "nothing to mend: it stays float behind e (Sinh), which the NPU does not take, and no layer follows"
    assert (said["r"] == expected) == (said["last"] == expected) == (follows == "Relu")
    assert complaint(expected) is None
    assert said["e"].startswith("no pass is known that replaces this Sinh")
    assert len(commands(said["r"])) == (0 if follows == "Relu" else 3)


def test_a_group_that_is_too_small_is_not_advised_to_end_before_its_neighbour(tmp_path: Path) -> None:
    """It would still be too small."""
    said = advised("[e] y = Sinh(d)", tmp_path)
    assert commands(said["e"]) == ["qdqtool extract --outputs d"]
    assert said["c"] == (
        "mend e (Sinh) beside it, so that they run together: no pass is known that replaces this Sinh: write it with what chip takes"
    )

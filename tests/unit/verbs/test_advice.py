"""Advice is carried out on a copy before it is given: what fails is not said, what cannot be tried says so."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from qdq_passes.pipeline.pipeline import run_pipeline

import qdqtool
from qdqtool.verbs.advice.commands import completed, ways_of
from qdqtool.verbs.check import Check
from tests.cases.cli_helpers import cli, write
from tests.cases.quantized_files import quantized_static
from tests.cases.small_models import model

CONV = """g (float[1,8,4,4] x) => (float[1,8,4,4] y) <float[8,8,1,1] w, float s = {0.5}, %s z = {%d}, float t = {0.25}, int8 n = {0}> {
    [qx] xq = QuantizeLinear(x, s, z) [dx] xd = DequantizeLinear(xq, s, z)
    [qw] wq = QuantizeLinear(w, t, n) [dw] wd = DequantizeLinear(wq, t, n)
    [conv] c = Conv(xd, wd) [qc] cq = QuantizeLinear(c, s, z) [dc] cd = DequantizeLinear(cq, s, z)
    [relu] r = Relu(cd) [qr] rq = QuantizeLinear(r, s, z) [dr] y = DequantizeLinear(rq, s, z) }"""


def conv(dtype: str = "uint8", zero: int = 3) -> str:
    return CONV % (dtype, zero)


def weights() -> dict[str, np.ndarray]:
    return {"w": np.random.default_rng(0).normal(size=(8, 8, 1, 1)).astype(np.float32)}


def commands(text: str) -> list[str]:
    return re.findall("`(qdqtool [^`]*)`", text)


def test_ways_of_a_suggestion() -> None:
    part = "convert: `qdqtool qdq convert --dtype int8`, then `qdqtool opt -p sort`, or `qdqtool qdq remove --all`"
    assert [way.commands for way in ways_of(part)] == [
        ("qdqtool qdq convert --dtype int8", "qdqtool opt -p sort"), ("qdqtool qdq remove --all",)
    ]  # fmt: skip
    assert completed(part, "a b.onnx") == (
        "convert: `qdqtool qdq convert 'a b.onnx' -o mended.onnx --dtype int8`, then `qdqtool opt mended.onnx -o mended_2.onnx "
        "-p sort`, or `qdqtool qdq remove 'a b.onnx' -o mended.onnx --all`"
    )
    assert completed(completed(part, "a b.onnx"), "c.onnx") == completed(part, "a b.onnx")


def test_what_needs_the_float_model_is_not_tried() -> None:
    found = qdqtool.analyze(model(conv(), weights()), target="vitis_xint8")
    said = {r.rule: r.suggestion for r in found.refusals}["conv-types"]
    assert "`qdqtool quantize FLOAT.onnx --target vitis_xint8 --data DATA -o mended.onnx` (not tried)" in said


@pytest.mark.parametrize("target", ["vitis_xint8", "qnn_htp", "generic_int8"])
def test_every_command_that_is_not_marked_does_what_is_said(target: str, tmp_path: Path) -> None:
    """uint8 with a zero point that is not the middle, on a target that wants symmetric ones too: what is told as it stands helps."""
    file = write(tmp_path / "m.onnx", "g () => (float y) { y = Constant<value_float = 1.0>() }")
    qdqtool.save(model(conv("int16", 0), weights()), file, overwrite=True)
    found = qdqtool.analyze(file, target=target)
    for refusal in found.refusals:
        for part in refusal.suggestion.split("; or "):
            if "(not tried)" in part or "(a first step" in part or not commands(part):
                continue
            made = file
            for command in commands(part):
                words = shlex.split(command)[1:]
                assert words[words.index("-o") - 1] in (made, str(made), Path(made).name)
                output = str(tmp_path / f"{len(list(tmp_path.iterdir()))}.onnx")
                words[words.index("-o") - 1], words[words.index("-o") + 1] = str(made), output
                cli(*words)
                made = output
            after = qdqtool.analyze(made, target=target, trials=False)
            assert refusal.nodes[0] not in after.on_cpu


@pytest.mark.newest
def test_integer_operators_are_a_first_step_where_the_scales_do_not_fit(tmp_path: Path) -> None:
    quantized_static(tmp_path / "q.onnx")
    said = {r.ops[0]: r.suggestion for r in qdqtool.analyze(tmp_path / "q.onnx", target="vitis_xint8").refusals}[
        "QLinearConv"
    ]
    assert "--qoperators` (a first step: then Conv" in said
    said = qdqtool.analyze(tmp_path / "q.onnx", target="generic_int8").refusals[0].suggestion
    assert said.endswith("--qoperators`")


def test_a_pass_that_does_not_help_is_not_named(tmp_path: Path) -> None:
    """fuse-gelu, of an Erf that is in no Gelu."""
    target = tmp_path / "relus.toml"
    scheme = '[[op]]\ntypes = ["Relu"]\n[[op.scheme]]\nactivations = ["int8"]\n'
    target.write_text(f'description = "Relus alone"\nversion = "1"\n{scheme}')
    text = """g (float[1,4] x) => (float[1,4] y) <float s = {0.5}, int8 z = {0}> {
        [q] i = QuantizeLinear(x, s, z) [d] a = DequantizeLinear(i, s, z) [erf] e = Erf(a)
        [q1] k = QuantizeLinear(e, s, z) [d1] b = DequantizeLinear(k, s, z) [relu] r = Relu(b)
        [q3] j = QuantizeLinear(r, s, z) [d3] y = DequantizeLinear(j, s, z) }"""
    raw, found = (qdqtool.analyze(model(text), target=target, trials=trials) for trials in (False, True))
    assert "fuse-gelu" in next(r.suggestion for r in raw.refusals if "erf" in r.nodes)
    said = next(r.suggestion for r in found.refusals if "erf" in r.nodes)
    assert not commands(said)
    assert said.startswith("no pass is known that puts it on relus")
    assert said == next(node.placement.suggestion for node in found.nodes if node.name == "erf")


APART = """g (float[1,4,4,4] x) => (float[1,8,4,4] y) <float[4,4,1,1] a, float[4,4,1,1] b, float[8,8,1,1] c> {
    [big] p = Conv(x, a) [small] q = Conv(x, b) [cat] t = Concat<axis = 1>(p, q) [last] y = Conv(t, c) }"""


@pytest.mark.parametrize(("target", "takes"), [("qnn_htp", True), ("vitis_xint8", False), ("generic_int8", False)])
def test_wider_grids_of_a_concat_are_advised_where_the_target_takes_them(
    target: str, takes: bool, tmp_path: Path
) -> None:
    rng, file = np.random.default_rng(1), tmp_path / "m.onnx"
    shapes = {"a": (4, 4, 1, 1), "b": (4, 4, 1, 1), "c": (8, 8, 1, 1)}
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    arrays["b"] /= 200
    qdqtool.save(model(APART, arrays), file)
    told = cli("quantize", file, "--target", target, "--data", "random:4", "-o", tmp_path / "q.onnx").err
    assert "concat-range-mismatch" in told
    assert ("quantize with --int16 cat, which" in told) is takes
    assert ("takes neither --int16 cat nor" in told) is not takes
    if takes:
        made = cli(
            "quantize", file, "--target", target, "--data", "random:4", "-o", tmp_path / "w.onnx", "--int16", "cat"
        )
        assert "concat-range-mismatch" not in made.err
        assert qdqtool.analyze(tmp_path / "w.onnx", target=target).npu_percent == 100


GATHERED = """g (float[1,8,4,4] x) => (float[1,128] y) <float s = {0.5}, float r = {0.3}, int8 z = {0}, int64[2] to = {1, 128}> {
    [q] i = QuantizeLinear(x, s, z) [d] a = DequantizeLinear(i, s, z) [move] m = Reshape(a, to)
    [q2] j = QuantizeLinear(m, r, z) [d2] y = DequantizeLinear(j, r, z) }"""


@pytest.mark.parametrize("target", [None, "generic_int8"])
def test_hints_of_findings_are_tried_too(target: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A requantizing Reshape: what its hint says takes the finding away; a command that does not is not said."""
    qdqtool.save(model(GATHERED), tmp_path / "m.onnx")
    qdqtool.save(model(GATHERED.replace("Reshape(a, to)", "Reshape(a, to) [r] n = Relu(m)")), tmp_path / "n.onnx")

    def said() -> str:
        found = Check(str(tmp_path / "m.onnx"), target=target).run().findings
        return next(f["hint"] for f in found if f["rule"] == "movement-requantizes")

    assert said() == (
        f"give both one encoding: `qdqtool qdq set {tmp_path / 'm.onnx'} -o mended.onnx --select tensor:m --scale 0.5 "
        "--zero-point 0 --dtype int8`"
    )
    words = shlex.split(commands(said())[0])[1:]
    cli(*[str(tmp_path / word) if word == "mended.onnx" else word for word in words])
    after = Check(str(tmp_path / "mended.onnx"), target=target).run().findings
    assert "movement-requantizes" not in {f["rule"] for f in after}
    monkeypatch.setattr("qdqtool.verbs.advice.trying.run_way", lambda *_: True)
    assert said() == "no pass is known that mends it (known ones fail on a copy)"
    assert (
        Check(str(tmp_path / "m.onnx"), target=target, trials=False).run().findings[0]["hint"].endswith("(not tried)")
    )


def test_sizes_that_only_a_user_knows_are_not_tried() -> None:
    text = "g (float[batch,length] x) => (float[batch,length] y) { [a] y = Relu(x) }"
    found = qdqtool.analyze(model(text), target="qnn_htp")
    said = {node.placement.suggestion for node in found.nodes}
    assert any("--dim length=N` (not tried)" in text for text in said)


def test_ends_of_integers_are_as_it_is_said(tmp_path: Path) -> None:
    """Pairs at the ends of the graph: their commands are not tried at run time, as they work on every model."""
    file = tmp_path / "m.onnx"
    qdqtool.save(model(conv("int8", 0), weights()), file)
    found = qdqtool.analyze(file, target="generic_int8")
    ends = {
        n.placement.rule: commands(n.placement.suggestion) for n in found.nodes if n.kind == "pair" and not n.is_npu
    }
    assert set(ends) == {"graph-input", "graph-output"}
    for rule, (extract, inside) in ends.items():
        words = shlex.split(extract)[1:]
        words[words.index("-o") + 1] = str(tmp_path / f"{rule}.onnx")
        cli(*words)
        after = qdqtool.analyze(tmp_path / f"{rule}.onnx", target="generic_int8")
        assert rule not in {n.placement.rule for n in after.nodes}
        assert cli(*shlex.split(inside)[1:]).out


def test_a_model_that_was_quantized_just_now_is_not_to_be_quantized(tmp_path: Path) -> None:
    source = model("g (float[1,4] x) => (float[1,4] y) { [a] u = Relu(x) [b] v = Sinh(u) [c] y = Relu(v) }")
    run_pipeline(source, "infer-shapes")
    made = qdqtool.deploy(source, tmp_path / "out", target="vitis_xint8", data="random:2", require_npu=0)
    texts = [node.placement.suggestion for node in made.analysis.nodes]
    assert any(texts)
    assert not [text for text in texts if "qdqtool quantize" in text]
    assert str(tmp_path / "out" / "model.onnx") in made.text


def test_nothing_is_tried_nor_written_down_where_everything_is_on_integers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    qdqtool.save(model(conv("int8", 0), weights()), tmp_path / "m.onnx")

    def refused(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("qdqtool.verbs.advice.trying.run_way", refused)
    monkeypatch.setattr("qdqtool.npu.report.Analysis.to_json", refused)
    told = cli("analyze", tmp_path / "m.onnx", "--target", "generic_int8")
    assert "2 of 2 operators on the NPU" in told.out

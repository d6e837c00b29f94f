"""`compile` and `lower` on the command line, and what `check` and `inspect` say of their results."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdqtool.io.load import load
from tests.unit.cli_helpers import cli, write
from tests.unit.lowering import operators

MODEL = """g (float[1,2,4,4] x) => (float[1,2,4,4] y)
  <float s = {0.5}, int8 z = {0}, int8[2,2,1,1] w = {1, 2, 3, 4}, int64 axis = {1}>
{ [qx] xq = QuantizeLinear(x, s, z) [dx] xd = DequantizeLinear(xq, s, z) [dw] wd = DequantizeLinear(w, s, z)
  [conv] a = Conv(xd, wd) [qa] aq = QuantizeLinear(a, s, z) [da] ad = DequantizeLinear(aq, s, z)
  [cum] y = CumSum(ad, axis) }"""


@pytest.fixture
def source(tmp_path: Path) -> str:
    return write(tmp_path / "m.onnx", MODEL)


def test_compile(source: str, tmp_path: Path) -> None:
    made = tmp_path / "new" / "c.onnx"
    done = cli("compile", source, "--target", "generic_int8", "-o", made)
    assert "nodes on the NPU  1 of 2" in done.out
    assert "CumSum" in done.out
    assert done.out.endswith(f"wrote {made}\n")
    assert operators(load(made)) == ["QuantizeLinear", "com.microsoft::EPContext", "DequantizeLinear", "CumSum"]
    assert cli("compile", source, "--target", "generic_int8", "-o", made, code=2).error.startswith(f"{made}: exists")


def test_json(source: str, tmp_path: Path) -> None:
    made = tmp_path / "c.onnx"
    found = cli("compile", source, "--target", "generic_int8", "-o", made, "--json").json
    assert {key: found[key] for key in ("target", "npu_nodes", "cpu_nodes", "output", "files")} == {
        "target": "generic_int8", "npu_nodes": 1, "cpu_nodes": 1, "output": str(made), "files": [str(made)],
    }  # fmt: skip
    assert [(r["nodes"], bool(r["rule"]), "CumSum" in r["reason"]) for r in found["reasons"]] == [(1, True, True)]
    (part,) = found["partitions"]
    assert (part["name"], part["nodes"], part["inputs"], part["outputs"]) == ("npu_0", 1, ["xq"], ["aq"])
    assert 0 < part["bytes"] < made.stat().st_size


def test_boundary_and_files_beside(source: str, tmp_path: Path) -> None:
    made = tmp_path / "c.onnx"
    found = cli(
        "compile", source, "--target", "generic_int8", "-o", made, "--boundary", "npu", "--no-embed", "--json"
    ).json
    assert operators(load(made))[0] == "com.microsoft::EPContext"
    assert found["files"][0] == str(made)
    assert Path(found["files"][1]).read_bytes().startswith(b"QDQNPU1\n")


def test_lower(source: str, tmp_path: Path) -> None:
    made = tmp_path / "l.onnx"
    done = cli("lower", source, "--target", "generic_int8", "-o", made)
    assert "nodes on the NPU  1 of 2" in done.out
    assert operators(load(made)) == ["QuantizeLinear", "ai.qdqtool::Conv", "DequantizeLinear", "CumSum"]
    findings = cli("check", made, "--no-runtime", "--json").json["findings"]
    assert findings == []


def test_provenance(source: str, tmp_path: Path) -> None:
    for command, option in (("lower", ()), ("compile", ("--no-provenance",))):
        made = tmp_path / f"{command}.onnx"
        cli(command, source, "--target", "generic_int8", "-o", made, *option)
        history = load(made).metadata_props.get("qdqtool.provenance", "")
        assert ("lower-convolutions{target=@target}" in history) == (not option)
        assert ('"target":' in history) == (not option)


def test_a_stale_file(source: str, tmp_path: Path) -> None:
    made = tmp_path / "c.onnx"
    cli("compile", source, "--target", "generic_int8", "-o", made)
    words = "expected target vitis_xint8, found generic_int8"
    done = cli("check", made, "--target", "vitis_xint8", "--no-runtime", "--json", code=1)
    assert [(f["rule"], f["where"], f["message"]) for f in done.json["findings"]] == [("stale-program", "npu_0", words)]
    assert cli("check", made, "--target", "generic_int8", "--no-runtime", "--json").json["findings"] == []
    assert f"npu_0: {words}; compile the model again" in cli("inspect", made, "--target", "vitis_xint8").err
    (program,) = cli("inspect", made, "--json").json["programs"]
    assert (program["node"], program["target"]) == ("npu_0", "generic_int8")
    assert "npu_0: a program for generic_int8 " in cli("inspect", made).out
    refusal = cli("compile", made, "--target", "vitis_xint8", "-o", tmp_path / "d.onnx", code=2).error
    assert refusal == f"npu_0: is compiled already: {words}; give the model that it was compiled from"


def test_nothing_for_the_npu(tmp_path: Path) -> None:
    source = write(tmp_path / "f.onnx", "g (float[4] x) => (float[4] y) { [neg] y = Neg(x) }")
    done = cli("compile", source, "--target", "generic_int8", "-o", tmp_path / "c.onnx")
    assert "warning: nothing of the model runs on generic_int8" in done.err


def test_without_a_target(source: str, tmp_path: Path) -> None:
    error = cli("compile", source, "-o", tmp_path / "c.onnx", code=2).error
    assert "--target" in error
    unknown = cli("lower", source, "--target", "generic_int9", "-o", tmp_path / "c.onnx", code=2).error
    assert "did you mean 'generic_int8'" in unknown

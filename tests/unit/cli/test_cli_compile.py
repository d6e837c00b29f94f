"""`compile` and `lower` on the command line, and what `check` and `inspect` say of their results."""

from __future__ import annotations

from pathlib import Path

import pytest
from qdq_passes.errors import UnsupportedError

import qdqtool
from qdqtool.io.models.load import load
from qdqtool.io.models.save import save
from tests.cases.cli_helpers import cli, write
from tests.cases.small_models import operators
from tests.golden_messages.refusal import refusal, told

MODEL = """g (float[1,2,4,4] x) => (float[1,2,4,4] y)
  <float s = {0.5}, int8 z = {0}, int8[2,2,1,1] w = {1, 2, 3, 4}, int64 axis = {1}>
{ [qx] xq = QuantizeLinear(x, s, z) [dx] xd = DequantizeLinear(xq, s, z) [dw] wd = DequantizeLinear(w, s, z)
  [conv] a = Conv(xd, wd) [qa] aq = QuantizeLinear(a, s, z) [da] ad = DequantizeLinear(aq, s, z)
  [cum] y = CumSum(ad, axis) }"""

#: The same with eight channels: the weight takes 16 bytes, as floats 64, all else at most 8.
WIDE = MODEL.replace("(float[1,2,4,4] y)", "(float[1,8,4,4] y)").replace(
    "int8[2,2,1,1] w = {1, 2, 3, 4}", f"int8[8,2,1,1] w = {{{', '.join(map(str, range(16)))}}}"
)


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
    told(cli("compile", source, "--target", "generic_int8", "-o", made, code=2).error)


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
    told(cli("compile", made, "--target", "vitis_xint8", "-o", tmp_path / "d.onnx", code=2).error)


def test_nothing_for_the_npu(tmp_path: Path) -> None:
    """There is no program to write: a file without one would be refused where nothing compiles."""
    source = write(tmp_path / "f.onnx", "g (float[4] x) => (float[4] y) { [neg] y = Neg(x) }")
    made = tmp_path / "c.onnx"
    told(cli("compile", source, "--target", "generic_int8", "-o", made, code=3).error)
    assert not made.exists()
    with refusal(UnsupportedError):
        qdqtool.compile(load(source), target="generic_int8")
    done = cli("lower", source, "--target", "generic_int8", "-o", made)
    assert "warning: nothing of the model runs on generic_int8" in done.err
    assert operators(load(made)) == ["Neg"]


@pytest.mark.parametrize("command", ["compile", "lower"])
def test_data_files_of_the_model_are_not_overwritten(command: str, source: str, tmp_path: Path) -> None:
    """Weights move into the program: what is written reads the data file no more."""
    data = Path(save(load(source), tmp_path / "e.onnx", external="always", threshold=1)[1])
    before = data.read_bytes()
    given = (tmp_path / "e.onnx", "--target", "generic_int8", "-o")
    told(cli(command, *given, data, "--overwrite", code=2).error)
    told(cli(command, *given, tmp_path / "e.onnx", "--overwrite", code=2).error)
    assert data.read_bytes() == before
    cli(command, *given, tmp_path / "elsewhere" / "c.onnx")
    assert operators(load(tmp_path / "elsewhere" / "c.onnx"))[0] == "QuantizeLinear"


@pytest.mark.parametrize(
    "command",
    [
        ("quantize", "MODEL", "--preset", "a8w8", "--data", "random:1", "-o", "DATA"),
        ("qdq", "remove", "MODEL", "--all", "-o", "DATA"),
        ("encodings", "import", "MODEL", "--encodings", "ENCODINGS", "-o", "DATA"),
        ("encodings", "export", "MODEL", "--format", "ort", "-o", "NEW", "--float-model", "DATA"),
    ],
    ids=lambda command: "-".join(command[:2]),
)
def test_data_files_stay_where_a_pass_lets_go_of_weights(command: tuple[str, ...], tmp_path: Path) -> None:
    """The weight alone is in the data file, and what is saved in the end has it no more."""
    source = write(tmp_path / "m.onnx", WIDE)
    floats, encodings = tmp_path / "f.onnx", tmp_path / "e.json"
    cli("encodings", "export", source, "--format", "ort", "-o", encodings, "--float-model", floats)
    start = source if {"remove", "export"} & set(command) else floats
    data = Path(save(load(start), tmp_path / "e.onnx", external="always", threshold=16)[1])
    before = data.read_bytes()
    files = {"MODEL": tmp_path / "e.onnx", "ENCODINGS": encodings, "NEW": tmp_path / "n.json", "DATA": data}
    done = cli(*(files.get(word, word) for word in command), "--overwrite", code=2)
    told(done.error)
    assert data.read_bytes() == before


def test_without_a_target(source: str, tmp_path: Path) -> None:
    assert "--target" in cli("compile", source, "-o", tmp_path / "c.onnx", code=2).error
    told(cli("lower", source, "--target", "generic_int9", "-o", tmp_path / "c.onnx", code=2).error)

"""What commands print: JSON by the contract, tables for people, nothing with -q."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import onnx
import pytest

from qdqtool.cli import help as help_pages
from qdqtool.cli.render import megabytes, plural, table
from tests.cases.cli_helpers import CALIB, DIGITS, OURS, SAMPLES, cli, strict_json
from tests.cases.integer_models import packed
from tests.cases.quantized_files import quantized_dynamic, quantized_static
from tests.dial import some
from tests.golden_messages.refusal import told


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("output") / "q.onnx"
    cli("quantize", DIGITS, "--data", CALIB, "--samples", "8", "-o", path)
    return str(path)


@pytest.fixture(scope="module")
def per_axis(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("output") / "axis.onnx"
    scales = [word for i in range(10) for word in ("--scale", str(0.25 if i % 2 else 0.5))]
    cli("qdq", "insert", DIGITS, "--select", "tensor:head.fc.weight", *scales, "--axis", "0", "-o", path)
    return str(path)


def test_inspect(quantized: str) -> None:
    found = cli("inspect", DIGITS, "--json").json
    assert found["inputs"] == [{"name": "input", "dtype": "float", "shape": ["N", 1, 8, 8]}]
    assert found["outputs"] == [{"name": "logits", "dtype": "float", "shape": ["N", 10]}]
    assert (found["opset"], found["ir_version"], found["parameters"], found["dynamic_dims"]) == (21, 10, 38242, ["N"])
    assert found["ops"]["Conv"] == 6
    assert {key: found["qdq"][key] for key in ("q", "dq", "pairs", "weights")} == {
        "q": 0,
        "dq": 0,
        "pairs": 0,
        "weights": 0,
    }
    after = cli("inspect", quantized, "--json").json["qdq"]
    none = {"qlinear": 0, "integer": 0, "nbits": 0}
    assert after == {"q": 27, "dq": 27, "pairs": 27, "weights": 14, "coverage": 1.0, **none}


def test_inspect_counts_operators_on_integers(tmp_path: Path) -> None:
    """QLinearConv, QGemm (contrib); MatMulInteger and ConvInteger; a MatMulNBits: each is a layer that is quantized."""
    quantized_static(tmp_path / "static.onnx")
    quantized_dynamic(tmp_path / "dynamic.onnx")
    ops = cli("inspect", tmp_path / "static.onnx", "--json").json
    assert ops["qdq"]["qlinear"] == sum(n for op, n in ops["ops"].items() if "QLinear" in op or "QGemm" in op)
    assert ops["qdq"]["coverage"] == 1
    assert f"{ops['qdq']['qlinear']} QLinear operators" in cli("inspect", tmp_path / "static.onnx").out
    found = cli("inspect", tmp_path / "dynamic.onnx", "--json").json
    assert found["qdq"]["integer"] == sum(n for op, n in found["ops"].items() if "Integer" in op or "LSTM" in op) > 2
    onnx.save(packed(32, 8)[0], tmp_path / "packed.onnx")
    assert cli("inspect", tmp_path / "packed.onnx", "--json").json["qdq"]["nbits"] == 1
    assert "1 packed product\n" in cli("inspect", tmp_path / "packed.onnx").out


def test_inspect_of_everything_we_have() -> None:
    for path in sorted(SAMPLES.glob("*.onnx")):
        found = cli("inspect", path, "--json").json
        assert found["inputs"]
        assert found["parameters"] >= 0
        ours = path in OURS
        assert cli("inspect", path).out.startswith("IR 10, opset ai.onnx 21" if ours else "IR 9, opset ai.onnx 17")


def test_match() -> None:
    found = cli("match", DIGITS, "op:Gemm", "--json").json
    assert found == {"nodes": ["/head/fc"], "tensors": ["head.fc.weight", "head.fc.bias", "logits"], "warnings": []}
    assert cli("match", DIGITS, "op:Gemm").out.splitlines() == [
        "1 node, 3 tensors",
        "node      operator  scope",
        "/head/fc  Gemm      head",
        "",
        "tensor          type   shape",
        "head.fc.weight  float  [10,48]",
        "head.fc.bias    float  [10]",
        "logits          float  [N,10]",
    ]
    assert cli("match", DIGITS, "op:Nope", "--allow-empty", "--json").json == {
        "nodes": [],
        "tensors": [],
        "warnings": ["the selectors match nothing"],
    }


def test_qdq_list(quantized: str) -> None:
    pairs = cli("qdq", "list", quantized, "--json").json["pairs"]
    assert pairs[0] == {
        "tensor": "input", "initializer": None, "dtype": "int8", "scale": 2**-6, "zero_point": 0, "axis": None,
        "block_size": None, "position": 6, "kind": "activation", "node_q": "input_QuantizeLinear",
        "node_dq": "input_DequantizeLinear", "form": "pair", "domain": "", "graph": "", "readers": ["/stem/conv"],
    }  # fmt: skip
    weight = next(p for p in pairs if p["tensor"] == "head.fc.weight")
    assert (weight["kind"], weight["initializer"], weight["node_q"]) == (
        "weight",
        "head.fc.weight",
        "head.fc.weight_QuantizeLinear",
    )
    assert [p["tensor"] for p in pairs[-4:]] == ["/head/flatten_output_0", "head.fc.weight", "head.fc.bias", "logits"]


def test_qdq_list_for_people(quantized: str) -> None:
    lines = cli("qdq", "list", quantized).out.splitlines()
    assert lines[0].split() == ["tensor", "kind", "dtype", "scale", "zero_point", "position", "form"]
    assert lines[1].split() == ["input", "activation", "int8", "0.015625", "0", "6", "pair"]
    assert cli("qdq", "list", DIGITS).out == "nothing quantized\n"
    assert cli("qdq", "list", quantized, "--select", "op:Concat").out.splitlines()[1].startswith("/concat_output_0 ")


def test_qdq_list_of_stored_integers_and_of_an_axis(tmp_path: Path, per_axis: str) -> None:
    cli("quantize", DIGITS, "--data", CALIB, "--samples", "8", "--weights", "dq", "-o", tmp_path / "q.onnx")
    pairs = cli("qdq", "list", tmp_path / "q.onnx", "--json").json["pairs"]
    stored = next(p for p in pairs if p["tensor"] == "head.fc.weight")
    assert (stored["initializer"], stored["node_q"], stored["position"]) == ("head.fc.weight_quantized", None, 8)
    (axis,) = cli("qdq", "list", per_axis, "--json").json["pairs"]
    assert axis["scale"] == [0.5, 0.25] * 5
    assert (axis["position"], axis["axis"], axis["zero_point"]) == ([1, 2] * 5, 0, [0] * 10)
    assert "10: 0.25..0.5" in cli("qdq", "list", per_axis).out


def test_quantize(tmp_path: Path) -> None:
    done = cli("quantize", DIGITS, "--data", CALIB, "--samples", "8", "-o", tmp_path / "q.onnx", "--json").json
    keys = ("preset", "method", "samples", "quantized_nodes", "excluded_nodes", "pairs")
    assert [done[key] for key in keys] == ["xint8", "pow2-minmse", 8, 18, [], 27]
    assert 25 < done["sqnr_db"] < 45
    assert len(done["ranges_sha256"]) == 64
    assert isinstance(done["seconds"], float)


def test_quantize_for_people(tmp_path: Path) -> None:
    done = cli("quantize", DIGITS, "--data", "random:1", "--exclude", "/head/fc", "-o", tmp_path / "q.onnx")
    lines = done.out.splitlines()
    assert lines[:2] == [
        "preset                    xint8",
        "method                    pow2-minmse over 1 sample",
    ]
    assert lines[5].split()[0] == "multiply-accumulates"
    assert lines[7].startswith("positions moved  ")
    assert lines[10:17] == [
        "",
        "excluded node  reason",
        "/head/fc       named by --exclude",
        "",
        "pair at an excluded node  reason",
        "/head/flatten_output_0    activation, int8 scale 2^-6; excluded /head/fc touches it, kept for /head/flatten",
        "",
    ]
    assert [line.split() for line in lines[17:19]] == [
        ["converted", "node", "how"],
        ["/head/pool_output_0_Mul", "factor", "1", "of", "/head/pool,", "exact"],
    ]
    assert lines[20].split() == ["noisiest", "tensor", "kind", "range", "position", "clipped", "SQNR", "dB"]
    noise = [float(line.split()[-1]) for line in lines[21:26]]
    assert noise == sorted(noise)
    assert lines[26:] == [f"wrote {tmp_path / 'q.onnx'}"]
    assumed, random = done.err.splitlines()
    assert assumed.startswith("warning: quantized for Vitis, with --preset xint8: ")
    assert random == "warning: random data: ranges and figures say nothing about accuracy"


def test_compare(quantized: str) -> None:
    found = cli("compare", DIGITS, quantized, "--data", CALIB, "--samples", "4", "--json").json
    logits = found["outputs"]["logits"]
    assert {"sqnr_db", "max_abs", "cosine", "exact", "lsb"} <= set(logits)
    assert 0 <= logits["exact"] <= 1
    worst = [t["sqnr_db"] for t in found["tensors"] if t["sqnr_db"] is not None]
    assert worst == sorted(worst)
    assert cli("compare", DIGITS, quantized, "--data", CALIB, "--samples", "4", "--min-sqnr", "20").out
    cli("compare", DIGITS, quantized, "--data", CALIB, "--samples", "4", "--min-sqnr", "60", code=1)


def test_compare_with_no_number() -> None:
    """No figure is below NaN: the check would always pass."""
    told(cli("compare", DIGITS, DIGITS, "--data", "random:1", "--min-sqnr", "nan", code=2).error)


def test_compare_of_equal_models() -> None:
    found = cli("compare", DIGITS, DIGITS, "--data", "random:2", "--per-slice", "1", "--json").json
    assert found["outputs"]["logits"]["sqnr_db"] is None
    assert found["outputs"]["logits"]["exact"] == 1.0
    lines = cli("compare", DIGITS, DIGITS, "--data", "random:2").out.splitlines()
    assert lines[1].split() == ["logits", "exact", "0", "1", "1"]
    assert lines[2:] == ["all 23 tensors inside are exact", "2 samples, cumulative"]


def test_compare_shows_slices_as_a_table(quantized: str) -> None:
    lines = cli(
        "compare", DIGITS, quantized, "--data", CALIB, "--samples", "2", "--per-slice", "1", "--outputs-only"
    ).out.splitlines()
    assert lines[3].split() == ["worst", "slices", "of", "index", "SQNR", "dB", "exact"]
    assert [line.split()[0] for line in lines[4:7]] == ["logits"] * 3


@pytest.mark.parametrize("what", ["passes", "presets", "targets", "methods", "commands"])
def test_list(what: str) -> None:
    entries = cli("list", what, "--json").json[what]
    assert [e["name"] for e in entries] == sorted(e["name"] for e in entries)
    assert all(e["summary"] and "..." not in e["summary"] for e in entries)
    for entry in some(entries, 8):
        assert cli("list", what, entry["name"]).out.startswith(entry["name"])


def test_list_shows_the_options_of_a_pass() -> None:
    shown = cli("list", "passes", "insert-qdq").out
    assert re.search(r"^select +a selector +everything$", shown, re.M)
    assert {"name": "encodings", "type": "@name", "default": "none"} in cli(
        "list", "passes", "annotate-encodings", "--json"
    ).json["options"]


def every_command(folder: Path, model: str) -> list[list[Any]]:
    return [
        ["inspect", model],
        ["check", model],
        ["diff", model, model],
        ["match", model, "op:Conv"],
        ["opt", model, "-p", "sort", "-o", folder / "1.onnx"],
        ["simplify", model, "-o", folder / "2.onnx"],
        ["extract", model, "--outputs", "/pool_output_0", "-o", folder / "3.onnx"],
        ["rename", model, "--value", "input=x", "-o", folder / "4.onnx"],
        ["fix-shapes", model, "--dim", "N=1", "-o", folder / "5.onnx"],
        ["convert-opset", model, "--opset", "22", "-o", folder / "6.onnx"],
        ["externalize", model, "-o", folder / "7.onnx"],
        ["calibrate", model, "--data", "random:1", "-o", folder / "8.json"],
        ["quantize", model, "--data", "random:1", "-o", folder / "9.onnx"],
        ["quantize", model, "--print-pipeline"],
        ["qdq", "list", model],
        ["qdq", "insert", model, "--select", "tensor:logits", "--scale", "1", "-o", folder / "10.onnx"],
        ["qdq", "remove", model, "--all", "-o", folder / "11.onnx"],
        *(
            ["qdq", *command, "-o", folder / f"qdq{number}.onnx"]
            for number, command in enumerate(
                [
                    ["set", model, "--all", "--round-pow2"],
                    ["move", model, "--all", "--down"],
                    ["share", model, "--all"],
                    ["dedicate", model, "--all"],
                    ["fold", model],
                    ["convert", model, "--dtype", "int16"],
                ]
            )
        ),
        ["compare", model, model, "--data", "random:1"],
        ["simulate", model, "--target", "generic_int8", "--data", "random:1"],
        ["list", "presets"],
        ["demo", "-o", folder / "12.onnx"],
    ]


def test_quiet_prints_nothing(tmp_path: Path) -> None:
    for command in every_command(tmp_path, DIGITS):
        assert cli(*command, "-q").out == ""


def test_json_is_one_document_in_every_command(tmp_path: Path) -> None:
    """Also to a file; with -q and --json-out the file alone."""
    commands = [*every_command(tmp_path, DIGITS)]
    to_files = some(len(commands), 4)
    for index, command in enumerate(commands):
        report = tmp_path / "reports" / f"{index}.json"
        document = cli(*command, "--json", "-q").json
        if index not in to_files:
            continue
        overwrite = [] if command[0] not in ("demo", "opt") and "-o" not in command else ["--overwrite"]
        assert cli(*command, *overwrite, "--json-out", report, "-q").out == ""
        assert strict_json(report.read_text()).keys() == document.keys()


def test_verbose_shows_what_passes_did(tmp_path: Path) -> None:
    done = cli("opt", DIGITS, "-p", "fold-batch-norm", "-o", tmp_path / "o.onnx", "-v")
    assert "  remove /stem/bn: folded into /stem/conv" in done.out.splitlines()
    done = cli("quantize", DIGITS, "--data", "random:1", "-o", tmp_path / "q.onnx", "-v")
    assert "skip /stem/bn_output_0: is inside a fused group" in done.err.splitlines()


def test_help_of_every_command() -> None:
    for entry in cli("list", "commands", "--json").json["commands"]:
        assert cli(entry["name"], "--help").out.startswith("Usage: qdqtool")
    assert cli().out.startswith("Usage: qdqtool")
    assert cli("qdq").out.startswith("Usage: qdqtool qdq")
    assert cli("--version").out.startswith("qdqtool")


def test_the_version_says_what_it_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(cli("--version").out.splitlines()) == 1
    said = cli("--version", "-v").out.splitlines()
    assert [line.split()[0] for line in said] == ["qdqtool", "onnx", "onnx-ir", "onnxruntime", "numpy", "simulated"]
    monkeypatch.setattr("qdqtool.npu.library.NAME", "libnothing.so")
    monkeypatch.delenv("QDQTOOL_NPU_LIBRARY", raising=False)
    last = cli("--version", "-v").out.splitlines()[-1]
    assert last.startswith("simulated NPU: the library of the simulated NPU, libnothing.so, was not built when")


def test_a_file_that_is_no_smaller_says_why(tmp_path: Path) -> None:
    job = ("quantize", DIGITS, "--preset", "xint8", "--data", "random:1", "-o", tmp_path / "q.onnx", "--overwrite")
    for more, is_said in (((), True), (("--weights", "dq"), False)):
        (size,) = (line for line in cli(*job, *more).out.splitlines() if line.startswith("size"))
        assert ("weights stay float" in size) == is_said


def test_tables_align_numbers_and_names(capsys: pytest.CaptureFixture[str]) -> None:
    table(("name", "value"), [("a", 1.0), ("bcd", None), ("e", "exact"), ("f", 2.65e36), ("g", 12345.6)])
    assert capsys.readouterr().out.splitlines() == [
        "name     value",
        "a            1",
        "bcd          -",
        "e        exact",
        "f     2.65e+36",
        "g       12,346",
    ]
    table(("", ""), [("key", "value")])
    assert capsys.readouterr().out == "key  value\n"


def test_words() -> None:
    assert [plural(1, "pair"), plural(1200, "pair")] == ["1 pair", "1,200 pairs"]
    assert [megabytes(n) for n in (10, 2048, 3 << 20, 5 << 29)] == ["10 B", "2.0 KiB", "3.0 MiB", "2.5 GiB"]


def test_an_installation_without_pages_names_those_of_the_site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "More: docs/quantizing.md" in cli("quantize", "--help").out
    monkeypatch.setattr(help_pages, "CLONE", str(tmp_path))
    assert "More: https://qdqtool.github.io/qdqtool/quantizing\n" in cli("quantize", "--help").out
    assert "More: https://qdqtool.github.io/qdqtool/\n" in cli("--help").out

"""``qdqtool encodings``: export, import and convert as a person types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qdqtool
from tests.cases.cli_helpers import CALIB, DIGITS, accepted, cli, images, same_outputs, write
from tests.cases.encodings_helpers import AIMET, DATA, facts
from tests.cases.quantized_files import quantized_file
from tests.golden_messages.refusal import told

MODEL = DATA / "model.onnxtxt"


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's net as the xint8 preset makes it: a pair on every float weight."""
    path = tmp_path_factory.mktemp("quantized") / "digits_int8.onnx"
    cli("quantize", DIGITS, "--data", CALIB, "--samples", "8", "-o", path)
    return path


@pytest.mark.parametrize("format_name", [*AIMET, "qnn", "ort"])
def test_there_and_back(quantized: Path, format_name: str, tmp_path: Path) -> None:
    """The model that comes back has the same nodes, names, scales and weights, and computes the same bits."""
    file, bare, again = tmp_path / "enc.json", tmp_path / "float.onnx", tmp_path / "again.onnx"
    done = cli("encodings", "export", quantized, "-o", file, "--format", format_name, "--float-model", bare)
    assert f"wrote {file} and {bare}" in done.out
    assert not [n for n in onnx.load(bare).graph.node if "Quantize" in n.op_type]
    accepted(bare)
    cli("encodings", "import", bare, "--encodings", file, "-o", again)
    accepted(again)
    assert facts(qdqtool.load(again)) == facts(qdqtool.load(quantized))
    same_outputs(quantized, again, images())


def test_json_of_export(tmp_path: Path) -> None:
    file = tmp_path / "new" / "enc.json"
    done = cli("encodings", "export", quantized_file("u8s8"), "-o", file, "--format", "aimet-2.0.0", "--json").json
    stored = json.loads(file.read_text(encoding="utf-8"))
    assert done["tensors"] == len(stored["encodings"]) == done["activations"] + done["params"]
    assert (done["format"], done["output"], done["float_model"], done["left"]) == ("aimet-2.0.0", str(file), None, [])
    assert stored["producer"] == {"package": "qdqtool"}
    assert sorted(stored["qdqtool"]["tensors"]) == done["hints"]


def test_the_same_bytes_every_time(tmp_path: Path) -> None:
    files = [tmp_path / f"{k}.json" for k in "ab"]
    for file in files:
        cli("encodings", "export", quantized_file("s8s8_per_axis"), "-o", file, "--format", "aimet-1.0.0")
    assert files[0].read_bytes() == files[1].read_bytes()
    outputs = [tmp_path / f"{k}.onnx" for k in "ab"]
    for output in outputs:
        cli("encodings", "import", MODEL, "--encodings", DATA / "aimet_1_0_0.json", "-o", output)
    assert outputs[0].read_bytes() == outputs[1].read_bytes()


def test_a_plain_file(tmp_path: Path) -> None:
    """Without hints nothing but the format's own fields is in it."""
    file = tmp_path / "enc.json"
    cli(
        "encodings",
        "export",
        quantized_file("u8s8"),
        "-o",
        file,
        "--format",
        "aimet-1.0.0",
        "--no-hints",
        "--activations",
        "unsigned",
    )
    stored = json.loads(file.read_text(encoding="utf-8"))
    assert set(stored) == {"version", "producer", "quantizer_args", "activation_encodings", "param_encodings"}
    fields = {"name", "enc_type", "dtype", "bw", "is_sym", "scale", "offset"}
    assert {key for entry in stored["activation_encodings"] + stored["param_encodings"] for key in entry} == fields


def test_import_reports_coverage_and_alignment(tmp_path: Path) -> None:
    output, report = tmp_path / "q.onnx", tmp_path / "report.json"
    document = json.loads((DATA / "aimet_2_0_0.json").read_text(encoding="utf-8"))
    document["encodings"].append({"name": "gone", "output_dtype": "int8", "y_scale": 1.0})
    file = tmp_path / "enc.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    done = cli("encodings", "import", MODEL, "--encodings", file, "-o", output, "--report", report, "--json")
    payload = json.loads(report.read_text(encoding="utf-8"))
    assert payload == done.json
    assert payload["alignment"] == {
        "exact": 7, "by_structure": [], "by_map": [], "unmatched": [{"name": "gone", "reason": "the model has no such tensor"}]
    }  # fmt: skip
    assert [one["tensor"] for one in payload["missing"]] == ["flat_out", "mm_out"]
    assert "warning: gone of the file is not used: the model has no such tensor" in done.err
    accepted(output)
    shown = cli("encodings", "import", MODEL, "--encodings", file, "-o", output, "--overwrite", "-v").out
    assert "without an encoding" in shown
    assert "flat_out" in shown
    assert "conv_out" in shown  # inside a fused layer, with -v only


def test_missing_error_is_exit_2(tmp_path: Path) -> None:
    done = cli(
        "encodings", "import", MODEL, "--encodings", DATA / "aimet_2_0_0.json", "-o", tmp_path / "q.onnx", "--missing", "error", code=2
    )  # fmt: skip
    told(done.error)
    assert not (tmp_path / "q.onnx").exists()


def test_missing_calibrate(tmp_path: Path) -> None:
    """The data reach ±1 at x: mm_out is calibrated as the other activations are, flat_out takes the encoding of relu_out."""
    data = tmp_path / "data.npz"
    np.savez(data, x=np.random.default_rng(0).uniform(-1, 1, (4, 2, 2, 2)).astype(np.float32))
    command = (
        "encodings",
        "import",
        MODEL,
        "--encodings",
        DATA / "aimet_2_0_0.json",
        "-o",
        tmp_path / "q.onnx",
        "--missing",
        "calibrate",
    )
    done = cli(*command, "--data", data, "--json").json
    assert done["filled"] == [
        {"tensor": "flat_out", "from": "its neighbour relu_out"}, {"tensor": "mm_out", "from": "calibration"}
    ]  # fmt: skip
    assert [one["tensor"] for one in done["missing"]] == []
    told(cli(*command, "--overwrite", code=2).error)
    unused = cli(*command[:-2], "--overwrite", "--data", data)
    assert "warning: --data is not used: it goes with --missing calibrate" in unused.err


def test_names_that_changed(tmp_path: Path) -> None:
    old, new = ('g (float[2] x) => (float[2] y) { [a] "%s" = Relu(x) [b] y = Neg("%s") }' % (n, n) for n in ("t", "u"))  # noqa: UP031
    models = [write(tmp_path / f"{k}.onnx", text) for k, text in (("old", old), ("new", new))]
    file = tmp_path / "enc.json"
    file.write_text(
        json.dumps({"version": "2.0.0", "encodings": [{"name": "t", "output_dtype": "int8", "y_scale": 1.0}]})
    )
    output = tmp_path / "q.onnx"
    told(cli("encodings", "import", models[1], "--encodings", file, "-o", output, code=2).error)
    done = cli("encodings", "import", models[1], "--encodings", file, "-o", output, "--names-of", models[0])
    assert "names found by structure  1" in done.out
    assert "t                 u" in done.out
    names = tmp_path / "map.json"
    names.write_text('{"t": "u"}', encoding="utf-8")
    done = cli(
        "encodings", "import", models[1], "--encodings", file, "-o", output, "--map", names, "--overwrite", "--json"
    )
    assert done.json["alignment"]["by_map"] == [{"name": "t", "tensor": "u"}]


@pytest.mark.parametrize(
    ("source", "target"),
    [("aimet_0_6_1", "aimet-1.0.0"), ("aimet_1_0_0", "aimet-2.1.0"), ("aimet_2_0_0", "aimet-1.0.0")],
)
def test_convert(source: str, target: str, tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    done = cli(
        "encodings", "convert", DATA / f"{source}.json", "-o", output, "--format", target, "--model", MODEL, "--json"
    ).json
    assert done["input_format"] == f"aimet-{source[6:].replace('_', '.')}"
    assert done["format"] == target
    assert json.loads(output.read_text(encoding="utf-8"))["version"] == target.removeprefix("aimet-")
    again = cli("encodings", "convert", output, "-o", output, "--format", "qnn", "--overwrite", code=2)
    told(again.error)


def test_convert_says_what_is_lost(tmp_path: Path) -> None:
    file, output = tmp_path / "in.json", tmp_path / "out.json"
    document = {
        "version": "2.0.0",
        "excluded_layers": [],
        "encodings": [{"name": "x", "output_dtype": "int8", "y_scale": 1.0}],
    }
    file.write_text(json.dumps(document), encoding="utf-8")
    done = cli("encodings", "convert", file, "-o", output, "--format", "ort")
    assert f"warning: excluded_layers of {file} have no place in ort" in done.err
    assert json.loads(output.read_text(encoding="utf-8")) == {
        "x": [{"quant_type": "QInt8", "scale": 1.0, "zero_point": 0}]
    }


REFUSED = [
    pytest.param(["export", MODEL, "-o", "o.json", "--format", "qnn"], 3, id="no pair"),
    pytest.param(["convert", DATA / "aimet_1_0_0.json", "-o", "o.json", "--format", "aimet-0.6.1"], 3, id="blocks"),
    pytest.param(["convert", DATA / "aimet_1_0_0.json", "-o", "o.json", "--format", "aimet-2.0.0"], 3, id="no axis"),
    pytest.param(["convert", DATA / "aimet_2_0_0.json", "-o", "o.json", "--format", "aimet-1.0.0"], 2, id="an axis to check"),
    pytest.param(["convert", DATA / "ort.json", "-o", "o.json", "--format", "aimet"], 2, id="no format"),
    pytest.param(["convert", "nothing.json", "-o", "o.json", "--format", "qnn"], 2, id="no file"),
    pytest.param(["merge", "a"], 2, id="no command"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "code"), REFUSED)
def test_refusals(arguments: list[Any], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told(cli("encodings", *arguments, code=code).error)
    assert list(tmp_path.iterdir()) == []


def test_a_model_is_no_encodings_file(tmp_path: Path) -> None:
    """What follows are json's words."""
    options = ("--encodings", MODEL, "-o", tmp_path / "o.onnx")
    assert "model.onnxtxt: is not JSON (" in cli("encodings", "import", MODEL, *options, code=2).error
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    file = tmp_path / "enc.json"
    file.write_text("mine", encoding="utf-8")
    model = quantized_file("u8s8")
    done = cli("encodings", "export", model, "-o", file, "--format", "qnn", code=2)
    told(done.error)
    assert file.read_text(encoding="utf-8") == "mine"
    done = cli(
        "encodings",
        "export",
        model,
        "-o",
        tmp_path / "e.json",
        "--format",
        "qnn",
        "--float-model",
        model,
        "--overwrite",
        code=2,
    )
    told(done.error)


MIRRORED = """<ir_version: 10, opset_import: ["": 21]>
g (float[1,4] x) => (float[1,2] y) <int4[4,2] w_quantized = {1, -2, 3, -8, 5, 6, 7, -8}, float[2,2] s = {0.5, -0.25, 0.5, 0.125}>
{ [d] w = DequantizeLinear<axis: int = 0, block_size: int = 2>(w_quantized, s) [m] y = MatMul(x, w) }"""


@pytest.mark.parametrize("options", [["--no-hints"], []])
def test_negative_scales_are_refused_with_a_way_out(options: list[str], tmp_path: Path) -> None:
    """As onnxruntime's 4-bit weights have them: its kernels take them, encodings files do not."""
    path, output, float_model = tmp_path / "m.onnx", tmp_path / "e.json", tmp_path / "f.onnx"
    onnx.save(onnx.parser.parse_model(MIRRORED), path)
    export = ("encodings", "export", path, "-o", output, "--format", "aimet-2.0.0", "--float-model", float_model)
    told(cli(*export, "--allow-findings", *options, code=3).error)
    assert not output.exists()
    assert not float_model.exists()
    cli("qdq", "remove", path, "-o", float_model, "--select", "tensor:w", "--allow-findings")
    assert [node.op_type for node in onnx.load(float_model).graph.node] == ["MatMul"]
    same_outputs(path, float_model, {"x": np.array([[1, -2, 3, 4]], np.float32)})


@pytest.mark.parametrize("edit", [("share", "--all"), ("dedicate", "--all"), ("set", "--all", "--dtype", "int8")])
def test_edits_of_a_model_with_errors_need_a_word(edit: tuple[str, ...], tmp_path: Path) -> None:
    path, output = tmp_path / "m.onnx", tmp_path / "o.onnx"
    text = MIRRORED.replace("(float[1,2] y)", "(float[1,2] y, float[1,4] v)").replace(
        "y = MatMul(x, w)", "y = MatMul(x, w) [q] a = QuantizeLinear(x, t, z) [e] b = DequantizeLinear(a, t, z) [n] v = Neg(b)"
    ).replace("float[2,2] s", "float t = {0.5}, uint8 z = {3}, float[2,2] s")  # fmt: skip
    onnx.save(onnx.parser.parse_model(text), path)
    options = ["--select=tensor:x" if option == "--all" else option for option in edit[1:]]
    arguments: list[str | Path] = ["qdq", edit[0], path, "-o", output, *options]
    told(cli(*arguments, code=2).error)
    cli(*arguments, "--allow-findings")
    assert output.exists()


def test_what_is_no_pair_is_named(tmp_path: Path) -> None:
    """A model of integer operators has no pairs; one with both keeps what is none."""
    mixed = """g (float[2] x) => (float[2] y) <float s = {0.5}, uint8 z = {3}> { [q] a = QuantizeLinear(x, s, z) [d] b = DequantizeLinear(a, s, z)
      [dyn] i, t, k = DynamicQuantizeLinear(b) [dd] y = DequantizeLinear(i, t, k) }"""
    done = cli("encodings", "export", write(tmp_path / "m.onnx", mixed), "-o", tmp_path / "e.json", "--format", "qnn")
    assert "warning: dyn stays in the float model: DynamicQuantizeLinear is no QDQ pair" in done.err
    error = cli(
        "encodings", "export", quantized_file("qoperator"), "-o", tmp_path / "f.json", "--format", "qnn", code=None
    ).err
    assert error.startswith(("error: ", "warning: "))


def test_the_provenance_names_what_went_in(tmp_path: Path) -> None:
    output = tmp_path / "q.onnx"
    cli("encodings", "import", MODEL, "--encodings", DATA / "aimet_2_0_0.json", "-o", output)
    (entry,) = json.loads({p.key: p.value for p in onnx.load(output).metadata_props}["qdqtool.provenance"])
    assert entry["pipeline"] == "apply-encodings{encodings=@encodings},insert-qdq{weights=dq}"
    assert set(entry["inputs"]) == {"model", "encodings"}
    cli(
        "encodings",
        "import",
        MODEL,
        "--encodings",
        DATA / "aimet_2_0_0.json",
        "-o",
        output,
        "--overwrite",
        "--no-provenance",
    )
    assert not onnx.load(output).metadata_props

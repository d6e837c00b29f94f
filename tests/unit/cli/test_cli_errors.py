"""A user's fault is one line that says what to do, an exit code, and nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases.cli_helpers import CALIB, DIGITS, ROOT, cli, write
from tests.golden_messages.refusal import told

#: Each command that reads a model, complete but for the model and, where it writes, the output.
READING = {
    "inspect": [],
    "check": [],
    "match": ["*"],
    "qdq list": [],
    "view": ["--once"],
}
WRITING = {
    "opt": ["-p", "sort"],
    "simplify": [],
    "extract": ["--outputs", "logits"],
    "rename": ["--value", "input=x"],
    "fix-shapes": ["--dim", "N=1"],
    "convert-opset": ["--opset", "20"],
    "externalize": [],
    "qdq insert": ["--select", "tensor:logits", "--scale", "0.5"],
    "qdq remove": ["--all"],
    "quantize": ["--data", "random:1"],
    "calibrate": ["--data", "random:1"],
}


@pytest.mark.parametrize("command", [*READING, *WRITING])
def test_a_missing_model(command: str, tmp_path: Path) -> None:
    rest = READING.get(command) or [
        *WRITING.get(command, []),
        *(["-o", tmp_path / "o.onnx"] if command in WRITING else []),
    ]
    (tmp_path / "digits.onnx").touch()
    done = cli(*command.split(), tmp_path / "digit.onnx", *rest, code=2)
    told(done.error)
    assert done.out == ""
    assert [p.name for p in tmp_path.iterdir()] == ["digits.onnx"]


@pytest.mark.parametrize("command", [*READING, *WRITING])
def test_a_file_that_is_no_model(command: str, tmp_path: Path) -> None:
    rest = READING.get(command) or [
        *WRITING.get(command, []),
        *(["-o", tmp_path / "o.onnx"] if command in WRITING else []),
    ]
    told(cli(*command.split(), ROOT / "pyproject.toml", *rest, code=2).error)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", WRITING)
def test_an_output_that_exists(command: str, tmp_path: Path) -> None:
    output = tmp_path / "o.onnx"
    output.write_bytes(b"precious")
    done = cli(*command.split(), DIGITS, *WRITING[command], "-o", output, code=2)
    told(done.error)
    assert output.read_bytes() == b"precious"
    cli(*command.split(), DIGITS, *WRITING[command], "-o", output, "--overwrite")
    assert output.read_bytes() != b"precious"


@pytest.mark.parametrize("command", WRITING)
def test_the_input_is_never_overwritten(command: str, tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(Path(DIGITS).read_bytes())
    same = tmp_path / "." / "m.onnx"
    done = cli(*command.split(), model, *WRITING[command], "-o", same, "--overwrite", code=2)
    told(done.error)
    assert model.read_bytes() == Path(DIGITS).read_bytes()


def test_no_input_of_any_kind_is_overwritten(tmp_path: Path) -> None:
    data = tmp_path / "calib.npz"
    data.write_bytes(Path(CALIB).read_bytes())
    ranges = tmp_path / "r.json"
    cli("calibrate", DIGITS, "--data", data, "-o", ranges)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    quantize = ("quantize", DIGITS, "--overwrite")
    for command in (
        (*quantize, "--data", data, "-o", data),
        (*quantize, "--data", data, "-o", tmp_path / "q.onnx", "--save-ranges", data),
        (*quantize, "--ranges", ranges, "-o", ranges),
        (*quantize, "--ranges", ranges, "-o", tmp_path / "q.onnx", "--json-out", ranges),
        ("calibrate", "--merge", ranges, ranges, "-o", ranges, "--overwrite"),
        ("calibrate", DIGITS, "--data", data, "-o", data, "--overwrite"),
        ("inspect", DIGITS, "--json-out", DIGITS),
        ("opt", DIGITS, "-p", "sort", "--check-data", data, "-o", data, "--overwrite"),
    ):
        told(cli(*command, code=2).error)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("command", WRITING)
def test_missing_folders_are_made(command: str, tmp_path: Path) -> None:
    output = tmp_path / "a" / "b" / "o.onnx"
    cli(*command.split(), DIGITS, *WRITING[command], "-o", output)
    assert output.is_file()


def test_an_output_that_is_a_folder(tmp_path: Path) -> None:
    told(cli("simplify", DIGITS, "-o", tmp_path, code=2).error)


@pytest.mark.parametrize(
    "arguments",
    [
        ["quantise"],
        ["qdq", "nope"],
        ["inspect"],
        ["inspect", "MODEL", "--jsn"],
        ["--path", "/nowhere", "inspect", "MODEL"],
        ["opt", "MODEL", "-p", "fold-batch-nrm"],
        ["opt", "MODEL", "-p", "insert-qdq{weigths=dq}"],
        ["opt", "MODEL", "-p", "insert-qdq{weights=float}"],
        ["opt", "MODEL", "-p", "sort,"],
        ["opt", "MODEL", "-p", ""],
        ["opt", "MODEL", "-p", "@nowhere.txt"],
        ["opt", "MODEL", "-p", "annotate-encodings{encodings=@ranges}"],
        ["opt", "MODEL", "-p", "observe{data=@data runtime=@runtime tensors=@tensors},adjust-ranges{ranges=@ranges}"],
        ["opt", "MODEL", "-p", "remove-qdq{select=op:Nope}"],
        ["quantize", "MODEL", "--preset", "xint"],
        ["quantize", "MODEL", "--preset", "no.toml"],
        ["quantize", "MODEL", "--target", "generic"],
        ["quantize", "MODEL", "--method", "minmx", "--data", "random:1"],
        ["quantize", "MODEL"],
        ["quantize", "MODEL", "--ranges", "nowhere.json"],
        ["quantize", "MODEL", "--data", "random:1", "--exclude", "op:Cnv"],
        ["quantize", "MODEL", "--data", "random:1", "--only", "op:Cnv"],
        ["quantize", "MODEL", "--data", "random:1", "--exclude", "*"],
        ["quantize", "MODEL", "--data", "no.npz"],
        ["quantize", "MODEL", "--data", "random:0"],
        ["quantize", "MODEL", "--data", "random:1", "--samples", "0"],
        ["quantize", "MODEL", "--data", "MODEL"],
        ["quantize", "MODEL", "--data", "random:1", "--image-size", "big"],
        ["quantize", "MODEL", "--data", "random:1", "--image-mean", "a,b"],
        ["extract", "MODEL"],
        ["extract", "MODEL", "--outputs", "logit"],
        ["rename", "MODEL"],
        ["rename", "MODEL", "--value", "input"],
        ["rename", "MODEL", "--value", "input=logits"],
        ["rename", "MODEL", "--node", "a=b"],
        ["rename", "MODEL", "--dim", "M=b"],
        ["fix-shapes", "MODEL"],
        ["fix-shapes", "MODEL", "--dim", "M=1"],
        ["fix-shapes", "MODEL", "--dim", "N=x"],
        ["fix-shapes", "MODEL", "--input-shape", "input=1x1x8x9"],
        ["convert-opset", "MODEL", "--opset", "3"],
        ["qdq", "insert", "MODEL"],
        ["qdq", "insert", "MODEL", "--scale", "1"],
        ["qdq", "insert", "MODEL", "--dynamic", "--scale", "1"],
        ["qdq", "insert", "MODEL", "--dynamic", "--asymmetric"],
        ["qdq", "insert", "MODEL", "--dynamic", "--dtype", "int16"],
        ["qdq", "insert", "MODEL", "--dynamic", "--weights", "dq"],
        ["qdq", "insert", "MODEL", "--dynamic", "--domain", "com.microsoft"],
        ["qdq", "insert", "MODEL", "--dynamic", "--dedicated"],
        ["qdq", "insert", "MODEL", "--ranges", "r", "--per-token"],
        ["qdq", "insert", "MODEL", "--ranges", "r", "--axis", "0"],
        ["qdq", "set", "MODEL", "--all"],
        ["qdq", "set", "MODEL", "--all", "--scale", "1", "--nearest"],
        ["qdq", "set", "MODEL", "--scale", "1"],
        ["qdq", "move", "MODEL", "--all"],
        ["qdq", "move", "MODEL", "--all", "--up", "--down"],
        ["qdq", "share", "MODEL"],
        ["qdq", "dedicate", "MODEL", "--all", "--select", "op:Conv"],
        ["qdq", "convert", "MODEL", "--per-tensor", "--per-axis"],
        ["qdq", "convert", "MODEL"],
        ["qdq", "remove", "MODEL", "--all", "--keep-weights", "--round-weights"],
        ["qdq", "remove", "MODEL"],
        ["qdq", "remove", "MODEL", "--select", "op:Nope"],
    ],
    ids=" ".join,
)
def test_what_is_wrong_in_one_line(arguments: list[str], tmp_path: Path) -> None:
    words = [DIGITS if word == "MODEL" else word for word in arguments]
    writes = words[0] not in ("quantise", "inspect") and not words[0].startswith("--") and words[1] != "nope"
    done = cli(*words, *(["-o", str(tmp_path / "o.onnx")] if writes else []), code=2)
    told(done.error)
    assert done.out == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [
        ["match", DIGITS, "op:Nope"],
        ["qdq", "list", DIGITS, "--select", "op:Nope"],
        ["calibrate", DIGITS, "--data", "random:1", "--select", "op:Nope", "--select", "op:Conv", "-o", "O"],
        ["quantize", DIGITS, "--data", "random:1", "--exclude", "op:Nope", "-o", "O"],
        ["qdq", "insert", DIGITS, "--scale", "1", "--select", "op:Nope", "--select", "op:Conv", "-o", "O"],
        ["qdq", "remove", DIGITS, "--select", "op:Nope", "-o", "O"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_allow_empty_turns_an_empty_selector_into_a_warning(arguments: list[str], tmp_path: Path) -> None:
    words = [str(tmp_path / "o") if word == "O" else word for word in arguments]
    told(cli(*words, code=2).error)
    done = cli(*words, "--allow-empty")
    assert done.err.startswith("warning: ") or words[0] in ("qdq", "calibrate")


def test_verbose_shows_where_it_came_from(tmp_path: Path) -> None:
    done = cli("inspect", tmp_path / "no.onnx", "-v", code=2)
    assert "Traceback" in done.err
    assert done.err.splitlines()[-1].startswith("error: ")


def test_what_cannot_be_handled_is_3(tmp_path: Path) -> None:
    told(cli("convert-opset", DIGITS, "-o", tmp_path / "o.onnx", "--opset", "99", code=3).error)


def test_a_model_with_errors_is_not_saved_unless_allowed(tmp_path: Path) -> None:
    """A pair with a negative scale; the rest of the model can be quantized."""
    model = write(tmp_path / "m.onnx", """
        g (float[2] x) => (float[2] y) <float s = {-0.5}, int8 z = {0}> {
          [q] a = QuantizeLinear(x, s, z)  [d] b = DequantizeLinear(a, s, z)  [relu] c = Relu(b)  [neg] y = Sigmoid(c)
        }""")  # fmt: skip
    output = tmp_path / "o.onnx"
    for command in (("opt", model, "-p", "give-names"), ("quantize", model, "--data", "random:1")):
        told(cli(*command, "-o", output, code=2).error)
        assert not output.exists()
        cli(*command, "-o", output, "--allow-findings")
        output.unlink()
    cli("opt", model, "-p", "remove-qdq", "-o", output)

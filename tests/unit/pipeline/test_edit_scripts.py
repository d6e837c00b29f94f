"""What `--record` writes, and that `opt -p @FILE` does it again to the same bytes."""

from __future__ import annotations

import errno
import os
import shutil
import tomllib
from pathlib import Path

import pytest
from qdq_passes.errors import UsageError
from qdq_passes.pipeline.option_types import plain_value
from qdq_passes.pipeline.pipeline import parse_pipeline

from qdqtool.io.files.edit_script import _TABLE, append_script, read_script
from tests.cases.cli_helpers import CALIB, DIGITS, SAMPLES, cli
from tests.cases.quantized_files import quantized_file
from tests.golden_messages.refusal import told

#: Command and options, and the file it edits.
EDITS = {
    "remove": (["remove", "--select", "tensor:input"], "u8s8"),
    "remove all": (["remove", "--all", "--undo-dpu"], "quark_layout"),
    "insert": (["insert", "--select", "tensor:input", "--select", 'tensor:"odd" [\x7f]*', "--allow-empty", "--scale", "0.1"], "float"),
    "set": (["set", "--select", "tensor:input", "--scale", "1e-05", "--zero-point", "3"], "u8s8"),
    "move": (["move", "--select", "tensor:/head/pool_output_0", "--down"], "u8s8"),
    "share": (["share", "--all"], "dedicated"),
    "dedicate": (["dedicate", "--select", "tensor:/pool_output_0"], "u8s8"),
    "fold": (["fold"], "pair_on_weights"),
    "convert": (["convert", "--select", "tensor:/fuse/relu_output_0", "--dtype", "uint16"], "u8s8"),
    "round": (["set", "--all", "--round-pow2"], "u8s8"),
}  # fmt: skip


def source(name: str, folder: Path) -> Path:
    return Path(shutil.copy(DIGITS if name == "float" else quantized_file(name), folder / "source.onnx"))


@pytest.mark.parametrize("name", EDITS)
def test_replay_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    (command, *options), model = EDITS[name][0], source(EDITS[name][1], tmp_path)
    script = tmp_path / "edits.toml"
    cli("qdq", command, model, *options, "-o", tmp_path / "a.onnx", "--record", script)
    again = cli("opt", model, "-p", f"@{script}", "-o", tmp_path / "b.onnx")
    assert "warning" not in again.err
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert (tmp_path / "a.onnx").read_bytes() != model.read_bytes()


def test_ranges_come_along(tmp_path: Path) -> None:
    cli("calibrate", DIGITS, "--data", CALIB, "--samples", "4", "-o", tmp_path / "r" / "ranges.json")
    ranges, script = tmp_path / "r" / "ranges.json", tmp_path / "s" / "edits.toml"
    cli("qdq", "insert", DIGITS, "--ranges", ranges, "-o", tmp_path / "a.onnx", "--record", script)
    assert tomllib.loads(script.read_text())["inputs"]["ranges"]["file"] == "../r/ranges.json"
    cli("opt", DIGITS, "-p", f"@{script}", "-o", tmp_path / "b.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    cli("calibrate", DIGITS, "--data", CALIB, "--samples", "2", "-o", ranges, "--overwrite")
    changed = cli("opt", DIGITS, "-p", f"@{script}", "-o", tmp_path / "c.onnx", code=2)
    told(changed.error)
    cli("opt", DIGITS, "-p", f"@{script}", "--ranges", ranges, "-o", tmp_path / "c.onnx")


def test_edits_are_appended_as_long_as_they_follow_each_other(tmp_path: Path) -> None:
    model, script, steps = source("u8s8", tmp_path), tmp_path / "edits.toml", [tmp_path / f"{n}.onnx" for n in range(3)]
    cli("qdq", "remove", model, "--select", "tensor:input", "-o", steps[0], "--record", script)
    cli("qdq", "set", steps[0], "--select", "tensor:logits", "--scale", "0.5", "-o", steps[1], "--record", script)
    assert [type(p).name() for p in read_script(script).passes] == ["restore-relu", "remove-qdq", "set-qdq"]
    cli("opt", model, "-p", f"@{script}", "--no-provenance", "-o", steps[2])
    assert cli("diff", steps[1], steps[2]).out.strip() == "no differences"
    elsewhere = cli("qdq", "fold", model, "-o", tmp_path / "x.onnx", "--record", script, code=2)
    told(elsewhere.error)
    assert not (tmp_path / "x.onnx").exists()


def test_a_script_of_another_model_says_so(tmp_path: Path) -> None:
    model, script = source("u8s8", tmp_path), tmp_path / "edits.toml"
    cli("qdq", "remove", model, "--select", "tensor:input", "-o", tmp_path / "a.onnx", "--record", script)
    other = cli("opt", quantized_file("u8u8"), "-p", f"@{script}", "-o", tmp_path / "b.onnx")
    assert "was recorded on another model" in other.err


def test_a_file_that_is_no_recorded_script_is_not_appended_to(tmp_path: Path) -> None:
    script = tmp_path / "mine.toml"
    script.write_text('[[pass]]\nname = "sort"\n')
    refused = cli("qdq", "fold", DIGITS, "-o", tmp_path / "a.onnx", "--record", script, code=2)
    told(refused.error)
    assert script.read_text() == '[[pass]]\nname = "sort"\n'


def test_the_model_is_not_recorded_into(tmp_path: Path) -> None:
    model = source("float", tmp_path)
    refused = cli("qdq", "fold", model, "-o", tmp_path / "a.onnx", "--record", model, code=2)
    told(refused.error)


@pytest.mark.parametrize(
    "record",
    ["folder", "file/edits.toml", "file/deeper/edits.toml", "x" * 300 + ".toml", "locked/edits.toml"],
    ids=["folder", "in a file", "below a file", "long", "locked"],
)
def test_a_script_that_cannot_be_written_is_refused_before_the_model_is(
    record: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_elsewhere(path: str, *arguments: int) -> int:
        if "locked" in path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return opened(path, *arguments)

    opened = os.open
    monkeypatch.setattr(os, "open", only_elsewhere)  # the tests may run as a user whom no folder refuses
    (tmp_path / "folder").mkdir()
    (tmp_path / "locked").mkdir()
    (tmp_path / "file").write_text("mine")
    refused = cli("qdq", "fold", DIGITS, "-o", tmp_path / "a.onnx", "--record", tmp_path / record, code=2)
    told(refused.error)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder", "locked"]


def test_an_edit_that_fails_leaves_no_folder_for_its_script(tmp_path: Path) -> None:
    model, script = source("u8s8", tmp_path), tmp_path / "new" / "deep" / "edits.toml"
    options: list[str | Path] = ["--select", "tensor:input", "-o", tmp_path / "a.onnx", "--record", script]
    cli("qdq", "set", model, "--zero-point", "999", *options, code=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source.onnx"]
    cli("qdq", "set", model, "--zero-point", "9", *options)
    assert script.exists()


def test_a_name_bound_to_another_content_is_refused_before_the_model_is_written(tmp_path: Path) -> None:
    ranges, script = tmp_path / "ranges.json", tmp_path / "edits.toml"
    cli("calibrate", DIGITS, "--data", CALIB, "--samples", "4", "-o", ranges)
    cli(
        "qdq",
        "insert",
        DIGITS,
        "--ranges",
        ranges,
        "--select",
        "tensor:input",
        "-o",
        tmp_path / "a.onnx",
        "--record",
        script,
    )
    before = script.read_bytes()
    cli("calibrate", DIGITS, "--data", CALIB, "--samples", "2", "-o", ranges, "--overwrite")
    options: list[str | Path] = ["--ranges", ranges, "-o", tmp_path / "b.onnx", "--record", script]
    refused = cli("qdq", "insert", tmp_path / "a.onnx", *options, code=2)
    told(refused.error)
    assert not (tmp_path / "b.onnx").exists()
    assert script.read_bytes() == before


def test_options_of_every_kind_come_back(tmp_path: Path) -> None:
    text = (
        'insert-qdq{select=["tensor:a \\"b\\"","re:^x\\\\d"] weights=dq scale=[0.5,1e-07] zero-point=[1,2] axis=-1 dedicated=true},'
        "annotate-encodings{encodings=@ranges bias=none symmetric=false},fold-constants{what=all}"
    )
    pipeline = parse_pipeline(text)
    append_script(str(tmp_path / "s.toml"), pipeline.passes, source_sha256="a" * 64, result_sha256="b" * 64, inputs={})
    script = read_script(tmp_path / "s.toml")
    assert script.passes == pipeline.passes
    assert (script.source_sha256, script.result_sha256) == ("a" * 64, "b" * 64)
    assert plain_value((1, 2.5, "x", True), "y") == [1, 2.5, "x", True]


@pytest.mark.parametrize(
    "text",
    [
        'inputs = 3\n[[pass]]\nname = "sort"',
        '[inputs]\nranges = 3\n[[pass]]\nname = "sort"',
        '[inputs]\nother = "x.json"\n[[pass]]\nname = "annotate-encodings"\nencodings = "@other"',
    ],
    ids=["no table", "no file", "unbound"],
)
def test_inputs_that_cannot_be_read(text: str, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(text)
    model = SAMPLES / "if_branch.onnx"
    told(cli("opt", model, "-p", f"@{tmp_path / 's.toml'}", "-o", tmp_path / "o.onnx", code=2).error)


def test_empty_lines_are_not_looked_through_again_and_again(tmp_path: Path) -> None:
    found = _TABLE.search("\n" * 9 + " [[pass]]")
    assert found is not None
    assert found.start() == 9  # from the first line each, it would take quadratic time
    script = tmp_path / "a.toml"
    for text in (f'source_sha256 = "{"f" * 5000}"\n', 'result_sha256 = "x"\n', '[inputs.r]\nfile = "a"\nsha256 = 3\n'):
        script.write_text(text + '[[pass]]\nname = "sort"\n')
        with pytest.raises(UsageError, match="expected 64 hex digits"):
            read_script(script)

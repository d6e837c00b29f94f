"""All paths of a command are looked at against each other before anything is written."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import pytest
from qdq_passes.errors import UsageError

import qdqtool
from qdqtool.cli.help import Command
from qdqtool.options import metadata_of, options_of
from tests.cases.cli_helpers import CALIB, DIGITS, cli, every_command
from tests.golden_messages.refusal import refusal, told


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model, a link to it, one with a file of weights, data, a folder of a preset's name with a pipe, an old file."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(DIGITS, "m.onnx")
    shutil.copy(CALIB, "d.npz")
    onnx.save(onnx.load(DIGITS), "w.onnx", save_as_external_data=True, location="weights", size_threshold=8)
    Path("link").symlink_to("m.onnx")
    Path("old").write_text("old")
    Path("xint8/pipes").mkdir(parents=True)
    os.mkfifo("xint8/pipes/p.npz")


@pytest.mark.parametrize("words", [
    "simplify m.onnx -o a --json-out xint8/../a", "simplify m.onnx -o a --json-out a/b", "demo -o a --json-out a",
    "quantize m.onnx --preset xint8 --data d.npz -o k --save-ranges k", "inspect m.onnx --json-out old",
    "encodings export m.onnx --format ort -o x --float-model x", "simplify m.onnx -o -", "simplify m.onnx -o new/",
    "debug reduce m.onnx --crashes -o s.onnx --json-out s.npz", "simplify m.onnx -o ''",
    "sensitivity m.onnx --data d.npz -o s --json-out s.partial", "simplify m.onnx -o xint8 --overwrite",
    "deploy m.onnx --target vitis_xint8 --data d.npz -o . --overwrite", "inspect m.onnx --json-out xint8/pipes/p.npz --overwrite",
    "deploy m.onnx --target vitis_xint8 --data d.npz -o x --json-out x/j.json", "calibrate m.onnx --data xint8/pipes -o r",
    "simplify w.onnx -o a --json-out weights --overwrite", "inspect m.onnx --json-out /dev/stdout --overwrite",
    "calibrate m.onnx --data xint8/pipes/p.npz -o r", "inspect m.onnx --json-out link --overwrite",
])  # fmt: skip
def test_refused(words: str) -> None:
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    told(cli(*shlex.split(words), code=2).err.strip())
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


def test_files_that_are_replaced_on_demand() -> None:
    """Those beside what is read, and those in a folder that is called as a preset is."""
    Path("xint8/s.npz").write_text("old")
    cli("inspect", "m.onnx", "--json-out", "old", "--overwrite")
    words = "quantize m.onnx --preset xint8 --data random:1 -o q.onnx --save-statistics xint8/s.npz --overwrite"
    cli(*words.split())
    assert Path("old").read_text().startswith("{")


def test_python_looks_at_the_same() -> None:
    with refusal(UsageError):
        qdqtool.quantize("m.onnx", "q", report="q", data="d.npz")


def test_every_option_that_names_a_file_says_its_use() -> None:
    """Of a verb, its field does, or `options_of` complains; of a command that is written by hand, ``uses``, or it is read."""
    for name, made in every_command():
        assert isinstance(made, Command), name
        options = {p.name for p in made.params if re.search("FILE|DIR", getattr(p, "metavar", None) or "")}
        assert made.uses is None or options - {"json_out", "path"} == set(made.uses), name
        assert [p.name for p in made.params].count("overwrite") == 1, name


def test_an_option_that_says_no_use() -> None:
    @dataclass
    class Forgets:
        output: str = field(default="", metadata=metadata_of("Where to.", value="FILE"))

    with pytest.raises(TypeError, match="names a file or folder; say its use"):
        options_of(Forgets)

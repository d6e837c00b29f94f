"""All paths of a command are looked at against each other before anything is written."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import click
import numpy as np
import onnx
import pytest
from qdq_passes.errors import UsageError

import qdqtool
from qdqtool.cli.help import Command
from qdqtool.options import metadata_of, options_of
from tests.cases.cli_helpers import CALIB, DIGITS, cli, every_command
from tests.golden_messages.refusal import told

_QUANTIZE = "quantize IN/m.onnx --preset xint8 --data IN/calib.npz --samples 1"


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """IN/ with a model, one with its weights outside, data; OUT/ with a pipe, a file and a folder."""
    (tmp_path / "IN").mkdir()
    shutil.copy(DIGITS, tmp_path / "IN" / "m.onnx")
    shutil.copy(CALIB, tmp_path / "IN" / "calib.npz")
    onnx.save(
        onnx.load(DIGITS), tmp_path / "IN" / "out.onnx", save_as_external_data=True, location="w", size_threshold=8
    )
    (tmp_path / "IN" / "link").symlink_to("m.onnx")
    (tmp_path / "OUT" / "folder").mkdir(parents=True)
    (tmp_path / "OUT" / "old").write_text("old")
    os.mkfifo(tmp_path / "OUT" / "pipe.npz")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        "simplify IN/m.onnx -o OUT/a --json-out OUT/a",
        "simplify IN/m.onnx -o OUT/a --json-out OUT/../OUT/a",
        "simplify IN/m.onnx -o OUT/a --json-out OUT/a/b",
        f"{_QUANTIZE} -o OUT/k --save-ranges OUT/k",
        f"{_QUANTIZE} -o OUT/k --save-statistics OUT/r --report OUT/r",
        "encodings export IN/m.onnx --format ort -o OUT/x --float-model OUT/x",
        "sensitivity IN/m.onnx --data IN/calib.npz -o OUT/s --json-out OUT/s.partial",
        "debug reduce IN/m.onnx --crashes -o OUT/s.onnx --json-out OUT/s.npz",
        "deploy IN/m.onnx --target vitis_xint8 --data IN/calib.npz -o OUT/d --json-out OUT/d/j.json",
        "deploy IN/m.onnx --target vitis_xint8 --data IN/calib.npz -o . --overwrite",
        "inspect IN/m.onnx --json-out OUT/old",
        "list passes --json-out OUT/old",
        "demo -o OUT/a --json-out OUT/a",
        "simplify IN/m.onnx -o IN/link --overwrite",
        "simplify IN/out.onnx -o OUT/a --json-out IN/w --overwrite",
        "inspect IN/m.onnx --json-out IN/m.onnx --overwrite",
        "simplify IN/m.onnx -o -",
        "simplify IN/m.onnx -o OUT/new/",
        "simplify IN/m.onnx -o ''",
        "simplify IN/m.onnx -o OUT/folder --overwrite",
        "inspect IN/m.onnx --json-out /dev/stdout --overwrite",
        "inspect IN/m.onnx --json-out /dev/null --overwrite",
        "inspect IN/m.onnx --json-out OUT/pipe.npz --overwrite",
        "quantize IN/m.onnx --preset xint8 --data OUT/pipe.npz -o OUT/q.onnx",
        "quantize IN/m.onnx --preset xint8 --data OUT -o OUT/q.onnx",
        "quantize IN/m.onnx --preset xint8 --data IN/calib.npz --ranges OUT/pipe.npz -o OUT/q.onnx",
    ],
)
def test_refused(words: str, places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(places)
    before = {path: path.read_bytes() for path in places.rglob("*") if path.is_file()}
    done = cli(*("" if word == "''" else word for word in words.split()), code=2)
    told(done.err.strip())
    assert {path: path.read_bytes() for path in places.rglob("*") if path.is_file()} == before


def test_files_that_are_replaced_on_demand(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(places)
    cli("inspect", "IN/m.onnx", "--json-out", "OUT/old", "--overwrite")
    assert (places / "OUT" / "old").read_text().startswith("{")
    cli("inspect", "IN/m.onnx", "--json-out", "IN/report.json")
    cli("inspect", "IN/m.onnx", "--json-out", "IN/report.json", "--overwrite")
    Path("xint8").mkdir()  # a preset's name, not what is read
    for more in ((), ("--overwrite",)):
        cli(*_QUANTIZE.split(), "-o", "xint8/q.onnx", *more)
        cli("calibrate", "IN/m.onnx", "--data", "random:1", "-o", "IN/r.json", *more)


def test_python_looks_at_the_same(places: Path) -> None:
    with pytest.raises(UsageError, match="is written by --report and by --output"):
        qdqtool.quantize(
            str(places / "IN" / "m.onnx"), str(places / "OUT" / "q"), report=str(places / "OUT" / "q"),
            data={"input": np.zeros((1, 1, 8, 8), np.float32)},
        )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "made"), sorted(every_command()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_option_that_names_a_file_says_its_use(name: str, made: click.Command) -> None:
    """Of a verb, its field does, or `options_of` complains; of a command that is written by hand, ``uses``, or it is read."""
    assert isinstance(made, Command)
    if made.uses is not None:
        shared = {"json_out", "path"}
        written = {p.name for p in made.params if re.search("FILE|DIR", getattr(p, "metavar", None) or "")} - shared
        assert written == set(made.uses)
    assert sum(p.name == "overwrite" for p in made.params) == 1


def test_an_option_that_says_no_use() -> None:
    @dataclass
    class Forgets:
        output: str = field(default="", metadata=metadata_of("Where to.", value="FILE"))

    with pytest.raises(TypeError, match="names a file or folder; say its use"):
        options_of(Forgets)

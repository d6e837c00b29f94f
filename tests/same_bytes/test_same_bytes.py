"""The comparison of two checkouts finds what was planted, and nothing where both are alike."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import onnx.parser
import pytest

from tests.same_bytes.compare import Difference, Expected, expected, first_difference, report
from tests.same_bytes.produce import HERE, Record, chosen, digest, units

MODEL = (
    '<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] y) <float[1] w = {%s}> { [n] y = Mul (x, w) }'
)


def records(**bytes_: str) -> dict[str, Record]:
    return {"presets/m/p": {"bytes": {"exit": "0", **bytes_}, "words": {"stderr": ""}}}


def unexplained(found: Sequence[Difference]) -> Mapping[Difference, str]:
    return dict.fromkeys(found, "; first here")


def test_equal_results_are_no_difference(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(records(model="1"), records(model="1"), [], unexplained) == []
    assert capsys.readouterr().out == "1 cases are the same, 0 differ, 0 of them not meant\n"


def test_planted_differences_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    before, after = records(model="1", more="2"), records(model="3") | {"presets/m/q": records()["presets/m/p"]}
    after["presets/m/p"]["bytes"]["exit"] = "3"
    found = report(before, after, [Expected("presets/*/p", "told", "mo[d]el")], unexplained)
    assert [(one.case, one.part, one.what) for one in found] == [
        ("presets/m/p", "exit", "0 → 3"),
        ("presets/m/p", "more", "is gone"),
        ("presets/m/q", "", "is new"),
    ]
    assert "presets/m/p model differs (meant: told)\n" in capsys.readouterr().out


def test_wording_is_shown_and_is_no_difference(capsys: pytest.CaptureFixture[str]) -> None:
    before, after = records(), records()
    before["presets/m/p"]["words"]["stderr"], after["presets/m/p"]["words"]["stderr"] = "an old word", "a new word"
    assert report(before, after, [], unexplained) == []
    assert "\n-an old word\n+a new word\n" in capsys.readouterr().out


def test_where_files_begin_to_differ(tmp_path: Path) -> None:
    for name, weight in (("a", "1"), ("b", "2")):
        onnx.save(onnx.parser.parse_model(MODEL % weight), tmp_path / f"{name}.onnx")
        (tmp_path / f"{name}.json").write_text(f'{{"seconds": {weight}, "list": [0, {{"key": {weight}}}]}}')
        (tmp_path / f"{name}.data").write_bytes(b"same" + weight.encode())
    told = {end: first_difference(tmp_path / f"a.{end}", tmp_path / f"b.{end}") for end in ("onnx", "json", "data")}
    assert told["onnx"].startswith("initializer w: ")
    assert told["json"] == "$.list.1.key: 1 → 2"
    assert told["data"] == "byte 4 of 5 and 5"


def test_commands_of_one_process() -> None:
    """The end of a command ends no process: the next one runs."""
    text = """
from qdqtool.cli.main import main
from tests.same_bytes.produce import HERE, Bench
bench = Bench(HERE, None, main)
print([bench.run("--version")[0], bench.run("--no-such-option")[0], bench.run("--version")[0]])
"""
    done = subprocess.run([sys.executable, "-c", text], cwd=HERE, capture_output=True, text=True, check=True)
    assert done.stdout == "['0', '2', '0']\n"


def test_times_are_no_result(tmp_path: Path) -> None:
    for name, text in (
        ("a", '{"seconds": 1.5, "n": 1}'),
        ("b", '{"seconds": 2e-3, "n": 1}'),
        ("c", '{"seconds": 1.5, "n": 2}'),
    ):
        (tmp_path / f"{name}.json").write_text(text)
    a, b, c = (digest(tmp_path / f"{name}.json") for name in "abc")
    assert a == b != c


def test_what_is_asked_for() -> None:
    names = [f"goldens/a/{index}" for index in range(200)]
    parts = [[name for name in names if chosen(name, [], 4, seed)] for seed in (0, 1)]
    assert all(20 < len(part) < 80 for part in parts)
    assert parts[0] != parts[1]
    assert chosen("goldens/a/1", ["goldens/a"], 1, 0)
    assert not chosen("goldens/ab/1", ["goldens/a"], 1, 0)
    assert {"split:tiny_llama", "model:digits", "goldens:0", "texts:"} <= set(units())
    assert all(entry.reason for entry in expected(Path(__file__).with_name("expected.toml")))

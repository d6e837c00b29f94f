"""Warnings are data: results have them, so have JSON and reports; in Python they are warnings of Python, unless somebody listens."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import warnings
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from qdq_passes.errors import QdqWarning

import qdqtool
from qdqtool import api
from qdqtool.io.files.artifacts import without_seconds
from qdqtool.verbs.verb import Verb
from tests.cases.cli_helpers import CALIB, DIGITS, cli
from tests.cases.small_models import model

RANDOM = "random data: ranges and figures say nothing about accuracy"


def small() -> ir.Model:
    text = "g (float[1,8] x) => (float[1,8] y) <float[8,8] w = {%s}> { y = MatMul(x, w) }"
    return model(text % ", ".join(["0.1"] * 64))


def test_python_warns_where_nobody_listens() -> None:
    with pytest.warns(QdqWarning, match="random data") as caught:
        done = qdqtool.quantize(small(), data="random:2", preset="a8w8")
    assert done.warnings == tuple(str(each.message) for each in caught)
    assert {each.filename for each in caught} == {__file__}


def test_who_listens_is_told_instead() -> None:
    told: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = qdqtool.quantize(small(), data="random:2", preset="a8w8", warn=told.append)
    assert tuple(told) == done.warnings
    assert RANDOM in told
    assert done.to_json()["warnings"] == told


def test_a_warning_can_be_an_error() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(QdqWarning, match="random data"):
            qdqtool.compare(small(), small(), data="random:2")


def test_every_result_has_a_place_for_warnings() -> None:
    """A dataclass has a field, a dict a key; a list has none, its warnings are Python's alone."""
    lacking = []
    for name, module in api.VERBS.items():
        verbs = [each for each in vars(importlib.import_module(module)).values() if inspect.isclass(each)]
        for verb in (each for each in verbs if issubclass(each, Verb) and each.__module__ == module):
            if "warn" in {field.name for field in dataclasses.fields(verb)}:
                lacking += [(name, kind) for kind in _results(verb) if not _has_warnings(kind)]
    assert lacking == []


def _results(verb: type[Verb[Any]]) -> list[type]:
    """The dataclasses of what ``verb`` gives, by the names that its module imports for type checkers."""
    tree = ast.walk(ast.parse(Path(inspect.getsourcefile(verb.run) or "").read_text()))
    froms = [(alias, node.module or "") for node in tree if isinstance(node, ast.ImportFrom) for alias in node.names]
    known = {alias.asname or alias.name: (module, alias.name) for alias, module in froms}
    names = [part.partition("[")[0] for part in verb.run.__annotations__["return"].split(" | ")]
    places = [known.get(name, (verb.run.__module__, name)) for name in names if name not in ("dict", "list")]
    return [getattr(importlib.import_module(module), name) for module, name in places]


def _has_warnings(kind: type) -> bool:
    return "warnings" in {each.name for each in dataclasses.fields(kind)}


def test_json_has_them_and_they_can_fail_a_command(tmp_path: Path) -> None:
    qdqtool.save(small(), tmp_path / "m.onnx")
    asked = ["compare", tmp_path / "m.onnx", tmp_path / "m.onnx", "--data", "random:2"]
    assert cli(*asked, "--json").json["warnings"] == [RANDOM]
    assert cli(*asked, "--json", "--fail-on-warning", code=1).json["warnings"] == [RANDOM]
    assert cli("inspect", tmp_path / "m.onnx", "--json", "--fail-on-warning").json["warnings"] == []


def test_reports_of_equal_runs_are_equal_bytes(tmp_path: Path) -> None:
    """What a machine took stands apart, in `seconds.json`."""
    asked = ["deploy", DIGITS, "--target", "vitis_xint8", "--data", "random:2", "--samples", "2"]
    for name in ("one", "two"):
        cli(*asked, "-o", tmp_path / name)
    one, two = ({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert one.keys() == two.keys()
    assert [name for name in one if one[name] != two[name]] in ([], ["seconds.json"])
    report, seconds = json.loads(one["report.json"]), json.loads(one["seconds.json"])
    assert RANDOM in report["warnings"]
    assert f"warning: {RANDOM}\n" in one["report.txt"].decode()
    assert without_seconds(report) == (report, {})
    assert set(seconds["seconds"]) == {"cleaning", "quantizing", "checking", "analyzing", "comparing", "simulating"}


def test_reports_of_a_model_in_memory_name_no_hidden_folder(tmp_path: Path) -> None:
    for name in ("one", "two"):
        qdqtool.deploy(
            small(), tmp_path / name, target="qnn_htp", data="random:2", require_npu=0, min_sqnr=0, simulate_samples=0
        )
    assert (tmp_path / "one" / "report.json").read_bytes() == (tmp_path / "two" / "report.json").read_bytes()


def test_the_report_of_quantize_is_equal_of_equal_runs(tmp_path: Path) -> None:
    for name in ("one", "two"):
        cli(
            "quantize",
            DIGITS,
            "--data",
            CALIB,
            "--samples",
            "2",
            "-o",
            tmp_path / f"{name}.onnx",
            "--report",
            tmp_path / name,
        )
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert "warnings" in json.loads((tmp_path / "one").read_text())

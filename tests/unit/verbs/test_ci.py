"""What continuous integration asks: bounds of single outputs and on partitions, baselines, JUnit files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from qdq_passes.errors import UsageError

import qdqtool
from tests.cases.cli_helpers import CALIB, DIGITS, cli, run_script, write
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal, told

OPTIONS = ("--target", "vitis_xint8", "--data", CALIB, "--samples", "4", "--simulate-samples", "0", "-q")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("ci") / "out"
    cli("deploy", DIGITS, *OPTIONS, "-o", made)
    return made


def cases(file: Path) -> list[ElementTree.Element]:
    suite = ElementTree.parse(file).getroot().find("testsuite")
    assert suite is not None
    found = suite.findall("testcase")
    assert int(suite.attrib["tests"]) == len(found)
    assert int(suite.attrib["failures"]) == len(suite.findall("testcase/failure"))
    return found


def test_bounds_of_an_output_and_on_partitions(tmp_path: Path) -> None:
    done = cli(
        "deploy", DIGITS, *OPTIONS, "--min-output", "logits=60", "--max-partitions", "0", "-o", tmp_path / "a", code=1
    )
    assert done.err == "" or "error" not in done.err
    missed = json.loads((tmp_path / "a" / "report.json").read_text())["missed"]
    assert ["output logits" in text for text in missed] == [False, True]
    assert "partition" in missed[0]
    cli("deploy", DIGITS, *OPTIONS, "--min-sqnr", "60", "--min-output", "logits=10", "-o", tmp_path / "b")
    ends = [run_script(tmp_path / name, tmp_path / f"{name}2") for name in ("a", "b")]
    assert ends == [{name: int(name in missing) for name in ends[0]} for missing in (("analyze", "compare"), ())]
    told(cli("deploy", DIGITS, *OPTIONS, "--min-output", "lgits=10", "-o", tmp_path / "c", code=2).error)
    told(cli("deploy", DIGITS, *OPTIONS, "--min-output", "logits", "-o", tmp_path / "d", code=2).error)
    cli("analyze", tmp_path / "a" / "model.onnx", "--target", "vitis_xint8", "--max-partitions", "1")
    cli("analyze", tmp_path / "a" / "model.onnx", "--target", "vitis_xint8", "--max-partitions", "0", code=1)


def worse(report: dict[str, Any], tmp_path: Path) -> Path:
    """A baseline that was better than what will be deployed: ``report`` with other figures."""
    file = tmp_path / "better.json"
    file.write_text(json.dumps(report))
    return file


def test_a_baseline_fails_only_what_is_worse(folder: Path, tmp_path: Path) -> None:
    report = folder / "report.json"
    cli("deploy", DIGITS, *OPTIONS, "--min-sqnr", "90", "--baseline", report, "-o", tmp_path / "same")
    data = json.loads(report.read_text())
    figure = data["comparison"]["outputs"]["logits"]["sqnr_db"]
    data["comparison"]["outputs"]["logits"]["sqnr_db"] = figure + 3
    data["analysis"]["partitions"] = []
    data["npu_share"] = 1.5
    cli("deploy", DIGITS, *OPTIONS, "--baseline", worse(data, tmp_path), "-o", tmp_path / "worse", code=1)
    missed = json.loads((tmp_path / "worse" / "report.json").read_text())["missed"]
    assert len(missed) == 3
    for word in ("multiply-accumulates", "partitions, were 0", f"was {figure + 3:.1f} dB"):
        assert any(word in text for text in missed)
    (tmp_path / "none.json").write_text("{}")
    with refusal(UsageError):
        qdqtool.deploy(DIGITS, tmp_path / "x", target="vitis_xint8", data=CALIB, baseline=tmp_path / "none.json")
    assert not (tmp_path / "x").exists()


def test_a_baseline_of_an_analysis_replaces_the_bounds(folder: Path, tmp_path: Path) -> None:
    """Met or missed, they are not asked; more partitions than there were fail."""
    asked = (
        "analyze",
        folder / "model.onnx",
        "--target",
        "vitis_xint8",
        "--max-partitions",
        "0",
        "--require-npu",
        "100%",
    )
    report = tmp_path / "a.json"
    cli(*asked, "--json-out", report, code=1)
    cli(*asked, "--baseline", report)
    data = json.loads(report.read_text())
    data["partitions"] = []
    done = cli(*asked, "--baseline", worse(data, tmp_path), code=1)
    assert "failed: 1 partition, were 0" in done.out


def test_junit_of_a_deployment(tmp_path: Path) -> None:
    cli("deploy", DIGITS, *OPTIONS, "--min-sqnr", "60", "--junit", tmp_path / "j.xml", "-o", tmp_path / "out", code=1)
    found = cases(tmp_path / "j.xml")
    assert [each.attrib["name"] for each in found] == ["output logits"]
    failure = found[0].find("failure")
    assert failure is not None
    assert "below the required 60 dB" in failure.attrib["message"]


def test_junit_of_an_analysis_skips_what_the_cpu_runs(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "j.xml"
    cli("analyze", folder / "model.onnx", "--target", "vitis_xint8", "--junit", file)
    assert len(cases(file)) == 19
    assert not [each for each in cases(file) if len(each.findall("skipped"))]
    file = tmp_path / "k.xml"
    cli("analyze", folder / "float.onnx", "--target", "vitis_xint8", "--require-npu", "95%", "--junit", file, code=1)
    found = cases(file)
    assert sum(len(each.findall("skipped")) for each in found) == len(found) - 1
    assert sum(len(each.findall("failure")) for each in found) == 1


def test_junit_of_a_check(tmp_path: Path) -> None:
    file = tmp_path / "j.xml"
    cli("check", DIGITS, "--junit", file)
    assert [each.attrib["name"] for each in cases(file)] == ["no findings"]
    pair = "[q] i = QuantizeLinear(x, s, z) [d] y = DequantizeLinear(i, s, z)"
    text = f"g (float[1,4] x) => (float[1,4] y) <float s = {{-0.5}}, int8 z = {{0}}> {{ {pair} }}"
    made, file = tmp_path / "m.onnx", tmp_path / "k.xml"
    write(made, text)
    done = cli("check", made, "--junit", file, "--json", code=1)
    errors = [f for f in done.json["findings"] if f["level"] == "error"]
    assert len([each for each in cases(file) if len(each.findall("failure"))]) == len(errors) > 1
    old = tmp_path / "old.json"
    old.write_text(json.dumps({"findings": errors[:1]}))
    cli("check", made, "--baseline", old, "--junit", file, "--overwrite", code=1)
    failing = [each.attrib["name"] for each in cases(file) if len(each.findall("failure"))]
    assert failing == [f"{f['rule']} {f['where']}" for f in errors[1:]]


def test_names_that_xml_cannot_hold(tmp_path: Path) -> None:
    graph = model("g (float[1,4] x) => (float[1,4] y) { [a] y = Relu(x) }")
    graph.graph[0].name = 'a\x01<&"'
    qdqtool.analyze(graph, target="generic_int8", junit=tmp_path / "j.xml")
    assert [each.attrib["name"] for each in cases(tmp_path / "j.xml")] == ['a\\x01<&" (Relu)']

"""`sensitivity`: figures of single nodes, on the real model; parallel, resumed, drawn."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from qdq_passes.errors import QdqError

import qdqtool
from qdqtool import api
from tests.cases import search_metrics
from tests.cases.cli_helpers import CALIB, DEMO, DIGITS, SAMPLES, cli, process
from tests.cases.packed_workers import without_processes
from tests.cases.small_nets import small_net
from tests.golden_messages.refusal import refusal, told

METRIC = f"{search_metrics.__file__}:"


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("digits")
    cli("sensitivity", DIGITS, "--data", CALIB, "-o", folder / "s.json", "--plot", folder / "s.svg")
    found = json.loads((folder / "s.json").read_text())
    return {**found, "svg": (folder / "s.svg").read_text(), "left": [p.name for p in folder.iterdir()]}


def test_figures_are_those_of_quantize(digits: dict[str, object]) -> None:
    rows = digits["nodes"]
    assert isinstance(rows, list)
    worst = rows[0]
    only = qdqtool.quantize(DIGITS, data=CALIB, only=worst["members"])
    without = qdqtool.quantize(DIGITS, data=CALIB, float=worst["members"])
    plain = qdqtool.quantize(DIGITS, data=CALIB)
    for figure, done in ((worst["only_db"], only), (worst["without_db"], without), (digits["quantized"], plain)):
        assert done.comparison is not None
        assert figure == round(done.comparison.min_sqnr or 0.0, 6)


def test_worst_first_with_operator_scope_and_macs(digits: dict[str, object]) -> None:
    rows = digits["nodes"]
    assert isinstance(rows, list)
    assert [row["only_db"] for row in rows] == sorted(row["only_db"] for row in rows)
    convs = [row for row in rows if row["op"] == "Conv"]
    assert len(convs) == 6
    assert all(row["macs"] > 0 and len(row["members"]) >= 1 for row in convs)
    assert {"name", "op", "scope", "only_db", "without_db", "macs", "members", "only", "without"} <= set(rows[0])
    assert digits["float"] is None, "the float model differs from itself in nothing"
    assert digits["samples"] == 16


def test_plot_is_svg_with_a_bar_for_each_figure(digits: dict[str, object]) -> None:
    root = ElementTree.fromstring(str(digits["svg"]))
    bars = [e for e in root.iter("{http://www.w3.org/2000/svg}rect") if e.get("class") in ("only", "without")]
    rows = digits["nodes"]
    assert isinstance(rows, list)
    assert len(bars) == 2 * len(rows)
    assert sorted(digits["left"]) == ["s.json", "s.svg"]  # type: ignore[call-overload]


@pytest.mark.product(days=3)
def test_modes_selection_and_groups() -> None:
    found = cli("sensitivity", DIGITS, "--data", CALIB, "--mode", "only", "--select", "op:Gemm", "--json").json
    assert [row["name"] for row in found["nodes"]] == ["/head/fc"]
    assert "without" not in found["nodes"][0]
    found = cli("sensitivity", DIGITS, "--data", CALIB, "--mode", "without", "--by", "type", "--json").json
    by_type = {row["name"]: row for row in found["nodes"]}
    assert by_type["Conv"]["op"] == "Conv"
    assert "only" not in by_type["Conv"]
    assert found["nodes"][0]["name"] == "Conv", "leaving out every convolution gains most"
    found = api.sensitivity(str(SAMPLES / "vit_block.onnx"), "random:2", by="layer", mode="only")
    assert {row.group.name for row in found.rows} == {"0", "1", "(none)"}


@pytest.mark.product(days=3)
def test_a_row_is_what_moves_together() -> None:
    found = cli("sensitivity", DIGITS, "--data", CALIB, "--mode", "only", "--select", "/stem/*", "--json").json
    (row,) = found["nodes"]
    assert (row["name"], row["members"]) == ("/stem/conv", ["/stem/conv", "/stem/relu"])


def test_jobs_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = without_processes(monkeypatch)
    net, data = small_net("unet", tmp_path)
    for jobs in ("1", "2"):
        cli("sensitivity", net, "--data", data, "--jobs", jobs, "-o", tmp_path / f"{jobs}.json")
    assert max(sent) > 1
    assert (tmp_path / "1.json").read_bytes() == (tmp_path / "2.json").read_bytes()


@pytest.mark.product(days=3)
def test_metric_with_labels() -> None:
    found = cli("sensitivity", DIGITS, "--data", CALIB, "--eval-data", DEMO / "test.npz", "--eval-samples", "32",
                "--metric", "accuracy", "--mode", "only", "--select", "op:Gemm", "--json").json  # fmt: skip
    assert found["samples"] == 32
    assert found["metric"] == "accuracy"
    assert 0.9 < found["float"] <= 1.0
    assert "only_db" not in found["nodes"][0]


@pytest.mark.extra
def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    counted, output = tmp_path / "calls", tmp_path / "s.json"
    words = [
        "sensitivity",
        DIGITS,
        "--data",
        CALIB,
        "--samples",
        "4",
        "--select",
        "op:Conv",
        "--metric",
        f"{METRIC}counted",
        "-o",
        output,
    ]
    died = process(*words, SEARCH_CALLS=str(counted), SEARCH_KILL="6")
    assert died.returncode == -9
    partial = tmp_path / "s.json.partial"
    lines = partial.read_text().splitlines()
    assert len(lines) == 1 + 4, "the float model is judged first, then what was finished stands behind the head"
    again = process(*words, SEARCH_CALLS=str(counted))
    assert again.returncode == 2
    assert "--resume" in again.stderr
    partial.write_text(partial.read_text() + '{"key": "cut o')
    counted.unlink()
    done = process(*words, "--resume", partial, SEARCH_CALLS=str(counted))
    assert done.returncode == 0, done.stderr
    rows = json.loads(output.read_text())["nodes"]
    assert int(counted.read_text()) == 1 + (1 + 2 * len(rows)) - 4, "what was measured is not measured again"
    assert not partial.exists()
    fresh = process(*words[:-1], tmp_path / "fresh.json", SEARCH_CALLS=str(counted))
    assert fresh.returncode == 0
    assert (tmp_path / "fresh.json").read_bytes() == output.read_bytes()


def test_resume_refuses_what_is_of_something_else(tmp_path: Path) -> None:
    journal, (net, data) = tmp_path / "journal", small_net("gated", tmp_path)
    words = ["sensitivity", net, "--data", data, "--select", "op:Gemm", "--mode", "only", "--resume", journal]
    cli(*words)
    assert journal.exists(), "a file that the user named stays"
    cli(*words)
    for more in (
        ["--preset", "a8w8"],
        ["--exclude", "pool"],
        ["--samples", "3"],
        ["--eval-samples", "3"],
        ["--metric", "cosine"],
    ):
        told(cli(*words, *more, code=2).error)
    (tmp_path / "other").mkdir()
    another, its = small_net("quoted", tmp_path / "other")
    other = cli("sensitivity", another, "--data", its, "--resume", journal, code=2)
    told(other.error)
    journal.write_text("no journal\n")
    told(cli(*words, code=2).error)


def test_what_cannot_be(tmp_path: Path) -> None:
    net, data = small_net("gated", tmp_path)
    words = ["sensitivity", net, "--data", data]
    told(cli(*words, "--metric", "top5", code=2).error)
    told(cli(*words, "--metric", f"{METRIC}nothing", code=2).error)
    told(cli(*words, "--metric", f"{METRIC}failing", code=2).error)
    told(cli(*words, "--metric", "accuracy", code=2).error)
    told(cli(*words, "--select", "nowhere", code=2).error)
    told(cli(*words, "--select", "pool", "--exclude", "pool", code=2).error)
    told(cli("sensitivity", net, code=2).error)
    with refusal(QdqError):
        api.sensitivity(DIGITS, CALIB, flavour="sweet")


def test_a_model_in_memory_stays_as_it_is() -> None:
    model = qdqtool.load(DIGITS)
    before = [node.name for node in model.graph]
    with np.load(CALIB) as data:
        found = api.sensitivity(model, [{"input": data["input"][:1]}], mode="only", by="type")
    assert [node.name for node in model.graph] == before
    assert found.rows

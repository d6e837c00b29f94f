"""`report`: what verbs find out becomes one record of each model, and the page is written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from qdq_passes.errors import UsageError

from qdqtool.io.models.load import load
from qdqtool.verbs.npu.analyze import analyze
from qdqtool.verbs.story.report import report
from qdqtool.verbs.work.records import graph_record
from qdqtool.verbs.work.reporting import labels_of
from tests.cases.cli_helpers import DIGITS, cli, quantized_digits, write

DATA = str(Path(DIGITS).with_name("test.npz"))
#: Behind a pair of int8, a Conv with a bias; the batch has a name.
CONV = """
    <ir_version: 10, opset_import: ["" : 21]>
    g (float[N,2,4,4] x) => (float[N,3,4,4] y)
    <float s = {0.5}, int8 z = {0}, int8[3,2,1,1] w = {1,2,3,4,5,6}, float[3] b = {1,2,3}>
    { [q0] i = QuantizeLinear(x, s, z) [d0] f = DequantizeLinear(i, s, z) [dw] v = DequantizeLinear(w, s, z)
      [conv] t = Conv(f, v, b) [relu] r = Relu(t) [q1] j = QuantizeLinear(r, s, z) [d1] y = DequantizeLinear(j, s, z) }"""


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantized_digits(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def told(quantized: Path) -> Any:
    return cli(
        "report", quantized, "--float", DIGITS, "--data", DATA, "--samples", "4", "--ranges", quantized.with_name("r.json"),
        "--target", "vitis_xint8", "--chip", "snapdragon_8_elite", "--worst", "1", "-o", quantized.with_name("page.html"), "--json",
    ).json  # fmt: skip


def test_everybody_adds_to_one_record(quantized: Path, told: Any) -> None:
    """As `analyze`, `estimate` and `explain` say it; nodes in the order of the graph."""
    record = told["models"][0]["record"]
    nodes = {node["name"]: node for node in record["nodes"]}
    graph = [node.name for node in load(quantized).graph]
    assert list(nodes) == [name for name in graph if name in nodes]
    analysis = cli("analyze", quantized, "--target", "vitis_xint8", "--json").json
    judged = {node["name"]: node["verdict"] for node in analysis["nodes"] if node["kind"] != "pair"}
    assert {name: node["verdict"] for name, node in nodes.items()} == judged
    assert record["whole"]["operators"] == len(judged)
    time = cli("estimate", quantized, "--chip", "snapdragon_8_elite", "--target", "vitis_xint8", "--json").json[
        "estimates"
    ][0]
    assert record["whole"]["us"] == pytest.approx(1000 * time["ms"], rel=1e-3)
    for one in time["nodes"]:
        assert nodes[one["name"]]["us"] == pytest.approx(1000 * one["ms"], rel=1e-3)
    conv = nodes["/stem/conv"]
    assert conv["low_us"] < conv["us"] < conv["high_us"]
    assert conv["here_db"] > 20
    assert sum(record["causes"].values()) == pytest.approx(sum(record["noise"].values()))
    assert record["whole"]["file_bytes"] == quantized.stat().st_size
    told_first = told["models"][0]["told"][0]
    assert told_first["name"] == "/head/pool_output_0"
    assert any(tensor.get("moved", [{}])[-1].get("by") == "refine-positions" for tensor in record["tensors"])


def test_the_page_holds_what_was_found(told: Any) -> None:
    page = Path(told["written"]).read_text(encoding="utf-8")
    assert len(page.encode()) == told["bytes"]
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert found is not None
    model = json.loads(found[1])["models"][0]
    assert [one["n"] for one in model["tensors"]] == [one["name"] for one in told["models"][0]["record"]["tensors"]]
    assert model["advice"][0]["edits"][0][1] == told["models"][0]["told"][0]["mends"][0]["command"]
    assert sum(model["causes"].values()) == pytest.approx(1, abs=1e-3)


def test_bytes_are_those_of_integers_where_pairs_stand(tmp_path: Path) -> None:
    """The Conv reads 32 + 6 integers and 3 floats and writes 48 floats; the Relu writes 48 integers. A named size counts as 1."""
    path = write(tmp_path / "m.onnx", CONV)
    found = graph_record(load(path), path)
    assert [(node.name, node.op, node.bytes) for node in found.nodes] == [
        ("conv", "Conv", 32 + 6 + 12 + 192), ("relu", "Relu", 192 + 48),
    ]  # fmt: skip
    assert found.nodes[0].tensors == ("t",)
    assert found.whole.file_bytes == Path(path).stat().st_size


def test_what_the_target_refuses_has_its_reason(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", CONV)
    found = analyze(path, target="vitis_xint8", trials=False).record
    conv = next(node for node in found.nodes if node.name == "conv")
    assert (conv.device, bool(conv.reason)) == ("CPU", True)
    assert {node.name for node in found.nodes} == {"conv", "relu"}
    assert found.whole.npu_operators == 0


def test_labels_tell_models_apart() -> None:
    assert labels_of(["a/m.onnx", "b/m.onnx", "m.onnx"]) == ["a/m.onnx", "b/m.onnx", "m.onnx"]
    assert labels_of(["x/a/m.onnx", "x/b/n.onnx"]) == ["m.onnx", "n.onnx"]
    assert labels_of(["m.onnx", "m.onnx", "./m.onnx"]) == ["m.onnx", "m.onnx (2)", "./m.onnx"]


def test_what_cannot_be_reported_is_refused(quantized: Path, tmp_path: Path) -> None:
    """Before anything is run."""
    there = tmp_path / "there.html"
    there.write_text("", encoding="utf-8")
    page = str(tmp_path / "p.html")
    for line, text in (
        ([quantized, "--data", "random:1", "-o", there], "exists"),
        ([DIGITS, "--data", "random:1", "-o", page], "has no QDQ pairs"),
        ([quantized, "--data", "random:1", "--chip", "nowhere", "-o", page], "unknown chip 'nowhere'"),
        (
            [quantized, "--data", "random:1", "-o", page, *("--ranges", "a.json") * 2],
            "2 files of --ranges for 1 models",
        ),
        (["--data", "random:1", "-o", page], "Missing argument 'MODEL...'"),
    ):
        done = cli("report", *line, code=2)
        assert text in done.out + done.err, line
    with pytest.raises(UsageError, match="no model to report on"):
        report([], "random:1", output=page)

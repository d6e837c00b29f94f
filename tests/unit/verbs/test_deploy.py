"""`deploy`: a folder that is whole or not there, whose commands make it again, and bounds that fail without taking it away."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qdq_passes.errors import UsageError

import qdqtool
from qdqtool.record.record import Record
from qdqtool.targets.loading import load_target
from tests.cases.cli_helpers import CALIB, DIGITS, cli, run_script
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal, told

TARGET = ["--target", "vitis_xint8"]
FEW = ["--samples", "4"]
FILES = [
    "commands.sh",
    "device.py",
    "float.onnx",
    "model.onnx",
    "pipeline.txt",
    "ranges.json",
    "report.json",
    "report.txt",
    "seconds.json",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("deploy") / "out"
    cli("deploy", DIGITS, *TARGET, "--data", CALIB, *FEW, "-o", made)
    return made


def report(folder: Path) -> Any:
    return json.loads((folder / "report.json").read_text())


def test_the_folder(folder: Path) -> None:
    found = report(folder)
    assert sorted(os.listdir(folder)) == FILES == found["files"]
    assert (found["format"], found["version"], found["passed"], found["missed"]) == ("qdqtool.deployment", 1, True, [])
    assert (found["preset"], found["npu_share"]) == ("xint8", 1.0)
    assert found["sqnr_db"] == found["comparison"]["min_sqnr"] > 20
    assert found["simulation"]["samples"] == 2
    assert all(output["exact"] == 1.0 for output in found["simulation"]["outputs"].values())
    assert os.listdir(folder.parent) == ["out"], "nothing is left beside it"
    summary = (folder / "report.txt").read_text()
    assert re.search(r"on the NPU +19 of 19 operators, 100.0 % of the MACs, 1 partition", summary)
    assert re.search(r"size +[\d.]+ KiB → [\d.]+ KiB: weights stay float behind their pairs", summary)
    assert "failed" not in summary


def test_the_steps_fill_one_record(folder: Path) -> None:
    found = report(folder)
    record = Record.from_json(found["record"])
    assert not any("record" in found[step] for step in ("quantization", "analysis", "comparison", "simulation"))
    db = found["comparison"]["outputs"]["logits"]["sqnr_db"]
    assert record.noise["logits"] == pytest.approx(10 ** (-db / 10))
    assert (record.samples, record.whole.target) == (found["comparison"]["samples"], "vitis_xint8")
    conv = next(node for node in record.nodes if node.name == "/stem/conv")
    assert (conv.device, conv.verdict) == ("DPU", "npu-int")
    assert conv.bytes is not None
    pool = next(one for one in record.tensors if one.name == "/head/pool_output_0")
    assert [move.by for move in pool.moved] == ["annotate-encodings", "refine-positions"]
    assert pool.low is not None
    assert pool.whole_db is not None


def test_the_commands_make_the_same_files(folder: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    assert list(run_script(folder, again).items()) == [
        ("opt", 0), ("quantize", 0), ("check", 0), ("analyze", 0), ("compare", 0), ("simulate", 0)
    ]  # fmt: skip
    for name in ("float.onnx", "model.onnx", "ranges.json"):
        assert (again / name).read_bytes() == (folder / name).read_bytes(), name


def test_the_pipeline_replays(folder: Path, tmp_path: Path) -> None:
    cli("opt", folder / "float.onnx", "-p", f"@{folder / 'pipeline.txt'}", "--ranges", folder / "ranges.json", "-o", tmp_path / "m.onnx")  # fmt: skip
    assert (tmp_path / "m.onnx").read_bytes() == (folder / "model.onnx").read_bytes()


def test_a_missed_bound_fails_behind_a_whole_folder(tmp_path: Path) -> None:
    bounds = ["--min-sqnr", "90", "--require-npu", "100%", "--exclude", "/head/fc", "--simulate-samples", "0"]
    result = cli("deploy", DIGITS, *TARGET, "--data", CALIB, *FEW, "-o", tmp_path / "out", *bounds, code=1)
    found = report(tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == FILES
    assert found["missed"] == [line.removeprefix("failed: ") for line in result.out.splitlines() if "failed: " in line]
    assert [re.sub(r"[\d.]+ (%|dB)", r"N \1", text) for text in found["missed"]] == [
        "N % of the multiply-accumulates are on the NPU, required are N %", "output logits: SQNR N dB, below the required N dB; `qdqtool explain` names what costs most"
    ]  # fmt: skip
    assert found["simulation"] is None
    assert "simulate" not in (tmp_path / "out" / "commands.sh").read_text()


def test_a_model_that_stays_on_the_cpu_is_equal_to_nothing(tmp_path: Path) -> None:
    """One operator that the target lacks costs a target of whole models all of them: no figure of the simulation is one of the NPU."""
    source, array = tmp_path / "source.onnx", np.zeros((2, 8), np.float32)
    text = """<ir_version: 10, opset_import: ["" : 17]> g (float[1,8] x) => (float[1,8] y) <float[8,8] w = {%s}>
    { a = MatMul(x, w) y = Acos(a) }"""
    qdqtool.save(model(text % ", ".join(["0.1"] * 64)), source)
    done = qdqtool.deploy(source, tmp_path / "out", target="apple_ane", data={"x": array})
    summary = (tmp_path / "out" / "report.txt").read_text()
    assert done.analysis.share == 0
    assert "nothing: the CPU was compared with itself on 2 samples" in summary
    assert "estimated time" not in summary


METRIC = """
def shifted(outputs, feeds):
    return float(sum((o["logits"].argmax() == f["labels"]).mean() for o, f in zip(outputs, feeds)) / len(feeds))
"""


def test_a_metric_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(METRIC)
    held_out = str(Path(CALIB).with_name("test.npz"))
    options = [
        "--eval-data",
        held_out,
        "--eval-samples",
        "40",
        "--float-metric",
        f"{tmp_path / 'mine.py'}:shifted",
        "--min-metric",
        "1.1",
    ]
    asked = [*TARGET, "--data", CALIB, *FEW, "-o", tmp_path / "out", "--simulate-samples", "0", *options]
    found = cli("deploy", DIGITS, *asked, "--json", code=1).json
    assert found["metric"]["float"] > 0.9
    assert found["metric"]["quantized"] > 0.9
    assert found["comparison"]["samples"] == 40
    (missed,) = found["missed"]
    assert missed.endswith("required is 1.1")


def test_options_of_quantize_reach_it(tmp_path: Path) -> None:
    options = ["--preset", "a8w8", "--method", "minmax", "--exclude", "op:Gemm", "--require-npu", "0"]
    cli("deploy", DIGITS, *TARGET, "--data", CALIB, *FEW, *options, "-o", tmp_path / "out", "--simulate-samples", "0")
    quantization = report(tmp_path / "out")["quantization"]
    assert (quantization["preset"], quantization["method"], quantization["samples"]) == ("a8w8", "minmax", 4)
    assert {e["node"] for e in quantization["excluded"] if "--exclude" in e["reason"]} == {"/head/fc"}


class Reader:
    """Samples one after another, as onnxruntime's quantizer takes them; there is no second time."""

    def __init__(self, feeds: list[dict[str, Any]]) -> None:
        self.feeds = feeds

    def get_next(self) -> dict[str, Any] | None:
        return self.feeds.pop(0) if self.feeds else None


def test_a_reader_serves_every_step(tmp_path: Path) -> None:
    net = model("g (float[1,4] x) => (float[1,4] y) { y = Relu(x) }")
    samples, others = ([{"x": np.full((1, 4), n, np.float32)} for n in range(count)] for count in (3, 2))
    done = qdqtool.deploy(
        net, tmp_path / "out", target="qnn_htp", data=Reader(samples), eval_data=Reader(others), simulate_samples=1
    )
    assert (done.quantized.quantization.ranges.samples, done.comparison.samples) == (3, 2)


def test_a_model_in_memory_lies_in_the_folder_too(tmp_path: Path) -> None:
    with np.load(CALIB) as data:
        feeds = [{"input": data["input"][i : i + 1]} for i in range(3)]
    told: list[str] = []
    done = qdqtool.deploy(
        qdqtool.load(DIGITS), tmp_path / "out", target="vitis_xint8", data=iter(feeds), simulate_samples=1,
        progress=lambda stage, done, total: told.append(stage),
    )  # fmt: skip
    assert done.missed == ()
    assert done.comparison.samples == 3
    assert sorted(done.files) == sorted([*FILES, "source.onnx"])
    heads = list(dict.fromkeys(text.partition(":")[0] for text in told))
    assert heads == [f"{i + 1}/6 {name}" for i, name in enumerate(done.seconds)]


def test_overwrite_replaces_what_deploy_wrote_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = ["deploy", DIGITS, *TARGET, "--data", CALIB, "--samples", "1", "--simulate-samples", "0", "-o", out]
    cli(*asked)
    told(cli(*asked, code=2).error)
    cli(*asked, "--overwrite", "--exclude", "op:Gemm")
    assert "op:Gemm" in (out / "commands.sh").read_text()
    source = ["deploy", out / "float.onnx", *TARGET, "--data", CALIB, "-o", out, "--overwrite"]
    told(cli(*source, code=2).error)
    (out / "notes.txt").write_text("mine")
    told(cli(*asked, "--overwrite", code=2).error)
    assert (out / "notes.txt").read_text() == "mine"
    assert os.listdir(tmp_path) == ["out"]


def test_a_run_that_fails_leaves_nothing(tmp_path: Path) -> None:
    asked = ["deploy", DIGITS, *TARGET, "--data", CALIB, "--exclude", "op:NoSuchOp", "-o", tmp_path / "new" / "out"]
    cli(*asked, code=2)
    assert os.listdir(tmp_path) == []


def test_what_is_refused_before_any_work(tmp_path: Path) -> None:
    for options in (
        {"data": CALIB},
        {"target": "vitis_xint8"},
        {"target": "vitis_xint8", "data": CALIB, "min_metric": 0.5},
        {"target": "vitis_xint8", "data": CALIB, "integer_io": True},
    ):
        with refusal(UsageError):
            qdqtool.deploy(DIGITS, tmp_path / "out", **options)  # type: ignore[arg-type]
    with refusal(UsageError):
        qdqtool.deploy(tmp_path, tmp_path / "out", target="vitis_xint8", data=CALIB)


def test_a_model_that_is_quantized_already_is_refused(folder: Path, tmp_path: Path) -> None:
    made = folder / "model.onnx"
    done = cli("deploy", made, "--target", "vitis_xint8", "--data", CALIB, "-o", tmp_path / "again", code=2)
    command = re.findall("`qdqtool ([^`]*)`", done.error)
    assert re.search(r"has \d+ QDQ pairs already", done.error)
    words = [str(tmp_path / word) if word == "float.onnx" else word for word in shlex.split(command[0])]
    assert cli("quantize", made, "--data", CALIB, "--samples", "2", "-o", tmp_path / "q.onnx", code=None).err.count(
        f"`qdqtool {command[0]}`"
    )
    cli(*words)
    cli(
        "quantize", tmp_path / "float.onnx", "--data", CALIB, "--samples", "2", "-o", tmp_path / "q.onnx", "--overwrite"
    )


def test_a_symbolic_batch_is_bound_where_the_target_wants_it(tmp_path: Path) -> None:
    done = qdqtool.deploy(
        DIGITS, tmp_path / "out", target="qnn_htp", data=CALIB, samples=2, preset="qnn-a8w8", simulate_samples=0
    )
    assert done.cleaning.startswith('fix-shapes{shapes=["input=1x1x8x8"]},')
    assert done.analysis.share == 1.0


def test_the_folder_runs_on_the_device(folder: Path, tmp_path: Path) -> None:
    """A target whose device is onnxruntime's own CPU: what device.py writes is what the model computes, to the last bit."""
    assert "VitisAIExecutionProvider" in (folder / "device.py").read_text()
    assert "VitisAIExecutionProvider" in (folder / "report.txt").read_text()
    target = tmp_path / "mine.toml"
    device = '[device]\nmachines = "a board"\nprovider = "CPUExecutionProvider"\n'
    session = 'session = {"session.intra_op.allow_spinning" = "0"}\nlog = "nothing"\n'
    target.write_text(f'description = "a board"\nversion = "1"\nextends = "vitis_xint8"\n{device}{session}')
    qdqtool.deploy(DIGITS, tmp_path / "out", target=target, data=CALIB, samples=8, require_npu="90%")
    assert "allow_spinning" in (tmp_path / "out" / "device.py").read_text()
    with np.load(CALIB) as data:
        np.savez(tmp_path / "few.npz", input=data["input"][:3])
    subprocess.run([sys.executable, tmp_path / "out" / "device.py", tmp_path / "few.npz"], cwd=tmp_path, check=True)
    found = cli(
        "compare", tmp_path / "out" / "float.onnx", tmp_path / "out" / "model.onnx", "--dumps", tmp_path / "board", "--data",
        tmp_path / "few.npz", "--json",
    ).json  # fmt: skip
    assert found["samples"] == 3
    assert "exact" in str(found)


def test_the_provider_of_a_plugin_is_registered_first(tmp_path: Path) -> None:
    """As onnxruntime-qnn has it since 2.0, with a stand-in for onnxruntime."""
    device = load_target("qnn_htp").device
    assert device is not None
    (tmp_path / "onnxruntime_qnn.py").write_text("def get_library_path():\n    return 'library'\n")
    (tmp_path / "onnxruntime.py").write_text(
        "known, told = [], []\n"
        "class Device:\n    ep_name = 'QNNExecutionProvider'\n"
        "class SessionOptions:\n"
        "    def add_session_config_entry(self, *entry): told.append(entry)\n"
        "    def add_provider_for_devices(self, devices, options): told.append((len(devices), options['backend_type']))\n"
        "def get_available_providers(): return ['CPUExecutionProvider']\n"
        "def register_execution_provider_library(name, path): known.append((name, path))\n"
        "def get_ep_devices(): return [Device()] * len(known)\n"
        "def InferenceSession(path, options, **how): raise SystemExit(f'{known} {told} {how}')\n"
    )
    (tmp_path / "device.py").write_text(device.script("model.onnx", is_whole=True))
    done = subprocess.run([sys.executable, tmp_path / "device.py"], capture_output=True, text=True, check=False)
    told = [("session.disable_cpu_ep_fallback", "1"), (1, "htp")]
    assert done.stderr.strip() == f"{[('QNNExecutionProvider', 'library')]} {told} {{}}"


def test_a_device_that_is_not_described_has_no_file(tmp_path: Path) -> None:
    made = qdqtool.deploy(DIGITS, tmp_path / "out", target="generic_int8", data=CALIB, samples=8, require_npu=0)
    assert "device.py" not in made.files
    assert made.to_json()["device"] is None

"""A new pass, preset, target, method or command is one file in a folder: with ``--path``, or in ``QDQTOOL_PATH``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.unit.cli_helpers import DIGITS, process

FILES = {
    "passes/drop_relu.py": """
from dataclasses import dataclass
from qdqtool.passes import Keeps, Pass
from qdq_passes.core import edit

@dataclass(frozen=True)
class DropRelu(Pass):
    '''Take the first ``count`` Relu nodes out.'''
    keeps = Keeps("changes", why="negative numbers pass")
    count: int = 1

    def run(self, model):
        namer = edit.Namer(model)
        for node in [n for n in model.graph if n.op_type == "Relu"][: self.count]:
            yield edit.bypass(node, namer, "as asked")
""",
    "presets/a8w8.toml": """
description = "int8, float scales, activations with a zero point"
[calibration]
method = "largest-mean"
[pipeline]
before = "give-names,fold-batch-norm,sort"
[encodings]
scales = "any"
symmetric = false
[insert]
weights = "dq"
""",
    "targets/convs_only.toml": """
description = "an NPU for convolutions"
version = "1"
[[op]]
types = ["Conv"]
[[op.scheme]]
activations = ["int8"]
weights = ["int8"]
bias = ["int8"]
""",
    "methods/largest_mean.py": """
from qdqtool.calibrate.methods import Array, Observer, Range, State

class LargestMean(Observer):
    '''Ten times the largest mean magnitude of a sample.'''

    def __init__(self) -> None:
        self.mean = 0.0

    def observe(self, values: Array, low: float, high: float) -> None:
        self.mean = max(self.mean, float(abs(values).mean()))

    def merge(self, other) -> None:
        self.mean = max(self.mean, other.mean)

    def range(self) -> Range:
        return Range(-10 * self.mean, 10 * self.mean)

    def state(self) -> State:
        return {"mean": self.mean}

    def restore(self, state: State, found: Range) -> None:
        self.mean = state["mean"]
""",
    "commands/count.py": '''"""Count the nodes of MODEL."""

from qdqtool.cli.options import command, load_model, model_argument
from qdqtool.cli.render import Out, say


@command()
@model_argument
def count(out: Out, model: str) -> None:
    """Count the nodes of MODEL."""
    nodes = len(list(load_model(model).graph))
    out.result({"nodes": nodes}, lambda: say(f"{nodes} nodes"))


command = count
''',
}


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("mine")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return str(folder)


def test_a_pass(mine: str, tmp_path: Path) -> None:
    done = process("opt", DIGITS, "--path", mine, "-p", "drop-relu{count=2}", "-o", tmp_path / "o.onnx")
    assert done.stdout.splitlines()[0] == "drop-relu{count=2}: 2 changes", done.stderr
    shown = process("--path", mine, "list", "passes", "drop-relu").stdout
    assert "Take the first ``count`` Relu nodes out." in shown
    near = process("opt", DIGITS, "--path", mine, "-p", "drop-rleu", "-o", tmp_path / "p.onnx").stderr
    assert "did you mean 'drop-relu'" in near


def test_a_preset_with_a_method(mine: str, tmp_path: Path) -> None:
    done = process(
        "quantize",
        DIGITS,
        "--path",
        mine,
        "--preset",
        "a8w8",
        "--data",
        "random:2",
        "--json",
        "-o",
        tmp_path / "q.onnx",
    )
    report = json.loads(done.stdout)
    assert (report["preset"], report["method"]) == ("a8w8", "largest-mean")
    assert "fuse-conv-activation" not in report["pipeline"]
    file = process("quantize", DIGITS, "--path", mine, "--preset", f"{mine}/presets/a8w8.toml", "--print-pipeline")
    assert file.stdout.strip() == report["pipeline"]


def test_a_target(mine: str, tmp_path: Path) -> None:
    for target in ("convs_only", f"{mine}/targets/convs_only.toml"):
        done = process(
            "quantize", DIGITS, "--path", mine, "--target", target, "--data", "random:2", "--json", "--overwrite",
            "-o", tmp_path / "q.onnx",
        )  # fmt: skip
        assert json.loads(done.stdout)["quantized_nodes"] == 6, done.stderr
    assert "an NPU for convolutions" in process("--path", mine, "list", "targets").stdout


def test_a_method(mine: str, tmp_path: Path) -> None:
    command = ("calibrate", DIGITS, "--path", mine, "--method", "largest-mean", "--data")
    process(*command, "random:2:1", "-o", tmp_path / "a.json")
    process(*command, "random:3:2", "-o", tmp_path / "b.json")
    merged = process(
        "calibrate", "--path", mine, "--merge", tmp_path / "a.json", tmp_path / "b.json", "-o", tmp_path / "m.json"
    )
    assert merged.stdout == f"25 ranges over 5 samples (largest-mean) in {tmp_path / 'm.json'}\n", merged.stderr


def test_a_command(mine: str) -> None:
    assert process("--path", mine, "count", DIGITS).stdout == "24 nodes\n"
    assert json.loads(process("--path", mine, "count", DIGITS, "--json").stdout) == {"nodes": 24}
    assert "count          Count the nodes of MODEL." in process("--path", mine, "--help").stdout
    assert "Count the nodes of MODEL." in process("--path", mine, "count", "--help").stdout
    refused = process("--path", mine, "count", "nowhere.onnx")
    assert (refused.returncode, refused.stderr) == (2, "error: nowhere.onnx: no such file; check the path\n")


def test_all_of_it_by_the_environment(mine: str, tmp_path: Path) -> None:
    done = process("quantize", DIGITS, "--preset", "a8w8", "--target", "convs_only", "--data", "random:2",
                   "-o", tmp_path / "q.onnx", QDQTOOL_PATH=mine)  # fmt: skip
    assert done.returncode == 0, done.stderr
    done = process("opt", DIGITS, "-p", "drop-relu", "-o", tmp_path / "o.onnx", QDQTOOL_PATH=f"/nowhere:{mine}")
    assert done.returncode == 0, done.stderr
    assert process("count", DIGITS, QDQTOOL_PATH=mine).stdout == "24 nodes\n"


def test_faults_of_such_files_name_the_file(tmp_path: Path) -> None:
    for name, text, says in (
        (
            "passes/wrong_name.py",
            "class Other: pass",
            "defines no WrongName; the name rule is wrong_name.py = WrongName",
        ),
        ("passes/wrong_name.py", "import nonsense_xyz", "cannot be imported: ModuleNotFoundError"),
        ("presets/bad.toml", "description = 3", "presets/bad.toml"),
        ("passes/sort.py", "class Sort: pass", "passes 'sort' is defined twice"),
    ):
        folder = tmp_path / "mine"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
        what = name.split("/")[0]
        words = ["--preset", "bad"] if what == "presets" else []
        command = (
            ["quantize", DIGITS, *words, "--print-pipeline"]
            if words
            else ["opt", DIGITS, "-p", "wrong-name", "-o", str(tmp_path / "o")]
        )
        done = process("--path", folder, *command)
        assert done.returncode == 2
        assert says in done.stderr
        assert len(done.stderr.splitlines()) == 1 or what == "passes"
        assert "Traceback" not in done.stderr

"""A new pass, preset, target, method or command is one file in a folder: with ``--path``, or in ``QDQTOOL_PATH``."""

from __future__ import annotations

import re
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from qdq_passes.core import registry

from tests.cases.cli_helpers import DIGITS, cli, process
from tests.golden_messages.refusal import told

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
    "presets/my_a8w8.toml": """
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


@pytest.fixture(autouse=True)
def no_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of ``--path`` stay for the life of a process: forget them after each test."""
    monkeypatch.setattr(registry, "_added", [])


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("mine")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return str(folder)


def test_a_pass(mine: str, tmp_path: Path) -> None:
    done = cli("opt", DIGITS, "--path", mine, "-p", "drop-relu{count=2}", "-o", tmp_path / "o.onnx")
    assert done.out.splitlines()[0] == "drop-relu{count=2}: 2 changes"
    assert "Take the first ``count`` Relu nodes out." in cli("--path", mine, "list", "passes", "drop-relu").out
    near = cli("opt", DIGITS, "--path", mine, "-p", "drop-rleu", "-o", tmp_path / "p.onnx", code=2)
    told(near.error)


def test_a_preset_with_a_method(mine: str, tmp_path: Path) -> None:
    command = ("quantize", DIGITS, "--path", mine, "--preset")
    report = cli(*command, "my_a8w8", "--data", "random:2", "--json", "-o", tmp_path / "q.onnx").json
    assert (report["preset"], report["method"]) == ("my_a8w8", "largest-mean")
    assert "fuse-conv-activation" not in report["pipeline"]
    printed = cli(*command, f"{mine}/presets/my_a8w8.toml", "--print-pipeline").out.strip()
    calibration = "observe{data=@data runtime=@runtime tensors=@tensors method=largest-mean},"
    assert calibration in printed
    assert printed.replace(calibration, "") == report["pipeline"]  # with the ranges that were found


def test_a_target(mine: str, tmp_path: Path) -> None:
    for target in ("convs_only", f"{mine}/targets/convs_only.toml"):
        command = (
            "quantize",
            DIGITS,
            "--path",
            mine,
            "--target",
            target,
            "--data",
            "random:2",
            "--json",
            "--overwrite",
        )
        assert cli(*command, "-o", tmp_path / "q.onnx").json["quantized_nodes"] == 6
    assert "an NPU for convolutions" in cli("--path", mine, "list", "targets").out


def test_a_method(mine: str, tmp_path: Path) -> None:
    command = ("calibrate", DIGITS, "--path", mine, "--method", "largest-mean", "--data")
    cli(*command, "random:2:1", "-o", tmp_path / "a.json")
    cli(*command, "random:3:2", "-o", tmp_path / "b.json")
    merge = (
        "calibrate",
        "--path",
        mine,
        "--merge",
        tmp_path / "a.json",
        tmp_path / "b.json",
        "-o",
        tmp_path / "m.json",
    )
    assert cli(*merge).out == f"25 ranges over 5 samples (largest-mean) in {tmp_path / 'm.json'}\n"


def test_a_command(mine: str) -> None:
    assert cli("--path", mine, "count", DIGITS).out == "24 nodes\n"
    assert cli("count", DIGITS, "--json").json == {"nodes": 24, "warnings": []}
    assert "Count the nodes of MODEL." in cli("count", "--help").out
    told(cli("count", "nowhere.onnx", code=2).error)
    done = process("--path", mine, "--help")
    assert re.search(r"^ +count +Count the nodes of MODEL\.", done.stdout, re.M)


def test_all_of_it_by_the_environment(mine: str, tmp_path: Path) -> None:
    folders = f"/nowhere:{mine}"
    done = process(
        "quantize", DIGITS, "--preset", "my_a8w8", "--target", "convs_only", "--data", "random:2", "-o", tmp_path / "q.onnx",
        QDQTOOL_PATH=folders,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    done = process("opt", DIGITS, "-p", "drop-relu", "-o", tmp_path / "o.onnx", QDQTOOL_PATH=folders)
    assert done.returncode == 0, done.stderr
    assert process("count", DIGITS, QDQTOOL_PATH=folders).stdout == "24 nodes\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("passes/wrong_name.py", "class Other: pass", id="pass of another name"),
        pytest.param("passes/wrong_name.py", "import nonsense_xyz", id="pass that imports what is not there"),
        pytest.param("passes/sort.py", "class Sort: pass", id="pass of ours"),
        pytest.param("presets/bad.toml", "description = 3", id="preset"),
        pytest.param("methods/bad.py", "class Bad: pass", id="method"),
        pytest.param("commands/bad.py", "command = 3", id="command"),
    ],
)
def test_faults_of_such_files_are_named(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text(text)
    command = {
        "passes": ["opt", DIGITS, "-p", "wrong-name", "-o", tmp_path / "o"],
        "presets": ["quantize", DIGITS, "--preset", "bad", "--print-pipeline"],
        "methods": ["calibrate", DIGITS, "--method", "bad", "--data", "random:1", "-o", tmp_path / "o"],
        "commands": ["bad", DIGITS],
    }[name.split("/")[0]]
    told(cli("--path", tmp_path, *command, code=2).error)


def test_a_preset_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "bad.toml").write_text("description = 3")
    rows = {each["name"]: each for each in cli("--path", tmp_path, "list", "presets", "--json").json["presets"]}
    assert "error" in rows["bad"]
    assert "error" not in rows["xint8"]
    listed = cli("--path", tmp_path, "list", "presets").out
    assert re.search(r"^bad +cannot be loaded: .*description", listed, re.M)
    assert re.search(r"^xint8 +", listed, re.M)
    told(cli("--path", tmp_path, "list", "presets", "bad", code=2).error)


def test_a_preset_of_a_broken_package_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an entry point of an installed package whose module is gone gives it."""
    gone = EntryPoint("gone", "nonsense_xyz:PRESET", "qdqtool.presets")
    monkeypatch.setattr(registry, "_mentions", lambda folder, group: True)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [gone] if group == gone.group else [])
    listed = cli("list", "presets").out
    assert re.search(r"^gone +cannot be loaded: .*nonsense_xyz", listed, re.M)
    assert re.search(r"^xint8 +", listed, re.M)

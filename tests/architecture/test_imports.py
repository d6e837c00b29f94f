"""What is imported when: a command imports what it uses, and sympy waits until someone computes with symbols."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from qdq_passes.core.registry import PASSES

from tests.architecture.places import ROOT
from tests.cases.cli_helpers import CALIB, DIGITS, cli

HEAVY = (
    "numpy",
    "onnx",
    "onnx_ir",
    "onnxruntime",
    "onnxscript",
    "onnx_graphsurgeon",
    "rich",
    "importlib.metadata",
    "ml_dtypes",
    "sympy.core",
)


def modules_after(code: str) -> set[str]:
    """Names of the modules that a fresh interpreter holds after ``code``; what it prints is thrown away."""
    script = (
        "import contextlib, io, json, sys\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):\n"
        f"    exec({code!r})\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    run = [sys.executable, "-c", f"import sys; sys.path[:0] = {[str(ROOT / 'passes'), str(ROOT)]!r}\n{script}"]
    return set(json.loads(subprocess.run(run, capture_output=True, text=True, check=True).stdout))


@pytest.mark.parametrize("arguments", [["--help"], ["opt", "--help"], ["quantize", "--help"], ["list", "--help"]])
def test_help_is_light(arguments: list[str]) -> None:
    loaded = modules_after(f"from qdqtool.cli.main import run; assert run({arguments!r}) == 0")
    assert sorted(loaded & set(HEAVY)) == []
    assert "click" in loaded


#: Libraries and parts of ours that only some commands need.
RARE = {"onnx.reference", "onnx_graphsurgeon", "onnxscript", "rich", "sympy.core"}
TARGETS = {"qdqtool.targets.target", "qdq_passes.npu.program.operators", "qdq_passes.npu.partitions.partitions"}
DECODERS = {"qdqtool.llm.run.session", "qdqtool.llm.folder.manifest"}
RECOVERY = {
    "qdqtool.quantization.learning", "qdqtool.quantization.tuning.tuner", "qdqtool.runtime.gradients.graph",
    "qdq_passes.recover.equalize_layers", "qdq_passes.recover.rotate_decoder",
}  # fmt: skip
NEVER: dict[str, set[str]] = {
    "--version": set(HEAVY) - {"importlib.metadata"},
    "inspect MODEL": RARE | TARGETS | DECODERS | {"onnxruntime", "qdq_passes.pipeline.pipeline"},
    "match MODEL op:Conv": RARE | TARGETS | DECODERS | {"onnxruntime"},
    "qdq list QUANTIZED": RARE | TARGETS | DECODERS | {"onnxruntime", "qdq_passes.roles.roles"},
    "check MODEL": RARE | TARGETS | DECODERS | {"qdqtool.npu.analyzing"},
    "analyze QUANTIZED --target vitis_xint8": RARE | DECODERS | {"onnxruntime"},
    "quantize MODEL --preset xint8 --data DATA -o OUTPUT": RARE | TARGETS | DECODERS | RECOVERY,
}


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("imports") / "quantized.onnx"
    cli("quantize", DIGITS, "--preset", "xint8", "--data", CALIB, "--samples", "4", "-o", path)
    return str(path)


@pytest.mark.parametrize("command", NEVER)
def test_a_command_imports_no_more_than_it_uses(command: str, quantized: str, tmp_path: Path) -> None:
    places = {"MODEL": str(DIGITS), "QUANTIZED": quantized, "DATA": str(CALIB), "OUTPUT": str(tmp_path / "q.onnx")}
    arguments = [places.get(word, word) for word in command.split()]
    loaded = modules_after(f"from qdqtool.cli.main import run; assert run({arguments!r}) == 0")
    assert sorted(loaded & NEVER[command]) == []


@pytest.mark.parametrize("kind", ["passes", "presets", "targets", "methods", "namings", "devices", "commands"])
def test_a_list_imports_nothing_that_it_lists(kind: str) -> None:
    loaded = modules_after(f"from qdqtool.cli.main import run; assert run(['list', {kind!r}]) == 0")
    assert sorted(loaded & set(HEAVY)) == []


@pytest.mark.parametrize("name", ["presets", "targets", "methods", "passes"])
def test_names_are_completed_without_importing_what_they_name(name: str) -> None:
    loaded = modules_after(f"from qdqtool.cli.completing import NAMES; assert len(list(NAMES[{name!r}]())) > 3")
    assert sorted(loaded & set(HEAVY)) == []


def test_every_name_is_real() -> None:
    """A module that was renamed would be imported by nobody, under its old name."""
    ours = {name for names in NEVER.values() for name in names if name.startswith("qdq")}
    assert [name for name in sorted(ours) if importlib.util.find_spec(name) is None] == []


def test_naming_a_pass_imports_only_that_pass() -> None:
    loaded = modules_after("from qdq_passes.core.registry import PASSES; PASSES.names(); PASSES.load('sort')")
    own = {name for name in loaded if name.rpartition(".")[0] in PASSES.packages and name not in PASSES.packages}
    own = {name for name in own if not hasattr(importlib.import_module(name), "__path__")}
    assert own == {"qdq_passes.clean.sort"}


def test_passes_that_do_not_need_them_leave_the_big_libraries_alone() -> None:
    """onnxscript and graphsurgeon are imported by the passes that stand on them, when there is something to do."""
    code = (
        "import onnx_ir as ir\n"
        "from qdq_passes import run_pipeline\n"
        "x = ir.Value(name='x', type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1]))\n"
        "node = ir.node('Relu', [x], name='relu'); node.outputs[0].name = 'y'\n"
        "graph = ir.Graph([x], [node.outputs[0]], nodes=[node], opset_imports={'': 21}, name='g')\n"
        "run_pipeline(ir.Model(graph, ir_version=10), 'fold-constants,remove-unused,remove-identity,merge-transposes,remove-qdq')"
    )
    assert not modules_after(code) & {"onnxscript", "onnx_graphsurgeon", "onnxruntime"}


@pytest.mark.parametrize("code", ["import qdq_passes, onnx_ir", "import qdqtool, onnx_ir"])
def test_sympy_is_not_executed(code: str) -> None:
    assert "sympy.core" not in modules_after(code)


def test_the_packages_are_cheap_to_import() -> None:
    assert sorted(modules_after("import qdqtool, qdq_passes, qdqtool.cli.main") & set(HEAVY)) == []

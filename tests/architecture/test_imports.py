"""What is imported when: `--help` answers in a blink, and sympy waits until someone computes with symbols."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest
from qdq_passes.core.registry import PASSES

from tests.architecture.places import ROOT

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

"""What limits.py says of onnxruntime is so in the installed one, where it reads the opset, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime
import pytest

from tests.suites.limits import REFUSED, TAKEN_APART, without_kernel

BODIES = {
    "DequantizeLinear": "y = DequantizeLinear(q, s, z)",
    "QuantizeLinear": "r = QuantizeLinear(x, s, z) y = Cast<to = 1>(r)",
    "Swish": "y = Swish(x)",
    "ReduceLogSum": "y = ReduceLogSum(x)",
    "ReduceLogSumExp": "y = ReduceLogSumExp(x)",
}


def _text(body: str, opset: int) -> str:
    return f"""<ir_version: 10, opset_import: ["" : {opset}]> g (float[2,3] x, uint8[2] q) => (float y)
        <float s = {{0.5}}, uint8 z = {{3}}> {{ {body} }}"""


def _opened(body: str, opset: int, folder: Path) -> str | list[str]:
    """What onnxruntime runs for ``body``, operators in order; or why it does not open it."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.optimized_model_filepath = str(folder / "opened.onnx")
    options.log_severity_level = 4
    model = onnx.parser.parse_model(_text(body, opset)).SerializeToString()
    try:
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 (its exceptions have no common base)
        return str(error)
    return [node.op_type for node in onnx.load(folder / "opened.onnx").graph.node]


def _reads(opset: int, folder: Path) -> bool:
    return isinstance(_opened("y = Identity(x)", opset, folder), list)


@pytest.mark.parametrize("op", REFUSED)
def test_what_is_refused(op: str, tmp_path: Path) -> None:
    refusal = _opened(BODIES[op], REFUSED[op], tmp_path)
    assert isinstance(refusal, str), f"onnxruntime {onnxruntime.__version__} runs it: take it out of limits.py"
    if _reads(REFUSED[op], tmp_path):
        assert "NOT_IMPLEMENTED" in refusal
        assert f"Could not find an implementation for {op}({onnx.defs.get_schema(op).since_version})" in refusal
    else:
        assert f"Opset {REFUSED[op]} is under development" in refusal


@pytest.mark.parametrize("op", TAKEN_APART)
def test_what_is_taken_apart(op: str, tmp_path: Path) -> None:
    opened = _opened(BODIES[op], TAKEN_APART[op], tmp_path)
    if _reads(TAKEN_APART[op], tmp_path):
        assert opened[-2:] == ["ReduceSum", "Log"] or opened[1:4] == ["Exp", "ReduceSum", "Log"]
    else:
        assert f"Opset {TAKEN_APART[op]} is under development" in opened


@pytest.mark.parametrize("op", [*REFUSED, *TAKEN_APART])
def test_one_opset_before(op: str, tmp_path: Path) -> None:
    """The tables name the first opset: before it onnxruntime has the kernel, or the function that gives the same bits."""
    before = {**REFUSED, **TAKEN_APART}[op] - 1
    opened = _opened(BODIES[op], before, tmp_path)
    if not _reads(before, tmp_path):
        assert f"Opset {before} is under development" in opened
    elif op == "Swish":
        assert opened[-2:] == ["Sigmoid", "Mul"]
    else:
        assert op in opened


def test_they_are_found_wherever_they_are() -> None:
    inner = """g (bool c, float[2] x) => (float[2] y) {
        y = If (c) <then_branch = a () => (float[2] t) { t = Swish(x) }, else_branch = b () => (float[2] e) { e = Relu(x) }> }"""
    function = """g (float[2] x) => (float[2] y) { y = local.Gate(x) }
        <domain: "local", opset_import: ["" : 28]> Gate (x) => (y) { z = Swish(x) y = ReduceLogSum(z) }"""
    assert _found(f'<ir_version: 10, opset_import: ["" : 25]> {inner}') == {"Swish"}
    assert _found(f'<ir_version: 10, opset_import: ["" : 24]> {inner}') == set()
    assert _found(f'<ir_version: 10, opset_import: ["" : 21, "local" : 1]> {function}') == {"Swish", "ReduceLogSum"}
    assert _found(_text(BODIES["QuantizeLinear"], 27)) == set()
    assert _found(_text(BODIES["QuantizeLinear"], 28)) == {"QuantizeLinear"}
    assert _found(_text("y = com.microsoft.DequantizeLinear(q, s, z)", 28)) == set()


def _found(text: str) -> frozenset[str]:
    return without_kernel(onnx.parser.parse_model(text).SerializeToString())

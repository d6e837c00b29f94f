"""Models that are valid and unusual go through quantize, compare and the replay of its pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdqtool.calibrate.observer import Range
from qdqtool.calibrate.ranges import Ranges
from tests.cases.cli_helpers import accepted, cli, write

MODELS = {
    "names given twice": """g (float[1,2] x) => (float[1,2] y) <float[2,2] w = {1, 2, 3, 4}> {
        [a] t = MatMul(x, w)  [a] y = MatMul(t, w) }""",
    "never a value": """g (float[0,2] x) => (float[0,2] y) <float[2,2] w = {1, 2, 3, 4}> { [m] y = MatMul(x, w) }""",
    "an input with a default": """g (float[1,2] x, float[2,2] w) => (float[1,2] y) <float[2,2] w = {1, 2, 3, 4}> {
        [m] y = MatMul(x, w) }""",
    "weight, constant and input as outputs": """g (float[1,2] x) => (float[1,2] y, float[2,2] w, float[2] c, float[1,2] x)
        <float[2,2] w = {1, 2, 3, 4}> { [k] c = Constant<value = float[2] {5, 6}>()  [m] t = MatMul(x, w)  [a] y = Add(t, c) }""",
}


@pytest.mark.parametrize("text", MODELS.values(), ids=MODELS)
def test_quantized_compared_and_replayed(text: str, tmp_path: Path) -> None:
    model, ranges, steps = write(tmp_path / "m.onnx", text), tmp_path / "r.json", tmp_path / "p.txt"
    made, again = tmp_path / "q.onnx", tmp_path / "q2.onnx"
    done = cli("quantize", model, "--data", "random:4", "--save-ranges", ranges, "-o", made, "--json").json
    is_empty = "[0," in text  # then there is nothing to compare
    assert done["quantized_nodes"] >= 1
    assert done.get("judged_on", {}).get("samples") == (None if is_empty else 4)
    steps.write_text(cli("quantize", model, "--print-pipeline").out)
    cli("opt", model, "-p", f"@{steps}", "--ranges", ranges, "-o", again)
    assert made.read_bytes() == again.read_bytes()
    accepted(made)
    cli("opt", model, "-p", "give-names", "-o", tmp_path / "named.onnx")
    for other in ("named.onnx", "q.onnx"):
        cli("compare", tmp_path / "named.onnx", tmp_path / other, "--data", "random:4", code=2 if is_empty else 0)
    own = tmp_path / "own.json"  # what the preset prepares may lack a tensor of the model as it is
    cli("calibrate", tmp_path / "named.onnx", "--data", "random:4", "-o", own)
    cli("qdq", "insert", tmp_path / "named.onnx", "--ranges", own, "-o", tmp_path / "i.onnx")


def test_what_never_held_a_value_is_bound_to_an_empty_range() -> None:
    ranges = Ranges(method="minmax", samples=1, tensors={"a": Range(-1.0, 2.0)}, unobserved=("b",))
    assert ranges.bound == {"a": Range(-1.0, 2.0), "b": Range(0.0, 0.0)}

"""What the qdq commands do with models that hold more than pairs: constants that are inputs, descriptions, annotations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.runtime.session import open_session
from tests.cases.cli_helpers import cli

#: Every initializer is an input too, as IR version 3 has it.
IR_3 = """<ir_version: 3, opset_import: ["" : 10]>
g (float[1,2] x, int8[2,1] w, float s, uint8 z, int8 wz) => (float[1,1] y)
<int8[2,1] w = {3, -2}, float s = {0.5}, uint8 z = {128}, int8 wz = {0}> {
    [q] q = QuantizeLinear(x, s, z)  [d] d = DequantizeLinear(q, s, z)
    [e] wd = DequantizeLinear(w, s, wz)  [m] y = MatMul(d, wd) }"""
PAIR = """<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float[2] y) <float s = {0.5}, int8 z = {0}> {
    [a] h = Relu(x)  [q] q = QuantizeLinear(h, s, z)  [d] d = DequantizeLinear(q, s, z)  [b] y = Exp(d) }"""


def written(path: Path, text: str) -> Path:
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def texts(model: onnx.ModelProto) -> list[str]:
    """Everything that is said about nodes and values."""
    holders = [*model.graph.node, *model.graph.input, *model.graph.output, *model.graph.value_info]
    rows = [f"{entry.key}={entry.value}" for holder in holders for entry in holder.metadata_props]
    return rows + [holder.doc_string for holder in holders if holder.doc_string]


def test_remove_makes_constants_of_inputs_with_a_default(tmp_path: Path) -> None:
    given, got = written(tmp_path / "in.onnx", IR_3), tmp_path / "out.onnx"
    done = cli("qdq", "remove", given, "--all", "-o", got)
    assert done.code == 0
    assert "stored integers or scales are inputs with a default; they become constants first" in done.err
    model = onnx.load(got)
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in model.graph.input] == ["x"]
    assert [node.op_type for node in model.graph.node] == ["MatMul"]
    x = np.array([[1.0, 2.0]], np.float32)
    assert open_session(str(got)).run({"x": x})["y"].tolist() == [[1.0 * 1.5 + 2.0 * -1.0]]


@pytest.mark.parametrize("edit", [["set", "--all", "--scale", "0.25"], ["convert", "--dtype", "int8"]])
def test_edits_of_encodings_that_are_inputs(edit: list[str], tmp_path: Path) -> None:
    given, got = written(tmp_path / "in.onnx", IR_3), tmp_path / "out.onnx"
    assert cli("qdq", edit[0], given, *edit[1:], "-o", got).code == 0
    onnx.checker.check_model(onnx.load(got), full_check=True)
    assert "y" in open_session(str(got)).run({"x": np.ones((1, 2), np.float32)})


def test_a_description_follows_the_edit(tmp_path: Path) -> None:
    given, told, got = written(tmp_path / "in.onnx", PAIR), tmp_path / "told.onnx", tmp_path / "out.onnx"
    assert cli("opt", given, "-p", "describe-encodings", "-o", told).code == 0
    assert "qdq.scale=2^-1 (0.5)" in texts(onnx.load(told))
    assert cli("qdq", "set", told, "--select", "tensor:h", "--scale", "0.25", "-o", got).code == 0
    assert "qdq.scale=2^-2 (0.25)" in texts(onnx.load(got))
    assert not [text for text in texts(onnx.load(got)) if "2^-1" in text]
    assert cli("qdq", "remove", told, "--all", "-o", got, "--overwrite").code == 0
    model = onnx.load(got)
    assert not [text for text in texts(model) if text.startswith(("qdq.", "encoding:"))]
    assert not model.graph.quantization_annotation


def test_what_was_not_described_is_not(tmp_path: Path) -> None:
    given, got = written(tmp_path / "in.onnx", PAIR), tmp_path / "out.onnx"
    assert cli("qdq", "set", given, "--all", "--scale", "0.25", "-o", got).code == 0
    assert not [text for text in texts(onnx.load(got)) if text.startswith("qdq.")]


def test_annotations_of_other_tools_go_with_the_pair(tmp_path: Path) -> None:
    """The entry of a tensor that has no pair any more; that of another one stays, and what names other tensors."""
    model = onnx.parser.parse_model(
        PAIR.replace("y = Exp(d) }", "e = Exp(d)  [f] f = QuantizeLinear(e, s, z)  [g] y = DequantizeLinear(f, s, z) }")
    )
    for name, extra in (("h", "x"), ("e", None)):
        entry = model.graph.quantization_annotation.add(tensor_name=name)
        for key, tensor in {
            "SCALE_TENSOR": "s",
            "ZERO_POINT_TENSOR": "z",
            **({"OTHER": extra} if extra else {}),
        }.items():
            entry.quant_parameter_tensor_names.add(key=key, value=tensor)
    onnx.save(model, tmp_path / "in.onnx")
    assert cli("qdq", "remove", tmp_path / "in.onnx", "--select", "tensor:h", "-o", tmp_path / "out.onnx").code == 0
    left = onnx.load(tmp_path / "out.onnx").graph.quantization_annotation
    found = {e.tensor_name: {pair.key: pair.value for pair in e.quant_parameter_tensor_names} for e in left}
    assert found["h"] == {"OTHER": "x"}
    assert found[next(name for name in found if name != "h")] == {"SCALE_TENSOR": "s", "ZERO_POINT_TENSOR": "z"}

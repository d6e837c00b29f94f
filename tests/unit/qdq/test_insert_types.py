"""`qdq insert` on values whose type the file does not declare, and on float16, whose operators need an opset or a domain."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from qdq_passes.graph.shapes.inference import element_types

from tests.cases.cli_helpers import cli

CHAIN = """<ir_version: {ir}, opset_import: ["" : {opset}]>
g (float16[2,4] x) => (float16[2,4] y) {{ a = Relu(x) b = Sigmoid(a) c = Tanh(b) d = Add(c, a) y = Relu(d) }}"""


def chain(folder: Path, opset: int) -> str:
    path = folder / f"chain{opset}.onnx"
    onnx.save(onnx.parser.parse_model(CHAIN.format(opset=opset, ir=10 if opset > 13 else 7)), path)
    return str(path)


def ranges_of(model: str, folder: Path) -> str:
    path = str(folder / "ranges.json")
    cli("calibrate", model, "--data", "random:2", "-o", path)
    return path


def scales(path: Path) -> dict[str, int]:
    """Scale → element type, of every quantizer in a file."""
    graph = onnx.load(path).graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    return {node.input[1]: types[node.input[1]] for node in graph.node if node.op_type == "QuantizeLinear"}


@pytest.mark.parametrize("opset", [13, 21])
def test_contrib_operators_take_float16_at_any_opset(opset: int, tmp_path: Path) -> None:
    model, output = chain(tmp_path, opset), tmp_path / "o.onnx"
    done = cli(
        "qdq", "insert", model, "--ranges", ranges_of(model, tmp_path), "--domain", "com.microsoft", "-o", output
    )
    assert "warning" not in done.err
    found = scales(output)
    assert set(found) == {f"{name}_scale" for name in "xabcdy"}
    assert set(found.values()) == {onnx.TensorProto.FLOAT16}


def test_encodings_go_to_contrib_operators_too(tmp_path: Path) -> None:
    model, output, file = chain(tmp_path, 13), tmp_path / "o.onnx", tmp_path / "e.json"
    entry = {"name": "b", "output_dtype": "uint8", "y_scale": 0.00390625, "y_zero_point": 0}
    file.write_text(json.dumps({"version": "2.0.0", "encodings": [entry]}), encoding="utf-8")
    cli("qdq", "insert", model, "--encodings", file, "--domain", "com.microsoft", "-o", output)
    assert scales(output) == {"b_scale": onnx.TensorProto.FLOAT16}


def test_nothing_inserted_is_a_warning_with_the_reason(tmp_path: Path) -> None:
    model = chain(tmp_path, 13)
    done = cli("qdq", "insert", model, "--ranges", ranges_of(model, tmp_path), "-o", tmp_path / "o.onnx")
    assert "warning: no pair was inserted: float16 needs opset 19, the model has 13" in done.err


def test_types_are_inferred_without_touching_the_model() -> None:
    model = ir.from_proto(
        onnx.parser.parse_model(
            """<ir_version: 10, opset_import: ["" : 21, "other" : 1]>
            g (float[2] x) => (float[2] y) {
              s = Shape(x) b = Greater(x, x) c = Cast<to = 10>(x) u = other.Thing(x) y = Relu(x)
            }"""
        )
    )
    values = [output for node in model.graph for output in node.outputs]
    kinds = [ir.DataType.INT64, ir.DataType.BOOL, ir.DataType.FLOAT16, None, ir.DataType.FLOAT]
    assert element_types(model, values) == dict(zip(values, kinds, strict=True))
    assert [value.type for value in values[:-1]] == [None] * 4
    assert all(value.shape is None for value in values[:-1])

"""Models that have no weight to store: one line says which operator, and why."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from qdq_passes.errors import UsageError

from qdqtool import api
from tests.golden_messages.refusal import refusal

#: What is wrong → graph.
REFUSED = {
    "empty": "g (float[1,0] x) => (float[1,2] y) <float[0,2] w = {}> { [m] y = MatMul(x, w) }",
    "given": "g (float[1,2] x, float[2,2] w) => (float[1,2] y) { [m] y = MatMul(x, w) }",
    "computed": (
        "g (float[1,2] x) => (float[1,2] y) <float[2,2] v = {1, 2, 3, 4}> { [t] w = Transpose(v)\n [m] y = MatMul(x, w) }"
    ),
    "quantized": (
        "g (float[1,2] x) => (float[1,2] y) <int8[2,2] q = {1, 2, 3, 4}, float s = {0.5}, float[2] b = {1, 2}>"
        " { [d] w = DequantizeLinear(q, s)\n [m] y = Gemm(x, w, b) }"
    ),
}


@pytest.mark.parametrize("graph", REFUSED.values(), ids=REFUSED)
def test_the_reason_is_named(graph: str, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {graph}')
    onnx.save(model, tmp_path / "m.onnx")
    with refusal(UsageError):
        api.quantize(tmp_path / "m.onnx", preset="w4-g32")

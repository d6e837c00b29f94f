"""onnxruntime's TensorQuantOverrides: ranges, second encodings, and its own quantizer reading what we write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from qdq_passes.errors import QdqError, UnsupportedError
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.qdq.look.pairs import qdq_pairs

import qdqtool
from qdqtool.runtime.overrides import tensor_quant_overrides
from tests.cases.cli_helpers import DIGITS
from tests.cases.encodings_helpers import NET, back, encodings, there
from tests.cases.quantized_files import quantized_file
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal


def test_a_second_encoding_for_one_reader() -> None:
    """onnxruntime's ``convert``: uint8 for Relu, uint16 for Neg, which reads it through a second pair behind the first."""
    net = "g (float[2] x) => (float[2] y, float[2] v) { [r] y = Relu(x) [n] v = Neg(x) }"
    convert = {"quant_type": "QUInt16", "scale": 0.001, "zero_point": 9}
    overrides = {
        "x": [{"quant_type": "QUInt8", "scale": 0.5, "zero_point": 0, "convert": {**convert, "recv_nodes": ["n"]}}]
    }
    graph = back(model(net), overrides).model.graph
    relu, neg = (next(node for node in graph if node.name == name) for name in "rn")
    first, second = relu.inputs[0], neg.inputs[0]
    assert first is not None
    assert second is not None
    assert first.name == "x_DequantizeLinear_Output"
    maker = second.producer()
    assert maker is not None
    quantizer = maker.inputs[0].producer() if maker.inputs[0] is not None else None
    assert quantizer is not None
    assert quantizer.inputs[0] is first
    everybody = {"x": [{"quant_type": "QUInt8", "scale": 0.5, "zero_point": 0, "convert": convert}]}
    done = back(model(net), everybody).model
    assert len(qdq_pairs(done)) == 2
    assert {node.inputs[0].name for node in done.graph if node.name in "rn" and node.inputs[0]} == {
        "x_DequantizeLinear_Output_DequantizeLinear_Output"
    }
    with refusal(UnsupportedError):
        back(model(net), {"x": [{**overrides["x"][0], "convert": {"quant_type": "QUInt16"}}]})


RANGES = [
    # (overrides of v [8, 2], encoding): reduced int8 holds −64 to 64
    ([{"quant_type": "QInt8", "symmetric": True, "reduce_range": True, "rmin": -6.4, "rmax": 3.2}],
     Encoding.per_tensor(ir.DataType.INT8, float(np.float32(0.1)))),
    ([{"quant_type": "QUInt8", "axis": 1, "rmin": 0.0, "rmax": 255.0}, {"rmin": -51.0, "rmax": 204.0}],
     Encoding(dtype=ir.DataType.UINT8, scale=(1.0, 1.0), zero_point=(0, 51), shape=(2,), axis=1)),
    ([{"quant_type": "QInt8", "axis": 1, "symmetric": True}],
     Encoding(dtype=ir.DataType.INT8, scale=tuple(float(np.float32(m / 127)) for m in (15, 16)), zero_point=(0, 0), shape=(2,), axis=1)),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "wanted"), RANGES)
def test_ranges_of_onnxruntime(rows: list[dict[str, Any]], wanted: Encoding) -> None:
    assert encodings(back(model(NET), {"v": rows}))["v"] == wanted


def test_onnxruntimes_quantizer_takes_the_overrides(tmp_path: Path) -> None:
    """Quantized again by onnxruntime, on other data: every tensor has the encoding that the overrides say."""

    class Ones(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.feeds = iter([{"input": np.ones((1, 1, 8, 8), np.float32)}])

        def get_next(self) -> Any:
            return next(self.feeds, None)

    before = qdqtool.load(quantized_file("s8s8_per_axis"))
    _, document, _ = there(before, "ort")
    path = tmp_path / "again.onnx"
    extra = {"TensorQuantOverrides": tensor_quant_overrides(document)}
    quantize_static(
        DIGITS,
        path,
        Ones(),
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
        extra_options=extra,
    )
    after = qdqtool.load(path)
    mine, theirs = ({p.tensor: p.encoding for p in qdq_pairs(m)} for m in (before, after))
    assert {name: theirs[name] for name in document} == {name: mine[name] for name in document}
    with pytest.raises(QdqError, match="x: onnxruntime knows no quant_type 'QInt3'; it knows QInt8"):
        tensor_quant_overrides({"x": [{"quant_type": "QInt3"}]})

"""narrow-weights: what QuantizeLinear makes of a narrowed weight is the quantization within ±qmax of the weight as it was."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.quantize import quantize
from qdq_passes.pipeline.pipeline import run_pipeline

TEXT = """<ir_version: 10, opset_import: ["" : 21]>
g (float[2,6] x) => (float[2,6] y) <float[6] w = {0,0,0,0,0,0}, float s = {1}, int8 z = {0}> {
  [q] wq = QuantizeLinear(w, s, z)  [dq] wd = DequantizeLinear(wq, s, z)  [add] y = Add(x, wd) }"""


@pytest.mark.parametrize("scale", [0.5, 0.3])
def test_the_integers_are_those_within_qmax(scale: float) -> None:
    """Halves go to even: −127.5 steps round to −128, and come up; what lies above −127.5 is left as it is, to the bit."""
    steps = np.array([-200, -128, -127.5, -127.25, 127.5, 300], np.float32)
    weight = steps * np.float32(scale)
    model = ir.from_onnx_text(TEXT)
    initializers = model.graph.initializers
    initializers["w"].const_value = ir.tensor(weight, name="w")
    initializers["s"].const_value = ir.tensor(np.float32(scale), name="s")
    run_pipeline(model, "narrow-weights")
    tensor = model.graph.initializers["w"].const_value
    assert tensor is not None
    narrow, encoding = tensor.numpy(), Encoding.per_tensor(ir.DataType.INT8, scale)
    assert quantize(narrow, encoding).tolist() == quantize(weight, encoding, symmetric_range=True).tolist()
    assert quantize(narrow, encoding).min() == -127
    changed = quantize(weight, encoding) == -128
    assert narrow[~changed].tolist() == weight[~changed].tolist()
    assert changed.sum() >= 2

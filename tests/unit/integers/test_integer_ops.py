"""What `integer_tensors` lists of QLinear operators, integer products, packed weights and dynamic quantization."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnxruntime.quantization import QuantType
from qdq_passes.core.names import float_name
from qdq_passes.integers.look.integer_ops import IntegerTensor, integer_tensors
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.qdq.look.pairs import encoding_of

from qdqtool.io.models.load import model_of
from tests.cases.integer_models import packed
from tests.cases.quantized_files import quantized_dynamic, quantized_static
from tests.cases.small_models import model

MS = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>'


def listed(graph: ir.Model) -> dict[str, IntegerTensor]:
    """The entries by their tensor, each of which must occur once."""
    tensors = integer_tensors(graph)
    found = {t.tensor: t for t in tensors}
    assert len(found) == len(tensors), [t.tensor for t in tensors]
    return found


def names(nodes: tuple[ir.Node, ...]) -> list[str]:
    return [node.name or "" for node in nodes]


def test_static_file(tmp_path: Path) -> None:
    """Every tensor of the net once, under its float name, with what makes and reads it."""
    graph = model_of(quantized_static(tmp_path / "q.onnx", activation_type=QuantType.QInt8, per_channel=True))
    found = listed(graph)
    assert {t.form for t in found.values()} == {"qoperator"}
    assert {n for n, t in found.items() if t.kind == "weight"} == {"w", "w2", "gw", "mw"}
    assert {n for n, t in found.items() if t.kind == "bias"} == {"b", "gb"}
    assert {"x", "c", "m", "l", "s", "a", "u", "d", "p", "g2", "m1", "y0", "y1"} <= set(found)
    weight, bias, first = found["w"], found["b"], found["x"]
    assert weight.stored is graph.graph.initializers["w_quantized"]
    assert weight.encoding is not None
    assert (weight.encoding.shape, weight.encoding.axis, weight.encoding.dtype) == ((4,), 0, ir.DataType.INT8)
    assert bias.encoding is not None
    assert first.encoding is not None
    expected = np.float32(first.encoding.scale[0]) * np.array(weight.encoding.scale, np.float32)
    assert bias.encoding.scale == tuple(expected.astype(np.float64))
    assert (first.q and first.q.op_type, first.dq and first.dq.op_type) == ("QuantizeLinear", "QLinearConv")
    assert names(found["c"].nodes)[0] == "conv_quant"
    last = found["y1"].dq
    assert last is not None
    assert last.op_type in ("DequantizeLinear", "Reshape")


def test_dynamic_file(tmp_path: Path) -> None:
    """Scales of activations are computed; those of weights are told by what scales the product."""
    graph = model_of(quantized_dynamic(tmp_path / "q.onnx"))
    found = listed(graph)
    forms = {name: t.form for name, t in found.items()}
    assert {name for name, form in forms.items() if form == "dynamic"} == {"a", "im"}
    assert {name for name, form in forms.items() if form == "integer"} == {"dw", "cw", "lw", "lr"}
    assert found["a"].encoding is None
    assert (found["a"].spread, found["a"].dtype) == ("per-tensor", ir.DataType.UINT8)
    scale = graph.graph.initializers["dw_scale"].const_value
    assert scale is not None
    assert found["dw"].encoding == Encoding.per_tensor(ir.DataType.INT8, float(scale.numpy()))
    assert found["table"].encoding == found["e"].encoding
    assert (found["table"].kind, found["e"].kind) == ("weight", "activation")


@pytest.mark.parametrize(
    ("bits", "zero", "dtype"),
    [
        (4, "", "INT4"),
        (4, "packed", "UINT4"),
        (4, "float", "UINT4"),
        (8, "", "INT8"),
        (8, "packed", "UINT8"),
        (2, "", "INT2"),
    ],
)
def test_packed_weight(bits: int, zero: str, dtype: str) -> None:
    """The encoding is that of the DequantizeLinear that unpacking makes, for 40 rows in blocks of 16: scales [3, 5] on axis 0."""
    source, _ = packed(40, 5, bits=bits, zero=zero)
    graph = model_of(source)
    entry = listed(graph)["w"]
    assert (entry.form, entry.kind, entry.dtype) == ("nbits", "weight", ir.DataType[dtype])
    assert entry.encoding is not None
    assert (entry.encoding.shape, entry.encoding.axis, entry.encoding.block_size) == ((3, 5), 0, 16)
    run_pipeline(graph, "unpack-matmul-nbits")
    dq = next(node for node in graph.graph if node.op_type == "DequantizeLinear")
    made = encoding_of(dq)
    assert made is not None
    assert (made.scale, made.zero_point, made.shape) == (entry.encoding.scale, entry.encoding.zero_point, (3, 5))
    assert listed(graph) == {}


def test_pairs_alone_are_not_listed() -> None:
    graph = model(
        """g (float[2] x) => (float[2] y) <float s = {0.5}, int8 z = {0}, int8[2] w = {1, 2}> {
        [q] i = QuantizeLinear(x, s, z) [dq] d = DequantizeLinear(i, s, z) [dw] v = DequantizeLinear(w, s, z) [m] y = Mul(d, v) }"""
    )
    assert integer_tensors(graph) == []


def test_halves_belong_to_their_tensor() -> None:
    """A Q before an operator and a DQ behind it are nodes of their tensor's entry."""
    graph = model(
        MS
        + """g (float[2] x) => (float[2] y) <float s = {0.5}, int8 z = {0}> {
        [q] x_quantized = QuantizeLinear(x, s, z) [add] y_quantized = com.microsoft.QLinearAdd(x_quantized, s, z, x_quantized, s, z, s, z)
        [dq] y = DequantizeLinear(y_quantized, s, z) }"""
    )
    found = listed(graph)
    assert set(found) == {"x", "y"}
    assert (names(found["x"].nodes), names(found["y"].nodes)) == (["q", "add"], ["add", "dq"])


def test_scales_that_cannot_be_told() -> None:
    """Computed scales, scales along no single axis and products nobody scales are listed without an encoding."""
    graph = model(
        MS
        + """g (uint8[2,2] a, float k) => (uint8[2,2] b, int32[2,2] c) <uint8 z = {0}, float[2,1] rows = {1, 2}, float s = {0.5},
        int8[2,2] w = {1, 2, 3, 4}, uint8[2,2] v = {1, 2, 3, 4}> {
        [add] b = com.microsoft.QLinearAdd(a, k, z, v, rows, z, s, z) [mm] c = MatMulInteger(a, w) }"""
    )
    found = listed(graph)
    assert {name: t.encoding for name, t in found.items() if name != "b"} == {"a": None, "v": None, "w": None}
    assert (found["w"].dtype, found["w"].kind, found["b"].encoding is not None) == (ir.DataType.INT8, "weight", True)


def test_names_of_stored_integers() -> None:
    pairs = {
        "w_quantized": "w", "s1quantized": "s1", "model.q.weight_Q4": "model.q.weight", "w_Q4G32": "w", "a.qweight": "a.weight",
        "quantized": "quantized", "x_QuantizeLinear_Output": "x", "w": "w",
    }  # fmt: skip
    assert {name: float_name(name) for name in pairs} == pairs


def test_bodies_and_functions() -> None:
    graph = model(
        """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1, "local" : 1]>
        g (bool c, float[2] x) => (float[2] y) <float s = {0.5}, uint8 z = {0}> { [q] i = QuantizeLinear(x, s, z)
        [if] t = If(c) <then_branch = p () => (float[2] a) { [in] j = com.microsoft.QLinearSigmoid(i, s, z, s, z)
          [dq] a = DequantizeLinear(j, s, z) }, else_branch = e () => (float[2] b) { [neg] b = Neg(x) }>
        [call] y = local.F(t) }
        <domain: "local", opset_import: ["" : 21]> F (u) => (v) {
          [dyn] k, ks, kz = DynamicQuantizeLinear(u) [ddq] v = DequantizeLinear(k, ks, kz) }"""
    )
    assert [(t.tensor, t.form) for t in integer_tensors(graph)] == [
        ("x", "qoperator"),
        ("j", "qoperator"),
        ("u", "dynamic"),
    ]

"""Multiply-accumulates, counted by hand and against the products that an estimate takes."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from qdq_passes import run_pipeline
from qdq_passes.graph.operators.macs import macs_in, macs_of

from tests.cases.small_models import model


@pytest.mark.parametrize(
    ("x", "w", "node", "expected"),
    [
        ("1,3,8,8", "16,3,3,3", "Conv(x, w)", 16 * 6 * 6 * 27),
        ("2,4,8,8", "8,1,3,3", "Conv<group: int = 4, pads: ints = [1,1,1,1]>(x, w)", 2 * 8 * 8 * 8 * 9),
        ("1,6,9", "4,6,3", "Conv<strides: ints = [2]>(x, w)", 4 * 4 * 18),
        ("1,4,5,5", "4,3,2,2", "ConvTranspose<strides: ints = [2,2]>(x, w)", 100 * 12),
        ("1,4,5,5", "4,3,2,2", "ConvTranspose<group: int = 2>(x, w)", 100 * 12),
        ("3,5", "5,7", "Gemm(x, w)", 105),
        ("5,3", "7,5", "Gemm<transA: int = 1, transB: int = 1>(x, w)", 105),
        ("2,4,3,5", "5,7", "MatMul(x, w)", 8 * 105),
        ("2,1,3,5", "4,5,7", "MatMul(x, w)", 8 * 105),
        ("5", "5", "MatMul(x, w)", 5),
        ("3,5", "3,5", "Add(x, w)", 0),
    ],
)
def test_counts(x: str, w: str, node: str, expected: int) -> None:
    graph = model(f"g (float[{x}] x, float[{w}] w) => (float y) {{ t = {node} y = ReduceSum<keepdims: int = 0>(t) }}")
    run_pipeline(graph, "infer-shapes")
    assert macs_of(graph.graph[0]) == expected
    assert macs_in(graph.graph) == expected


def test_a_dynamic_batch_counts_once() -> None:
    graph = model("g (float[N,5] x, float[5,7] w) => (float[N,7] y) { y = MatMul(x, w) }")
    assert macs_of(graph.graph[0]) == 35


def test_a_dynamic_batch_that_is_flattened_counts_once() -> None:
    """Tokens [N, 16, 3] as rows [N·16, 3], through a pair."""
    graph = model(
        """g (float[N,16,3] x, float[3,7] w) => (float[M,7] y) <int64[2] rows = {-1, 3}, float s = {1}, int8 z = {0}>
        { r = Reshape(x, rows) q = QuantizeLinear(r, s, z) d = DequantizeLinear(q, s, z) [g] y = Gemm(d, w) }"""
    )
    run_pipeline(graph, "infer-shapes")
    assert macs_of(next(node for node in graph.graph if node.name == "g")) == 16 * 3 * 7


def test_without_a_shape_nothing_is_known() -> None:
    graph = model(
        "g (float x, float[5,7] w) => (float y) { t = Abs(x) u = MatMul(t, w) y = ReduceSum<keepdims: int = 0>(u) }"
    )
    for value in [graph.graph.inputs[0], graph.graph[0].outputs[0]]:
        value.shape = None
    assert macs_of(graph.graph[1]) is None
    assert macs_in(graph.graph) == 0


#: Operators of ONNX that multiply matrices, by formula or (the last) without one; all others count nothing.
PRODUCTS = {
    "AffineGrid", "Attention", "CausalConvWithState", "Conv", "ConvInteger", "ConvTranspose", "DFT", "DeformConv", "Einsum",
    "GRU", "Gemm", "LSTM", "MatMul", "MatMulInteger", "QLinearConv", "QLinearMatMul", "RNN", "STFT", "Det", "LinearAttention",
}  # fmt: skip
#: Opset up to which the list above was read through.
READ = 28


def test_every_operator_of_onnx_that_multiplies_matrices_has_a_count() -> None:
    """Of values of unknown shapes: that there is one, and that nobody knows it."""
    known = [schema for schema in onnx.defs.get_all_schemas() if schema.domain == "" and schema.since_version <= READ]
    values = [ir.Value(name=f"v{index}") for index in range(2)]
    uncounted = {schema.name for schema in known if macs_of(ir.node(schema.name, values)) is None}
    assert uncounted == PRODUCTS & {schema.name for schema in known}


@pytest.mark.parametrize(
    ("node", "shapes", "expected"),
    [
        ("ConvInteger", [(1, 3, 8, 8), (16, 3, 3, 3)], 16 * 36 * 27),
        ("DeformConv", [(1, 3, 8, 8), (16, 3, 3, 3), (1, 18, 6, 6)], 16 * 36 * 27),
        ("QLinearMatMul", [(4, 5), (), (), (5, 7)], 140),
        ("com.microsoft::FusedMatMul", [(4, 5), (5, 7)], 140),
        ("com.microsoft::MatMulNBits", [(4, 5), (7, 1, 16)], 140),
        ("com.microsoft::QLinearSoftmax", [(4, 5)], 0),
        ("com.microsoft::MoE", [(4, 5), (4, 2)], None),
        ("com.acme::Mix", [(4, 5)], None),
        ("ai.onnx.ml::Scaler", [(4, 5)], 0),
        ("ai.onnx.ml::LinearRegressor", [(4, 5)], None),
    ],
)
def test_counts_of_other_forms(node: str, shapes: list[tuple[int, ...]], expected: int | None) -> None:
    domain, _, op = node.rpartition("::")
    made = ir.node(
        op, [ir.Value(shape=ir.Shape(shape)) for shape in shapes], {"K": 5} if "NBits" in op else {}, domain=domain
    )
    made.outputs[0].shape = ir.Shape((1, 16, 6, 6) if "Conv" in op else (4, 7))
    assert macs_of(made) == expected

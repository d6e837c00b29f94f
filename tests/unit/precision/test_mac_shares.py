"""Shares of multiply-accumulates by width, and the tensors at which a model changes between 8 bit and anything else."""

from __future__ import annotations

import math

import onnx_ir as ir
import pytest
from qdq_passes import run_pipeline
from qdq_passes.precision.look.widths import OperandWidths, boundary_crossings, mac_counts, mac_shares

from tests.cases.small_models import model

ZEROS = "int8 z8 = {0}, uint16 z16 = {32768}, int4 z4 = {0}, float s = {0.5}"


def pair(source: str, zero: str, name: str) -> str:
    """QuantizeLinear and DequantizeLinear of ``source``, which write ``name``."""
    return f"{name}_i = QuantizeLinear({source}, s, {zero}) {name} = DequantizeLinear({name}_i, s, {zero})"


def ones(name: str, *shape: int) -> str:
    """An initializer of that shape."""
    return f"float[{','.join(map(str, shape))}] {name} = {{{','.join(['1'] * math.prod(shape))}}}"


def product(x_zero: str | None, w_zero: str | None) -> ir.Model:
    """x [2, 3] · w [3, 4], each with a pair of the type of its zero point, or none."""
    x = pair("x", x_zero, "xd") if x_zero else "xd = Abs(x)"
    w = pair("w", w_zero, "wd") if w_zero else "wd = Abs(w)"
    graph = model(
        f"""g (float[2,3] x) => (float[2,4] y) <{ones("w", 3, 4)}, {ZEROS}>
        {{ {x} {w} y = MatMul(xd, wd) }}"""
    )
    run_pipeline(graph, "infer-shapes")
    return graph


@pytest.mark.parametrize(
    ("x", "w", "expected"),
    [
        ("z8", "z8", "8"), ("z8", "z4", "8"), ("z4", "z4", "4"), ("z16", "z8", "16"), ("z8", "z16", "16"),
        (None, "z4", "float"), ("z8", None, "float"), (None, None, "float"),
    ],
)  # fmt: skip
def test_a_product_is_as_wide_as_its_widest_operand(x: str | None, w: str | None, expected: str) -> None:
    counts = mac_counts(product(x, w))
    assert counts.pop(expected) == 2 * 3 * 4
    assert set(counts.values()) == {0}
    assert mac_shares(product(x, w))[expected] == 1.0


def test_shares_of_two_layers() -> None:
    graph = model(
        f"""g (float[1,4] x) => (float[1,12] y) <{ones("w", 4, 12)}, {ones("v", 12, 12)}, {ZEROS}>
        {{ {pair("x", "z8", "xd")} {pair("w", "z8", "wd")} [a] t = MatMul(xd, wd) {pair("t", "z16", "td")}
           {pair("v", "z8", "vd")} [b] y = MatMul(td, vd) }}"""
    )
    run_pipeline(graph, "infer-shapes")
    assert mac_counts(graph) == {"4": 0, "8": 48, "16": 144, "float": 0}
    assert mac_shares(graph) == {"4": 0.0, "8": 0.25, "16": 0.75, "float": 0.0}
    assert [(c.tensor, c.producer, c.readers, c.widths) for c in boundary_crossings(graph)] == [
        ("t", "a", ("b",), (8, 16))
    ]


def test_without_products_there_are_no_shares() -> None:
    assert mac_shares(model("g (float[2] x) => (float[2] y) { y = Abs(x) }")) == dict.fromkeys(
        ["4", "8", "16", "float"], 0
    )


def test_what_only_moves_values_is_looked_through() -> None:
    graph = model(
        f"""g (float[3,4] x) => (float[2,4] y) <{ones("w", 2, 3)}, int64[2] shape = {{3, 4}}, {ZEROS}>
        {{ {pair("x", "z8", "xd")} t = Transpose<perm: ints = [1, 0]>(xd) u = Transpose(t) {pair("w", "z8", "wd")}
           v = Reshape(wd, shape) r = Reshape(u, shape) y = MatMul(wd, r) }}"""
    )
    run_pipeline(graph, "infer-shapes")
    assert mac_counts(graph)["8"] == 2 * 3 * 4


def test_float16_behind_a_cast_is_float() -> None:
    graph = model(
        f"""g (float[2,3] x) => (float[2,2] y) <{ones("w", 3, 2)}, {ZEROS}>
        {{ {pair("x", "z8", "xd")} {pair("w", "z8", "wd")} [a] t = MatMul(xd, wd) {pair("t", "z8", "td")}
           c = Cast<to: int = 10>(td) [soft] p = Softmax(c) e = Cast<to: int = 1>(p) {pair("e", "z8", "ed")}
           [b] y = Relu(ed) }}"""
    )
    run_pipeline(graph, "infer-shapes")
    found = boundary_crossings(graph)
    assert [(c.tensor, c.readers, c.widths) for c in found] == [("t", ("soft",), (8, 64)), ("p", ("b",), (8, 64))]


def test_one_tensor_crosses_once_however_many_read_it() -> None:
    """A converting pair for two readers, one reader that stays in 8 bit."""
    graph = model(
        f"""g (float[2] x) => (float[2] u, float[2] v, float[2] w) <{ZEROS}>
        {{ {pair("x", "z8", "xd")} [a] t = Abs(xd) {pair("t", "z8", "td")} {pair("td", "z16", "t16")}
           [b] u = Sin(t16) [c] v = Cos(t16) [d] w = Tanh(td) }}"""
    )
    found = boundary_crossings(graph)
    assert [(c.tensor, sorted(c.readers), c.widths) for c in found] == [("t", ["b", "c", "d"], (8, 16))]


def test_layers_fused_without_a_pair_are_one() -> None:
    """Conv and Relu; a Gelu spelt out between two 8-bit pairs; but not a chain that leaves as a float."""
    graph = model(
        f"""g (float[1,1,2,2] x) => (float[1,1,2,2] y, float[1,1,2,2] z) <{ones("w", 1, 1, 1, 1)}, float half = {{0.5}}, {ZEROS}>
        {{ {pair("x", "z8", "xd")} {pair("w", "z8", "wd")} [conv] c = Conv(xd, wd) [relu] r = Relu(c) {pair("r", "z8", "rd")}
           [erf] e = Erf(rd) [mul] m = Mul(e, half) [gelu] g = Mul(m, rd) {pair("g", "z8", "gd")}
           [exp] y = Exp(gd) [sin] f = Sin(gd) [cos] z = Cos(f) }}"""
    )
    widths = OperandWidths(graph)
    by_name = {node.name: widths.of_operator(node) for node in graph.graph if node.name and widths.computes(node)}
    assert by_name == {"conv": 8, "relu": 8, "erf": 8, "mul": 8, "gelu": 8, "exp": 8, "sin": 8, "cos": 64}
    assert [c.tensor for c in boundary_crossings(graph)] == ["f"]


def test_dynamic_quantization_counts() -> None:
    graph = model("g (float[2,3] x) => (float[2,2] y) <float[3,2] w = {1,1,1,1,1,1}> { y = MatMul(x, w) }")
    run_pipeline(graph, 'infer-shapes,insert-qdq{select="tensor:w" scale=0.5 weights=dq}')
    for granularity in ("per-tensor", "per-token"):
        copy = run_pipeline(
            graph, f"insert-dynamic-quantization{{granularity={granularity}}},infer-shapes", copy=True
        ).model
        assert mac_shares(copy)["8"] == 1.0


def test_a_residual_stream_of_floats_is_no_group() -> None:
    """Two norms on a stream without pairs: what enters and leaves it is 8 bit, the stream is not."""
    graph = model(
        f"""g (float[1,4] x) => (float[1,4] y) <{ones("g", 4)}, {ZEROS}>
        {{ {pair("x", "z8", "xd")} [a] r = Abs(xd) [n] p = LayerNormalization(r, g) {pair("p", "z8", "pd")} [m] u = Sin(pd)
           {pair("u", "z8", "ud")} [add] t = Add(r, ud) [o] q = LayerNormalization(t, g) {pair("q", "z8", "qd")} [e] y = Cos(qd) }}"""
    )
    run_pipeline(graph, "infer-shapes")
    assert [c.tensor for c in boundary_crossings(graph)] == ["r", "p", "u", "q"]

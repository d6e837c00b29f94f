"""Why the simulated NPU does not compute a unit in floating point, in words, and what a program carries beside it."""

from __future__ import annotations

import pytest
from qdq_passes.npu.program.operators import why_not_computable, why_not_moved
from qdq_passes.npu.units.units import units_of
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.pipeline.pipeline import run_pipeline

from tests.cases.small_models import model

HALF, WIDE = Arithmetic(float_precision="float16"), Arithmetic(float_precision="float32")


def why(text: str, arithmetic: Arithmetic = HALF) -> str | None:
    """Of the last unit of a graph."""
    graph = model(text)
    if "Slice<" in text:
        graph.graph.opset_imports[""] = 9
    run_pipeline(graph, "infer-shapes")
    units = units_of(graph)
    return why_not_computable(units[-1], arithmetic, in_float=True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (double[2] x) => (double[2] y) { y = Neg(x) }", "on double has no kernel|type double"),
        ("g (float[2] x) => (float[2] y) { y = Dropout(x) }", "Dropout has no kernel in floating point; run remove-identity first"),
        ('<ir_version: 10, opset_import: ["" : 9]> g (float[4] x) => (float[A] y) { y = Slice<starts = [1], ends = [3]>(x) }', "Slice before opset 10 takes attributes"),
        ("g (float[2,0] x) => (float[2] y) <int64[1] a = {1}> { y = ReduceMax<keepdims = 0>(x, a) }", "reduces an axis without elements"),
        ("g (float[0] x) => (float[1] y) { y = ReduceSum(x) }", "reduces an axis without elements"),
        ("g (float[2,3] x, int64[1] s) => (float[A] y) { y = Reshape(x, s) }", "s, which decides its shape, is computed"),
        ("g (float[2,3] x) => (float[2,3] y, int64[2,3] i) <int64[1] k = {3}> { y, i = TopK(x, k) }", "TopK has no kernel"),
        ("g (float[2] x, float l) => (float[2] y) { y = Clip(x, l) }", "its min is computed"),
        ("g (float[2] x) => (int32[2] y) { y = Cast<to = 6>(x) }", "casts to int32"),
        ("g (float[1,2,4] x, float[2] s, float[2] b, float[2] m, float[2] v) => (float[1,2,4] y)"
         " { y = BatchNormalization(x, s, b, m, v) }", "its parameters are computed"),
        ("g (float[1,2,4] x, int64[1] a) => (float[A,B,C] y) { y = ReduceSum(x, a) }", "axes that it reduces are computed"),
        ("g (float[1,1,4,4] x) => (float[1,1,8,8] y) <float[4] s = {1.0, 1.0, 0.5, 2.0}>"
         ' { y = Resize<mode: string = "cubic", antialias: int = 1>(x, , s) }', "smooths what it makes smaller (antialias)"),
        ("g (float[1,2,4,4] x) => (float[1,2,4,4] y) <float[4] s = {1.0, 2.0, 1.0, 2.0}>"
         ' { y = Resize<mode: string = "linear">(x, , s) }', "interpolates along other than the last two axes"),
        ("g (float[2] x, float s) => (float[2] y) <int8 z = {0}>"
         " { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) p = QuantizeLinear(d, s, z) y = DequantizeLinear(p, s, z) }",
         "its scale is computed"),
    ],
)  # fmt: skip
def test_reasons(text: str, reason: str) -> None:
    found = why(text)
    assert found is not None
    assert any(part.replace("\\", "") in found for part in reason.split("|")), found


def test_functions_without_a_formula_are_tables_of_halves_alone() -> None:
    text = "g (float[2] x) => (float[2] y) { y = Tanh(x) }"
    assert why(text, HALF) is None
    assert why(text, WIDE) == "Tanh in float32 has no formula that kernels of any machine compute alike"


def test_attention_names_the_pass_that_takes_it_apart() -> None:
    graph = model("g (float[1,2,3,4] x) => (float[1,2,3,4] y) { y = Neg(x) }")
    graph.graph[0].op_type = "Attention"
    found = why_not_computable(units_of(graph)[0], HALF, in_float=True)
    assert found == "Attention has no kernel in floating point; run decompose-attention first"


def test_integers_of_four_bits_are_weights_alone() -> None:
    """As constants they are dequantized when the program is made; as data that flow they have no kernel."""
    text = """g (float[2,2] x) => (float[2,2] y) <float s = {0.5}, int4 z = {0}, int4[2,2] w = {1, 2, 3, 4}>
    { [d] d = DequantizeLinear(w, s, z) [m] y = MatMul(x, d) }"""
    assert why(text) is None
    flowing = """g (float[2,2] x) => (float[2,2] y) <float s = {0.5}, int4 z = {0}>
    { [q] q = QuantizeLinear(x, s, z) [d] d = DequantizeLinear(q, s, z) [n] y = Neg(d) }"""
    assert why(flowing) == "reads integers that are int4; the simulator dequantizes 8 and 16 bits where data flow"


def test_a_program_carries_indices_that_move_and_nothing_else() -> None:
    graph = model(
        """g (int64[2] i, bool[2] a, int64[2] s) => (int64[2,1] u, bool[2] b, int64[C,D] r) <int64[1] axis = {1}>
        { [u] u = Unsqueeze(i, axis) [b] b = And(a, a) [r] r = Reshape(i, s) }"""
    )
    found = {unit.core.name: why_not_moved(unit) for unit in units_of(graph)}
    assert found == {
        "u": None,
        "b": "And has no kernel",
        "r": "s, which decides its shape, is computed",
    }

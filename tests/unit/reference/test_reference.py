"""The reference against onnxruntime without optimization, at tolerance 0, on random units; and what it refuses.

With power-of-two scales and half_even the two are the same; with another rounding the reference is onnxruntime's exact float32
rounded that way. See `tests.unit.reference.random_units` for why float32 is exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qdq_passes.errors import ModelError, UnsupportedError
from qdq_passes.npu.reference.run import captured_values, run_reference
from qdq_passes.numerics.arithmetic import Arithmetic, Rounding
from qdq_passes.numerics.encoding import Encoding

from tests.cases.qdq_units import FIXED_POINT, ROUNDINGS, SHIFT, Unit, rounded
from tests.cases.small_models import model
from tests.dial import examples
from tests.golden_messages.refusal import refusal
from tests.properties.graphs import DETERMINISTIC
from tests.unit.reference.random_units import POOLS, SUMS, convolution, mean_of_padding

SEEDS = st.integers(0, 2**32 - 1)
INT8, UINT8 = ir.DataType.INT8, ir.DataType.UINT8


def same(found: Sequence[npt.NDArray[Any]], wanted: Sequence[npt.NDArray[Any]]) -> None:
    """All outputs are equal, their types and shapes too."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", [*SUMS, *POOLS])
@settings(DETERMINISTIC, max_examples=examples(40))
@given(seed=SEEDS)
def test_powers_of_two_and_half_even_are_what_onnxruntime_computes(name: str, seed: int) -> None:
    unit = {**SUMS, **POOLS}[name](np.random.default_rng(seed))
    wanted = unit.onnxruntime()
    same(unit.reference(SHIFT), wanted)
    same(unit.reference(FIXED_POINT), wanted)


@pytest.mark.newest
@settings(DETERMINISTIC, max_examples=examples(40))
@given(seed=SEEDS)
def test_padding_is_counted_as_onnxruntime_does(seed: int) -> None:
    unit = mean_of_padding(np.random.default_rng(seed))
    same(unit.reference(SHIFT), unit.onnxruntime())


def test_what_a_window_covers_behind_the_padding_is_not_counted() -> None:
    """[0 8 4 | 2 0 −] in threes: 12/3 and 2/2, the last element does not exist."""
    unit, grid = Unit(np.random.default_rng(0)), Encoding.per_tensor(INT8, 1.0)
    x = unit.activation([1, 1, 3], grid)
    unit.feeds["x0"] = np.array([[[8, 4, 2]]], np.float32)
    pool = {"kernel_shape": [3], "strides": [3], "pads": [1, 1], "count_include_pad": 1, "ceil_mode": 1}
    unit.store(unit.node("AveragePool", [x], **pool), grid)
    assert unit.reference(SHIFT)[0].tolist() == unit.onnxruntime()[0].tolist() == [[[4, 1]]]


@pytest.mark.parametrize("name", SUMS)
@settings(DETERMINISTIC, max_examples=examples(20))
@given(seed=SEEDS, rounding=st.sampled_from(ROUNDINGS))
def test_a_rounding_decides_at_ties_alone(name: str, seed: int, rounding: Rounding) -> None:
    unit = SUMS[name](np.random.default_rng(seed))
    (real, encoding), arithmetic = unit.floats_of_onnxruntime()[0], Arithmetic(requantize="shift", rounding=rounding)
    (found,) = unit.reference(arithmetic)
    np.testing.assert_array_equal(found, rounded(real, encoding, rounding))
    steps, (even,) = real / encoding.scale[0], unit.reference(SHIFT)
    if rounding != "toward_zero":
        assert (np.abs(steps[found != even]) % 1 == 0.5).all()


@settings(DETERMINISTIC, max_examples=examples(40))
@given(seed=SEEDS)
def test_the_float_mode_is_float32_in_the_stated_order(seed: int) -> None:
    random = np.random.default_rng(seed)
    unit, x_grid = Unit(random), Encoding.per_tensor(UINT8, float(np.float32(random.uniform(0.01, 0.1))), 7)
    w_grid = Encoding.per_tensor(INT8, float(np.float32(random.uniform(0.01, 0.1))), -3)
    y_grid = Encoding.per_tensor(UINT8, float(np.float32(random.uniform(0.05, 0.2))), 100)
    w, bias = random.integers(-128, 128, (6, 3)), random.uniform(-3, 3, 3).astype(np.float32)
    x = unit.activation([4, 6], x_grid)
    value = unit.node("Gemm", [x, unit.stored(w, w_grid), unit.constant(bias)])
    unit.store(unit.node("LeakyRelu", [value], alpha=0.3), y_grid)
    steps = np.rint(unit.feeds["x0"] / np.float32(x_grid.scale[0])).astype(np.int64)
    q = np.clip(steps + 7, 0, 255) - 7
    product = np.float64(x_grid.scale[0]) * np.float64(w_grid.scale[0])
    acc = q @ (w + 3) + np.rint(bias.astype(np.float64) / product).astype(np.int64)
    t = acc.astype(np.float32) * np.float32(product)
    t = np.where(t < 0, t * np.float32(0.3), t) / np.float32(y_grid.scale[0])
    for arithmetic, result in (
        (Arithmetic(requantize="float", rounding="half_even"), np.rint(t) + 100),
        (Arithmetic(requantize="float", rounding="toward_zero", zero_point_first=True), np.trunc(t + np.float32(100))),
    ):
        np.testing.assert_array_equal(unit.reference(arithmetic)[0], np.clip(result, 0, 255))


def test_a_dense_layer_that_truncates() -> None:
    """out / scale_out + zero_out in float32, cut off toward 0. x = [10, −20, 30]·0.5, w = [[1, 2], [3, −4], [5, 6]]·0.25, so the
    sums are [100, 280] of 0.125; bias [3, −5] makes [103, 275]·0.125 = [12.875, 34.375]; / 0.75 + 1 = [18.166…, 46.833…]."""
    grids = [Encoding.per_tensor(INT8, s, z) for s, z in ((0.5, 0), (0.25, 0), (0.75, 1))]
    unit = Unit(np.random.default_rng(0))
    x = unit.activation([1, 3], grids[0])
    unit.feeds["x0"] = np.array([[5, -10, 15]], np.float32)
    w = unit.stored(np.array([[1, 2], [3, -4], [5, 6]]), grids[1])
    bias = unit.stored(np.array([3, -5]), Encoding.per_tensor(ir.DataType.INT32, 0.125))
    unit.store(unit.node("Gemm", [x, w, bias]), grids[2])
    truncating = Arithmetic(requantize="float", rounding="toward_zero", zero_point_first=True)
    assert unit.reference(truncating)[0].tolist() == [[18, 46]]
    unit.feeds["x0"] = np.array([[-5, 10, -15]], np.float32)  # [−97, −285]·0.125/0.75 + 1 = [−15.166…, −46.5]
    assert unit.reference(truncating)[0].tolist() == [[-15, -46]]


def test_an_add_with_integer_multipliers() -> None:
    """0.3·a + 0.7·b in steps of 0.5: ratios 0.6 and 1.4, ⌈log2 1.4⌉ = 1, shift 29: m_a = round(0.6·2^29) = 322122557 (the float32
    0.3 is 0.300000012, times 2^30 322122560), m_b = round(0.7/0.5·2^29) with the float32 0.7 = 0.699999988: 751619264.
    a = 100, b = −55: (32212256000 − 41339059520)·2^-29 = −17.0000009: −17; half up of (a, b) = (2, 1): 2.6 → 3."""
    grids = [Encoding.per_tensor(INT8, float(np.float32(s)), z) for s, z in ((0.3, 3), (0.7, -2), (0.5, 10))]
    unit = Unit(np.random.default_rng(0))
    values = [unit.activation([1, 2], grid) for grid in grids[:2]]
    unit.feeds = {"x0": np.array([[30, 0.6]], np.float32), "x1": np.array([[-38.5, 0.7]], np.float32)}
    unit.store(unit.node("Add", values), grids[2])
    assert unit.reference(Arithmetic())[0].tolist() == [[-17 + 10, 3 + 10]]


def test_an_accumulator_may_wrap_or_saturate() -> None:
    """4·127·127 = 64516 in 16 bits: −1020, or 32767; M = 2^-10."""
    grid = Encoding.per_tensor(INT8, 1.0)
    unit = Unit(np.random.default_rng(0))
    x = unit.activation([1, 4], grid)
    unit.feeds["x0"] = np.full((1, 4), 127, np.float32)
    unit.store(unit.node("MatMul", [x, unit.stored(np.full((4, 1), 127), grid)]), Encoding.per_tensor(INT8, 1024.0))
    wraps = Arithmetic(requantize="shift", accumulator=16, rounding="half_even")
    assert unit.reference(wraps)[0].item() == -1
    assert (
        unit.reference(Arithmetic(requantize="shift", accumulator=16, accumulator_overflow="saturate"))[0].item() == 32
    )
    assert unit.reference(Arithmetic(requantize="shift"))[0].item() == 63


def test_a_result_may_wrap() -> None:
    """300 in int8: 44, or 127; behind a Relu that holds it below 0: a clamp comes first."""
    unit, grid = Unit(np.random.default_rng(0)), Encoding.per_tensor(INT8, 1.0)
    values = [unit.activation([1, 2], grid) for _ in range(2)]
    unit.feeds = {"x0": np.array([[100, -100]], np.float32), "x1": np.array([[3, 3]], np.float32)}
    unit.store(unit.node("Relu", [unit.node("Mul", values)]), grid)
    assert unit.reference(Arithmetic(overflow="wrap"))[0].tolist() == [[44, 0]]
    assert unit.reference(Arithmetic())[0].tolist() == [[127, 0]]


def test_softmax_is_a_table_and_one_division() -> None:
    """d = [0, 2, 4]·0.5: E = round(exp(−d)·2^30) = [1073741824, 395007542, 145315154] (exp −1 = 0.36787944…, exp −2 = 0.13533528…);
    E·256 / ΣE = [170.31…, 62.65…, 23.05…]; every unit is onnxruntime's within a step, and equal off ties."""
    unit = Unit(np.random.default_rng(0))
    x = unit.activation([1, 3], Encoding.per_tensor(INT8, 0.5))
    unit.feeds["x0"] = np.array([[1, 0, -1]], np.float32)
    unit.store(unit.node("Softmax", [x]), Encoding.per_tensor(UINT8, 1 / 256))
    assert unit.reference(SHIFT)[0].tolist() == [[170, 63, 23]]


@settings(DETERMINISTIC, max_examples=examples(40))
@given(seed=SEEDS)
def test_softmax_is_that_of_onnxruntime_off_ties(seed: int) -> None:
    """The exponentials are wrong by 2^-31 at most, the quotient by as much a term, so by 400·2^-31·256 < 2^-12 steps for up to
    400 terms; onnxruntime's float32 by some 10 units of 2^-24, on 256 steps below 2^-12 too. Off ties by 2^-10 both round alike."""
    random = np.random.default_rng(seed)
    unit, rank = Unit(random), int(random.integers(1, 4))
    scale, axis = float(np.float32(random.uniform(0.001, 0.5))), int(random.integers(-rank, rank))
    x = unit.activation([int(v) for v in random.integers(1, 8, rank)], Encoding.per_tensor(UINT8, scale, 128))
    output = Encoding.per_tensor(*((UINT8, 1 / 256, 0) if random.integers(2) else (INT8, 1 / 128, -128)))
    unit.store(unit.node("Softmax", [x], axis=axis), output)
    (real, _), (wanted,) = unit.floats_of_onnxruntime()[0], unit.onnxruntime()
    steps = real.astype(np.float64) / output.scale[0]
    clear = np.abs(steps - np.floor(steps) - 0.5) > 2**-10
    for arithmetic in (SHIFT, FIXED_POINT, Arithmetic(requantize="float", rounding="half_even")):
        (found,) = unit.reference(arithmetic)
        np.testing.assert_array_equal(found[clear], wanted[clear])
        assert np.abs(found.astype(np.int64) - wanted).max(initial=0) <= 1


CPU_MIDDLE = """g (float[N,4] x) => (int8[N,4] y)
<float s = {0.5}, int8 z = {0}, float t = {0.25}> {
  xq = QuantizeLinear(x, s, z)  xd = DequantizeLinear(xq, s, z)  [relu] r = Relu(xd)  rq = QuantizeLinear(r, s, z)
  rd = DequantizeLinear(rq, s, z)  [cumsum] c = Einsum<equation: string = "ij->ij">(rd)  cq = QuantizeLinear(c, t, z)
  cd = DequantizeLinear(cq, t, z)  [neg] n = Neg(cd)  y = QuantizeLinear(n, t, z)
}"""


def test_nodes_of_the_cpu_read_and_write_floats() -> None:
    asked = []

    def fallback(node: ir.Node, inputs: Sequence[npt.NDArray[Any] | None]) -> list[npt.NDArray[Any]]:
        asked.append((node.name, [None if i is None else (i.dtype, i.tolist()) for i in inputs]))
        assert inputs[0] is not None
        return [inputs[0] + np.float32(0.25)]

    feeds = {"x": np.array([[1.25, -1, 3, 100]], np.float32)}
    found = run_reference(
        model(CPU_MIDDLE), feeds, SHIFT, on_npu=lambda node: node.op_type != "Einsum", fallback=fallback
    )
    assert asked == [("cumsum", [(np.float32, [[1.0, 0.0, 3.0, 63.5]])])]
    assert found["y"].tolist() == [[-5, -1, -13, -127]]


def test_a_requantization_of_the_cpu_is_rounded_half_to_even() -> None:
    text = """g (int8[4] x) => (int8[4] y)
    <float s = {0.5}, int8 z = {0}, float t = {1.0}> { d = DequantizeLinear(x, s, z)  [again] y = QuantizeLinear(d, t, z) }"""
    feeds, up = {"x": np.array([1, 3, -1, -3], np.int8)}, Arithmetic(requantize="shift", rounding="half_up")
    for on_npu, wanted in ((True, [1, 2, 0, -1]), (False, [0, 2, 0, -2])):
        found = run_reference(
            model(text), feeds, up, on_npu=lambda node, on_npu=on_npu: on_npu, fallback=lambda n, i: []
        )  # type: ignore[misc]
        assert found["y"].tolist() == wanted


def test_nan_is_stored_as_the_smallest_integer() -> None:
    text = "g (float[3] x) => (int8[3] y) <float s = {0.5}, int8 z = {3}> { y = QuantizeLinear(x, s, z) }"
    feeds = {"x": np.array([np.nan, np.inf, -np.inf], np.float32)}
    found = run_reference(model(text), feeds, SHIFT, on_npu=lambda n: True, fallback=lambda n, i: [])
    assert found["y"].tolist() == [-128, 127, -128]


def test_bodies_are_computed_by_the_fallback_with_what_they_read_from_outside() -> None:
    text = """g (float[2] x, bool c) => (float[2] y)
    <float s = {0.5}, int8 z = {0}, float[2] w = {1, 2}> {
      q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)
      [if] y = If<then_branch: graph = t () => (float[2] a) { a = Add(d, w) }, else_branch: graph = e () => (float[2] b) { b = Sub(w, d) }>(c)
    }"""
    built = model(text)
    (node,) = [n for n in built.graph if n.op_type == "If"]
    assert [v.name for v in captured_values(node)] == ["d", "w"]
    feeds = {"x": np.array([0.6, 1.6], np.float32), "c": np.array(True)}
    found = run_reference(
        built,
        feeds,
        SHIFT,
        on_npu=lambda n: False,
        fallback=lambda n, inputs: [inputs[1] + inputs[2]],  # type: ignore[operator]
    )
    assert found["y"].tolist() == [1.5, 3.5]


def refused(text: str, arithmetic: Arithmetic = SHIFT) -> None:
    """The reference refuses the model of ``text``, everything on the NPU."""
    built = model(text)
    feeds = {
        v.name or "": np.zeros([int(d) for d in v.shape or ()], v.dtype.numpy()) for v in built.graph.inputs if v.dtype
    }
    with refusal(UnsupportedError):
        run_reference(built, feeds, arithmetic, on_npu=lambda node: True, fallback=lambda node, inputs: [])


PAIR = "<float s = {0.5}, int8 z = {0}, float odd = {0.3}, float[2] w = {1, 2}, float[4,2] m = {1,2,3,4,5,6,7,8}>"


def test_what_is_no_integer_is_refused_by_name() -> None:
    refused(f"g (float[4] x) => (float[4] y) {PAIR} {{ [relu] y = Relu(x) }}")
    refused(
        f"g (float[4] x) => (float[4] y) {PAIR} {{ q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) [relu] y = Relu(d) }}",
    )
    refused(
        f"g (float[4] x) => (int8[2] y) {PAIR} {{ q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) [mm] p = MatMul(d, m) y = QuantizeLinear(p, s, z) }}",
    )


def test_what_the_arithmetic_has_no_multiplier_for_is_refused() -> None:
    text = f"g (float[4] x) => (int8[4] y) {PAIR} {{ q = QuantizeLinear(x, odd, z) d = DequantizeLinear(q, odd, z) p = Mul(d, d) [store] y = QuantizeLinear(p, s, z) }}"
    refused(text)


def test_a_bias_beyond_32_bits_is_refused() -> None:
    text = """g (float[1,1] x) => (int8[1,1] y) <float s = {0.5}, int8 z = {0}, int8[1,1] w = {1}, float[1] b = {1e9}> {
      q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear(w, s, z) [fc] p = Gemm(d, v, b) y = QuantizeLinear(p, s, z) }"""
    refused(text)


def test_a_missing_feed_is_said() -> None:
    built = model(f"g (float[4] x) => (int8[4] y) {PAIR} {{ y = QuantizeLinear(x, s, z) }}")
    with refusal(ModelError):
        run_reference(built, {}, SHIFT, on_npu=lambda n: True, fallback=lambda n, i: [])


def test_a_run_leaves_the_model_as_it_was() -> None:
    unit = convolution(np.random.default_rng(3))
    built = unit.model()
    before = ir.to_proto(built).SerializeToString()
    run_reference(built, unit.feeds, SHIFT, on_npu=lambda n: True, fallback=lambda n, i: [])
    assert ir.to_proto(built).SerializeToString() == before

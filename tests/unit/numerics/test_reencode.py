"""Other encodings for the same range: numbers worked out by hand, and what holds for every integer of a type."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.errors import ModelError
from qdq_passes.numerics.encoding import Encoding, integer_range
from qdq_passes.numerics.granularity import PER_TENSOR
from qdq_passes.numerics.quantize import dequantize
from qdq_passes.numerics.reencode import (
    Rule,
    change_type,
    clipped,
    cover,
    cover_values,
    is_centered,
    one_scale,
    real_range,
    requantized,
    rounded_to,
)
from qdq_passes.qdq.look.value_ranges import proven_range

from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal

INT4, INT8, UINT8 = ir.DataType.INT4, ir.DataType.INT8, ir.DataType.UINT8
INT16, UINT16, INT32, FLOAT8 = ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.INT32, ir.DataType.FLOAT8E4M3FN


def per_axis(dtype: ir.DataType, scale: tuple[float, ...], zero_point: tuple[int, ...], axis: int = 0) -> Encoding:
    return Encoding(dtype=dtype, scale=scale, zero_point=zero_point, shape=(len(scale),), axis=axis)


@pytest.mark.parametrize(
    ("old", "dtype", "scale", "zero_point"),
    [
        (Encoding.per_tensor(INT8, 0.5, -3), INT16, 0.5 / 256, -768),
        (Encoding.per_tensor(UINT8, 0.5, 128), UINT16, 0.5 / 256, 32768),
        (Encoding.per_tensor(INT8, 0.5, -3), UINT8, 0.5, 125),
        (Encoding.per_tensor(UINT8, 0.5, 0), INT8, 0.5, -128),
        (Encoding.per_tensor(INT8, 0.5, -3), UINT16, 0.5 / 256, 125 * 256),
        (Encoding.per_tensor(UINT16, 0.5, 2560), INT8, 128.0, -118),
        (Encoding.per_tensor(INT16, 0.3, 0), INT8, 0.3 * 256, 0),
        (Encoding.per_tensor(INT8, 0.3, 0), INT4, 0.3 * 16, 0),
        (Encoding.per_tensor(INT4, 0.3, -8), INT8, 0.3 / 16, -128),
        # a power of two stays one, 1000/256 = 3.9 is rounded; -32768 + 128 over 256 is -127.5, half to even -128
        (Encoding.per_tensor(INT16, 0.5, 1000), INT8, 128.0, 4),
        (Encoding.per_tensor(INT16, 0.5, -32640), INT8, 128.0, -128),
        # the zero point 65535/256 = 255.996 does not round beyond the type
        (Encoding.per_tensor(UINT16, 0.5, 65535), UINT8, 128.0, 255),
        # [-33768, 31767]·0.01 in 255 steps of 65535·0.01/255 = 2.57; round(-128 + 337.68/2.57) = round(3.39)
        (Encoding.per_tensor(INT16, 0.01, 1000), INT8, float(np.float32(0.01 * 257)), 3),
        (Encoding.per_tensor(INT8, 1.0, 0), FLOAT8, 0.5, 0),  # 128/448 = 0.286, a power of two as 1.0 is
        (Encoding.per_tensor(FLOAT8, 0.3, 0), INT8, float(np.float32(0.3 * 448 / 127)), 0),
    ],
)
def test_change_type(old: Encoding, dtype: ir.DataType, scale: float, zero_point: int) -> None:
    new = change_type(old, dtype)
    assert new.dtype == dtype
    assert new.scale[0] == pytest.approx(scale, rel=2**-23)  # one rounding to float32
    assert new.zero_point == (zero_point,)


@pytest.mark.parametrize("old", [INT4, INT8, UINT8, ir.DataType.UINT4])
@pytest.mark.parametrize("dtype", [INT8, UINT8, INT16, UINT16])
@pytest.mark.parametrize("scale", [0.3, 0.25, 1e-3])
def test_a_wider_grid_holds_the_old_one(old: ir.DataType, dtype: ir.DataType, scale: float) -> None:
    """Every integer of the old type, at every zero point of a few, stands for the same float32 in the new one, and comes back."""
    qmin, qmax = integer_range(old, symmetric=False)
    for zero_point in (qmin, 0 if qmin else 7, qmax):
        encoding = rounded_to(Encoding.per_tensor(old, scale, zero_point), np.float32)
        integers = np.arange(qmin, qmax + 1).astype(old.numpy())
        new = change_type(encoding, dtype)
        moved = requantized(integers, encoding, new)
        assert np.array_equal(dequantize(moved, new), dequantize(integers, encoding))
        assert change_type(new, old) == encoding
        assert np.array_equal(requantized(moved, new, encoding), integers)


@pytest.mark.parametrize("dtype", [INT8, UINT8, INT16, INT4])
@pytest.mark.parametrize("ends", [(-1.0, 3.0), (0.0, 1e-3), (-5.0, -1.0), (2.0, 2.0), (-7.0, 0.1)])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("power_of_two", [True, False])
def test_a_range_is_covered(dtype: ir.DataType, ends: tuple[float, float], symmetric: bool, power_of_two: bool) -> None:
    """To within the half step by which the zero point is rounded, and one rounding of the scale to float32; 0 is on the grid."""
    found = cover(*ends, rule=Rule(dtype=dtype, symmetric=symmetric, power_of_two=power_of_two), like=PER_TENSOR)
    step = found.scale[0]
    low, high = real_range(found)
    slack = (0.0 if symmetric else step / 2) + 2.0**-23 * max(abs(e) for e in ends)
    assert low <= min(ends[0], 0) + slack
    assert high >= max(ends[1], 0) - slack
    assert found.position is not None or not power_of_two
    assert is_centered(found) or not symmetric


def test_ranges_element_by_element() -> None:
    """Channels [-2, 1] and [0, 0.5]: symmetric 2/127 and 0.5/127; asymmetric 3/255 with round(-128 + 170) and 0.5/255 with -128."""
    like = per_axis(INT8, (1.0, 1.0), (0, 0))
    found = cover([-2, 0], [1, 0.5], rule=Rule(dtype=INT8, symmetric=True, power_of_two=False), like=like)
    assert found.scale == (float(np.float32(2 / 127)), float(np.float32(0.5 / 127)))
    assert (found.zero_point, found.axis, found.shape) == ((0, 0), 0, (2,))
    found = cover([-2, 0], [1, 0.5], rule=Rule(dtype=INT8, symmetric=False, power_of_two=False), like=like)
    assert found.scale == (float(np.float32(3 / 255)), float(np.float32(0.5 / 255)))
    assert found.zero_point == (42, -128)


def test_an_empty_range_takes_the_scale_it_is_given() -> None:
    rule = Rule(dtype=INT8, symmetric=True, power_of_two=False, empty=0.3)
    assert cover([0, -1], [0, 1], rule=rule, like=per_axis(INT8, (1.0, 1.0), (0, 0))).scale == (
        float(np.float32(0.3)),
        float(np.float32(1 / 127)),
    )
    assert cover_values(np.zeros((0, 3), np.float32), None, rule).scale == (float(np.float32(0.3)),)


def test_a_range_that_is_not_finite() -> None:
    with refusal(ModelError):
        cover(-1, math.inf, rule=Rule(dtype=INT8, symmetric=True, power_of_two=False), like=PER_TENSOR)
    with refusal(ModelError):
        change_type(Encoding.per_tensor(ir.DataType.BFLOAT16, 1.0), INT8)
    assert change_type(Encoding.per_tensor(INT8, 0.5, 3), ir.DataType.FLOAT16).scale == (1.0,)


def test_values_per_axis() -> None:
    """[2, 3, 2] along axis 1, from the end too: largest magnitudes 4, 0, 1."""
    values = np.array([[[1, -4], [0, 0], [0.5, 1]], [[2, 3], [0, 0], [-1, 0]]], np.float32)
    rule = Rule(dtype=INT8, symmetric=True, power_of_two=True, empty=8.0)
    for axis in (1, -2):
        found = cover_values(values, axis, rule)
        assert found.scale == (2.0**-4, 8.0, 2.0**-6)
        assert (found.axis, found.shape) == (axis, (3,))


def test_one_scale() -> None:
    assert one_scale(per_axis(INT8, (0.5, 0.75), (3, 3))) == Encoding.per_tensor(INT8, 0.75, 3)
    blocked = Encoding(
        dtype=INT4, scale=(0.5, 2.0), zero_point=(0, 0), shape=(2, 1), axis=0, block_size=2
    )  # [4, 1] in two blocks
    assert one_scale(blocked) == Encoding.per_tensor(INT4, 2.0, 0)
    mixed = one_scale(per_axis(INT8, (0.1, 0.1), (0, -128)))  # [-12.8, 25.5] in 255 steps
    assert mixed == Encoding.per_tensor(INT8, float(np.float32(38.3 / 255)), -43)
    assert one_scale(mixed) is mixed


def test_scales_are_rounded_to_the_float_type() -> None:
    encoding = per_axis(INT8, (0.1, 2.0**-25, 1e6), (0, 0, 0))
    assert rounded_to(encoding, np.float16).scale == (0.0999755859375, 0.0, math.inf)
    assert rounded_to(encoding, np.float32).scale == (float(np.float32(0.1)), 2.0**-25, 1e6)


def test_what_does_not_fit_is_clipped_and_counted() -> None:
    """At scale 1 and zero point 0, uint8 holds 0 to 255; half a step beyond still rounds back."""
    new = Encoding.per_tensor(UINT8, 1.0, 0)
    integers = np.array([-128, -1, 0, 127], np.int8)
    assert requantized(integers, Encoding.per_tensor(INT8, 1.0, 0), new).tolist() == [0, 0, 0, 127]
    assert clipped(np.array([-128.0, -0.5, 0, 255.5, 255.6]), new) == 2
    per_channel = per_axis(INT8, (1.0, 0.5), (0, 0))
    assert clipped(np.array([[127.0, 200], [63.5, 64]]), per_channel) == 2


def test_requantizing_rounds_what_the_model_computes() -> None:
    """(q − z)·s in float32, then half to even: 5·0.5 = 2.5 → 2, 7·0.5 = 3.5 → 4."""
    old, new = Encoding.per_tensor(INT8, 0.5, 1), Encoding.per_tensor(INT8, 1.0, 0)
    assert requantized(np.array([6, 8, -4], np.int8), old, new).tolist() == [2, 4, -2]


RANGES = {
    "y = Relu(x)": (0, math.inf),
    "y = Softmax(x)": (0, 1),
    "y = Tanh(x)": (-1, 1),
    "y = Exp(x)": (0, math.inf),
    "y = Neg(x)": (-math.inf, math.inf),
    "t = Sigmoid(x) y = Relu(t)": (0, 1),
    "t = Tanh(x) y = Clip(t, m)": (0.25, 1),
    "y = Clip(x, m)": (0.25, math.inf),
    "y = Clip(x, , m)": (-math.inf, 0.25),
    "t = Abs(x) u = Tanh(x) y = Concat<axis: int = 0>(t, u)": (-1, math.inf),
    "t = Sigmoid(x) y = Reshape(t, s)": (0, 1),
    "t = Clip(x, m) y = ReduceMean<keepdims: int = 0>(t)": (0, math.inf),
    "t = Sigmoid(x) i = QuantizeLinear(t, m, z) y = DequantizeLinear(i, m, z)": (0, 1),
    "i = QuantizeLinear(x, m, z) y = DequantizeLinear(i, m, z)": (-0.75, 63),
    "y = DequantizeLinear(w, m, z)": (-0.25, 1),
    "t = Relu(x) y, u = Split<num_outputs: int = 2, axis: int = 0>(t)": (0, math.inf),
    "t = Relu(x) u, y = Split<num_outputs: int = 2, axis: int = 0>(t)": (0, math.inf),
    "t = Relu(x) u, y = TopK(t, k)": (-math.inf, math.inf),
}


@pytest.mark.parametrize("nodes", RANGES)
def test_proven_ranges(nodes: str) -> None:
    """What reaches 0 (Reshape copies, a mean may count zeros of the padding) keeps 0; a pair keeps its own range, and what is stored is
    known."""
    graph = model(
        f"g (float[4] x) => (float[N] y) <float m = {{0.25}}, uint8 z = {{3}}, uint8[2] w = {{7, 2}}, int64[1] s = {{4}}, int64[1] k = {{2}}> {{ {nodes} }}"
    )
    assert proven_range(next(v for node in graph.graph for v in node.outputs if v.name == "y")) == RANGES[nodes]


def test_proven_ranges_end_somewhere() -> None:
    chain = " ".join(f"v{i + 1} = Identity(v{i})" for i in range(600))
    graph = model(f"g (float[4] v0) => (float[4] v600) {{ {chain} }}")
    assert proven_range(graph.graph.outputs[0]) == (-math.inf, math.inf)
    assert proven_range(graph.graph.inputs[0]) == proven_range(None) == (-math.inf, math.inf)

"""Encodings: formats, ranges by hand, and how scales lie over a tensor."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.numerics import pow2
from qdq_passes.numerics.encoding import (
    Encoding,
    encoding_of_range,
    encoding_of_weight,
    integer_format,
    integer_range,
    nested,
    parse_dtype,
)
from qdq_passes.numerics.granularity import PER_TENSOR, Granularity
from qdq_passes.numerics.quantize import dequantize, quantize

from qdqtool.runtime.session import open_session
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal

INT8, UINT8, INT16, INT4 = ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.INT4


@pytest.mark.parametrize(
    ("dtype", "full", "symmetric"),
    [
        ("int8", (-128, 127), (-127, 127)),
        ("uint8", (0, 255), (0, 255)),
        ("int16", (-32768, 32767), (-32767, 32767)),
        ("uint16", (0, 65535), (0, 65535)),
        ("int4", (-8, 7), (-7, 7)),
        ("uint4", (0, 15), (0, 15)),
        ("int2", (-2, 1), (-1, 1)),
        ("int32", (-(2**31), 2**31 - 1), (-(2**31) + 1, 2**31 - 1)),
    ],
)
def test_integer_ranges(dtype: str, full: tuple[int, int], symmetric: tuple[int, int]) -> None:
    assert integer_range(parse_dtype(dtype), symmetric=False) == full
    assert integer_range(parse_dtype(dtype.upper()), symmetric=True) == symmetric


def test_types() -> None:
    assert integer_format(INT4) == (True, 4)
    for name in ("float", "bfloat16", "bool", "float8e4m3fn", "string"):
        with refusal(UsageError):
            integer_format(ir.DataType[name.upper()])
    with refusal(UsageError):
        parse_dtype("int9")


@pytest.mark.parametrize(
    ("low", "high", "dtype", "symmetric", "power_of_two", "scale", "zero_point"),
    [
        (-1, 0.5, INT8, True, False, float(np.float32(1 / 127)), 0),
        (-1, 0.5, INT8, True, True, 2.0**-6, 0),
        (-127, 127, INT8, True, True, 1.0, 0),
        (-128, 0, INT8, True, True, 2.0, 0),
        (0, 255, UINT8, False, False, 1.0, 0),
        (-255, 0, UINT8, False, False, 1.0, 255),
        (-51, 204, UINT8, False, False, 1.0, 51),
        (-51, 204, INT8, False, False, 1.0, -77),
        (10, 255, UINT8, False, False, 1.0, 0),
        (-255, -10, INT8, False, False, 1.0, 127),
        (-1, 1, UINT8, True, False, float(np.float32(1 / 127)), 128),
        (-1, 127, UINT8, True, True, 1.0, 128),
        (0, 0, INT8, True, True, 1.0, 0),
        (0, 0, UINT8, True, False, 1.0, 128),
        (0, 0, UINT8, False, False, 1.0, 0),
        (0, 0, INT8, False, False, 1.0, 0),
        (-7, 7, INT4, True, True, 1.0, 0),
    ],
)
def test_ranges_by_hand(
    low: float, high: float, dtype: ir.DataType, symmetric: bool, power_of_two: bool, scale: float, zero_point: int
) -> None:
    encoding = encoding_of_range(low, high, dtype=dtype, symmetric=symmetric, power_of_two=power_of_two)
    assert (encoding.scale, encoding.zero_point) == ((scale,), (zero_point,))
    assert encoding.granularity == PER_TENSOR


def test_huge_ranges_keep_a_finite_scale() -> None:
    limit = float(np.finfo(np.float32).max)
    for symmetric in (True, False):
        encoding = encoding_of_range(-limit, limit, dtype=INT8, symmetric=symmetric, power_of_two=False)
        assert math.isfinite(encoding.scale[0])
        assert np.isfinite(encoding.scale_array()).all()


def test_power_of_two_is_symmetric() -> None:
    with refusal(UsageError):
        encoding_of_range(0, 1, dtype=INT8, symmetric=False, power_of_two=True)


def test_counts_must_agree() -> None:
    with refusal(ModelError):
        Encoding(dtype=INT8, scale=(1.0, 2.0), zero_point=(0,), shape=(2,), axis=0)
    with pytest.raises(ModelError):
        Encoding(dtype=INT8, scale=(1.0, 2.0), zero_point=(0, 0))


def test_what_an_encoding_says() -> None:
    tensor = Encoding.per_tensor(INT8, 0.25, 3)
    rows = Encoding(dtype=INT16, scale=(0.5, 0.3), zero_point=(0, 0), shape=(2,), axis=-1)
    blocks = Encoding(dtype=INT4, scale=(1.0,) * 4, zero_point=(0,) * 4, shape=(2, 2), axis=1, block_size=32)
    assert [e.granularity.kind for e in (tensor, rows, blocks)] == ["per-tensor", "per-axis", "blocked"]
    assert [e.is_symmetric for e in (tensor, rows, blocks)] == [False, True, True]
    assert [e.position for e in (tensor, rows, blocks)] == [(2,), None, (0, 0, 0, 0)]
    assert tensor.scale_array().shape == ()
    assert rows.scale_array().dtype == np.dtype(np.float32)
    assert rows.zero_point_array().dtype == np.dtype(np.int16)
    assert blocks.zero_point_array().shape == (2, 2)


def test_json_by_hand() -> None:
    blocks = Encoding(dtype=INT4, scale=(1.0, 0.5), zero_point=(0, 1), shape=(2, 1), axis=0, block_size=2)
    assert blocks.to_json() == {
        "axis": 0, "block_size": 2, "dtype": "int4", "scale": [[1.0], [0.5]], "zero_point": [[0], [1]],
    }  # fmt: skip
    assert Encoding.per_tensor(UINT8, 0.5, 7).to_json()["scale"] == 0.5
    assert Encoding.from_json({"dtype": "int8", "scale": 2, "zero_point": 0}) == Encoding.per_tensor(INT8, 2.0)
    assert nested((1, 2, 3, 4), (2, 2)) == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("granularity", "shape", "scales"),
    [
        (PER_TENSOR, (2, 3), ()),
        (Granularity(0), (2, 3), (2,)),
        (Granularity(-1), (2, 3), (3,)),
        (Granularity(1, 2), (2, 5), (2, 3)),
        (Granularity(0, 4), (8, 3), (2, 3)),
        (Granularity(0, 16), (8, 3), (1, 3)),
    ],
)
def test_shapes_of_scales(granularity: Granularity, shape: tuple[int, ...], scales: tuple[int, ...]) -> None:
    assert granularity.scale_shape(shape) == scales
    numbers = np.arange(math.prod(scales), dtype=np.float32).reshape(scales)
    assert np.broadcast_to(granularity.expand(numbers, shape), shape).shape == shape


def test_scales_laid_out() -> None:
    blocks = Granularity(1, 2).expand(np.array([[1, 2], [3, 4]]), (2, 3))
    assert blocks.tolist() == [[1, 1, 2], [3, 3, 4]]
    assert Granularity(1).expand(np.array([1, 2, 3]), (2, 3)).tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("granularity", "count"),
    [
        pytest.param(PER_TENSOR, (2,), id="per tensor"),
        pytest.param(Granularity(2), (2,), id="axis 2"),
        pytest.param(Granularity(-3), (2,), id="axis -3"),
        pytest.param(Granularity(0), (3,), id="per axis"),
        pytest.param(Granularity(1, 2), (2, 3), id="blocks"),
    ],
)
def test_scales_that_do_not_fit(granularity: Granularity, count: tuple[int, ...]) -> None:
    with refusal(ModelError):
        granularity.expand(np.ones(count), (2, 3))


def test_quantize_by_hand() -> None:
    encoding = Encoding.per_tensor(INT8, 0.5, 1)
    x = np.array([0.25, 0.75, -0.25, 1000, -1000], np.float32)
    assert quantize(x, encoding).tolist() == [1, 3, 1, 127, -128]
    assert quantize(x, encoding, symmetric_range=True).tolist() == [1, 3, 1, 127, -127]
    assert dequantize(np.array([1, 3, -127], np.int8), encoding).tolist() == [0.0, 1.0, -64.0]
    assert dequantize(np.array([1, 3], np.int8), encoding, np.float16).dtype == np.float16
    assert quantize(x, Encoding.per_tensor(ir.DataType.FLOAT8E4M3FN, 1.0)).dtype == ml_dtypes.float8_e4m3fn


@pytest.mark.parametrize("dtype", [INT8, UINT8, ir.DataType.INT16, ir.DataType.UINT16])
@pytest.mark.parametrize("count", [1, 33])
def test_what_is_no_number_becomes_what_onnxruntime_makes_of_it(dtype: ir.DataType, count: int) -> None:
    """The smallest integer, silently; and infinities the ends of the type."""
    name = dtype.name.lower()
    text = f"g (float[N] x) => ({name}[N] q) <float s = {{0.5}}, {name} z = {{3}}> {{ q = QuantizeLinear(x, s, z) }}"
    x = np.array([np.nan, np.inf, -np.inf, 1.0] * count, np.float32)
    found = quantize(x, Encoding.per_tensor(dtype, 0.5, 3))
    np.testing.assert_array_equal(found, open_session(model(text)).run({"x": x})["q"])
    assert found[0] == np.iinfo(dtype.numpy()).min
    narrow = quantize(np.array(np.nan, np.float32), Encoding.per_tensor(INT8, 0.5), symmetric_range=True)
    assert narrow.tolist() == -127


def test_int32_biases_dequantize_as_float32_does() -> None:
    """2^24 + 1 is no float32: the product is rounded once, from the rounded integer, as onnxruntime rounds it."""
    encoding = Encoding.per_tensor(ir.DataType.INT32, 0.5)
    found = dequantize(np.array([2**24 + 1, -(2**31)], np.int32), encoding)
    assert found.tolist() == [2.0**23, -(2.0**30)]


def test_positions() -> None:
    assert [pow2.position_of(s) for s in (1.0, 0.5, 2.0, 2.0**-126, 0.3, 0.0, -1.0, math.inf, math.nan)] == [
        0, 1, -1, 126, None, None, None, None, None,
    ]  # fmt: skip
    assert [pow2.round_scale(s) for s in (0.3, 0.5, 0.5000001, 1e-45, 1e300)] == [0.5, 0.5, 1.0, 2.0**-126, 2.0**127]
    assert [pow2.round_scale(s, nearest=True) for s in (0.35, 0.36, 1.4, 1.5)] == [0.25, 0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    ("dtype", "symmetric", "low", "high", "scale", "zero_point"),
    [
        (INT8, True, -32, 16, 0.5, 0),
        (INT8, False, -64, 64, 1.0, 0),
        (UINT8, False, -27, 100, 1.0, 27),
        (UINT8, True, -63, 63, 1.0, 64),
        (INT16, True, -16384, 0, 1.0, 0),
    ],
)
def test_one_bit_less(
    dtype: ir.DataType, symmetric: bool, low: float, high: float, scale: float, zero_point: int
) -> None:
    """int8 within ±64, uint8 within 0 … 127."""
    encoding = encoding_of_range(low, high, dtype=dtype, symmetric=symmetric, power_of_two=False, reduced=True)
    assert (encoding.scale, encoding.zero_point) == ((scale,), (zero_point,))


def test_narrow_ranges_are_widened() -> None:
    def scale(low: float, high: float, symmetric: bool) -> float:
        return encoding_of_range(low, high, dtype=UINT8, symmetric=symmetric, power_of_two=False, min_range=255).scale[
            0
        ]

    assert [scale(0, 0, False), scale(-1, 0, False), scale(-1, 509, False)] == [1.0, 1.0, 2.0]
    assert scale(0, 0, True) == float(np.float32(255 / 127))


@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.parametrize("high", [2.0**-30, 2.0**-14, 1.0, 2.0**10])
def test_a_floor_widens_what_is_not_0_by_a_bit_at_most(high: float, power_of_two: bool) -> None:
    def scale(**floors: float) -> float:
        return encoding_of_range(-high, high, dtype=INT8, symmetric=True, power_of_two=power_of_two, **floors).scale[0]

    own = scale()
    assert scale(floor=0.25, widening=2.0) == max(own, min(0.25, 2 * own))
    assert own <= scale(min_range=1.0, widening=2.0) <= 2 * own
    empty = encoding_of_range(
        0, 0, dtype=INT8, symmetric=True, power_of_two=power_of_two, min_range=127.0, widening=2.0
    )
    assert empty.scale == (1.0,)


def test_the_zero_point_is_that_of_the_exact_scale() -> None:
    """[-1, 101]: scale 0.4 is no float32, but 255/102 = 2.5 is a tie, which rounds to the even 2."""
    encoding = encoding_of_range(-1, 101, dtype=UINT8, symmetric=False, power_of_two=False)
    assert (encoding.scale, encoding.zero_point) == ((float(np.float32(0.4)),), (2,))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_scales_along_an_axis(dtype: type[np.generic]) -> None:
    """weight [2, 3], axis 1 → scales [3]; zeros get scale 1; -1 is the last axis."""
    weight = np.array([[127, 0, -1], [-254, 0, 0.5]], np.float32).astype(dtype)
    for axis in (1, -1):
        found = encoding_of_weight(weight, axis, dtype=INT8, symmetric=True, power_of_two=False)
        assert (found.axis, found.shape, found.zero_point) == (1, (3,), (0, 0, 0))
        assert found.scale == (2.0, 1.0, float(np.float32(1 / 127)))
    rows = encoding_of_weight(weight, 0, dtype=UINT8, symmetric=False, power_of_two=False)
    assert (rows.zero_point, rows.scale[0]) == ((2, 254), float(np.float32(128 / 255)))
    whole = encoding_of_weight(weight, None, dtype=INT8, symmetric=True, power_of_two=True)
    assert (whole.granularity, whole.scale) == (PER_TENSOR, (2.0,))


def test_weights_without_elements() -> None:
    empty = np.zeros((0, 2), np.float32)
    assert encoding_of_weight(empty, 1, dtype=INT8, symmetric=True, power_of_two=False).scale == (1.0, 1.0)
    assert encoding_of_weight(empty, 0, dtype=INT8, symmetric=True, power_of_two=False).shape == (0,)
    with refusal(UsageError):
        encoding_of_weight(empty, 2, dtype=INT8, symmetric=True, power_of_two=False)


def test_int32_keeps_all_bits() -> None:
    """16777217 = 2^24 + 1 is no float32 quotient; stored biases are divided in float64, and clip to int32."""
    encoding = Encoding.per_tensor(ir.DataType.INT32, 2.0**-24)
    x = np.array([1.0, 1.0 + 2.0**-23, 1e9, -1e9, 2.5 * 2.0**-24, 3.5 * 2.0**-24], np.float32)
    assert quantize(x, encoding).tolist() == [2**24, 2**24 + 2, 2**31 - 1, -(2**31), 2, 4]
    third = Encoding.per_tensor(ir.DataType.INT32, float(np.float32(1 / 3e6)))
    expected = round(float(np.float32(100)) / float(np.float32(1 / 3e6)))
    assert quantize(np.array([100], np.float32), third).tolist() == [expected]
    assert expected != int(np.float32(100) / np.float32(1 / 3e6)), "float32 would round to a multiple of 32"

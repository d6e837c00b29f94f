"""Levels of noise and prices, against sums worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from qdq_passes.numerics.agreement import CEILING_DB, FLOOR_DB, agreement
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.price import price_in_words, sqnr_of_data, sqnr_of_range, sqnr_of_rescaled
from qdq_passes.numerics.quantize import dequantize, quantize

INT8 = Encoding.per_tensor(ir.DataType.INT8, 1.0)


def test_rounding_and_clipping() -> None:
    """1.5 → 2 (half to even), 2.5 → 2, 130 → 127, −130 → −128: noise 0.25 + 0.25 + 9 + 4."""
    values = np.array([1.5, 2.5, 130, -130], np.float32)
    signal = 2.25 + 6.25 + 2 * 16900
    assert sqnr_of_data(values, INT8) == pytest.approx(10 * math.log10(signal / 13.5), abs=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize(
    "encoding", [INT8, Encoding.per_tensor(ir.DataType.UINT8, 0.25, 128), Encoding.per_tensor(ir.DataType.INT4, 2.0)]
)
def test_it_is_what_quantize_and_dequantize_give(dtype: type, encoding: Encoding) -> None:
    values: npt.NDArray[Any] = np.random.default_rng(3).normal(0, 20, (7, 5)).astype(dtype)
    wide = values.astype(np.float32) if dtype is np.float16 else values
    rounded = dequantize(quantize(wide, encoding), encoding, wide.dtype)
    # float32 differences are exact to 2^-24 of the values, 10 decibels a decade
    assert sqnr_of_data(values, encoding) == pytest.approx(agreement(wide, rounded).sqnr_db, abs=1e-6)


def test_ends_of_the_scale() -> None:
    assert sqnr_of_data(np.array([1.0, 2.0], np.float32), INT8) is None
    assert sqnr_of_data(np.zeros(3, np.float32), INT8) is None
    assert sqnr_of_data(np.zeros(0, np.float32), INT8) is None
    assert sqnr_of_data(np.full(3, 0.25, np.float32), INT8) == 0.0, "all of it is lost"
    assert sqnr_of_data(np.array([np.inf, np.nan, 1.5], np.float32), INT8) == pytest.approx(
        10 * math.log10(9), abs=1e-12
    )
    assert sqnr_of_rescaled(1.0) is None
    assert sqnr_of_rescaled(2.0) == 0.0
    assert sqnr_of_rescaled(0.0) == 0.0
    assert sqnr_of_rescaled(2.0**60) == FLOOR_DB
    assert sqnr_of_rescaled(math.nextafter(1.0, 2.0)) == CEILING_DB


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (0.0, 3.0), (-0.01, 50.0), (1e-30, 3e-30)])
@pytest.mark.parametrize("steps", [16, 100, 254])
def test_an_even_spread_has_the_noise_of_the_textbook(low: float, high: float, steps: int) -> None:
    """s²/12 where nothing is clipped; 4001 points stand for the range, 0.2 dB apart from it at the most at 16 of them a step."""
    scale = (high - low) / steps
    fits = Encoding.per_tensor(ir.DataType.INT16, scale)
    power = (high**2 + high * low + low**2) / 3
    assert sqnr_of_range(low, high, fits) == pytest.approx(10 * math.log10(power / (scale**2 / 12)), abs=0.3)


@pytest.mark.parametrize(
    ("before", "after", "is_estimate", "text"),
    [
        (30.04, 24.0, False, "price 6.0 dB"), (30.04, 24.0, True, "price ~6.0 dB"), (24.0, 30.0, False, "price -6.0 dB"),
        (24.0, 24.01, False, "price 0.0 dB"), (None, None, True, "price 0.0 dB"),
        (None, 24.0, False, "exact before, 24.0 dB now"), (24.0, None, False, "24.0 dB before, exact now"),
        (None, -0.0, False, "exact before, 0.0 dB now"), (-0.01, None, False, "0.0 dB before, exact now"),
    ],
)  # fmt: skip
def test_words(before: float | None, after: float | None, is_estimate: bool, text: str) -> None:
    assert price_in_words(before, after, is_estimate=is_estimate) == text

"""Functions of 16 bits: each result computed anew, one integer at a time."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.npu.formulas.functions import Function, function_of, table
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding

WIDE = Encoding(dtype=ir.DataType.INT16, scale=(0.00030517578125,), zero_point=(300,))
UNSIGNED = Encoding(dtype=ir.DataType.UINT16, scale=(2.0**-15,), zero_point=(11,))
BYTES = Encoding(dtype=ir.DataType.INT8, scale=(0.0078125,), zero_point=(-3,))
#: Some of the 65536 integers, ends and knots among them.
SOME = [
    -32768,
    -32767,
    -32513,
    -32512,
    -32511,
    -1,
    0,
    1,
    255,
    256,
    257,
    299,
    300,
    301,
    12345,
    32511,
    32512,
    32766,
    32767,
]


def function(op_type: str) -> Function:
    """A function without parameters."""
    found = function_of(ir.node(op_type, [ir.val("x")]), lambda value: None)
    assert isinstance(found, Function)
    return found


def stored(real: float, target: Encoding) -> int:
    """``real``, a float32, in ``target``: halves up."""
    quotient = float(np.float32(real) / np.float32(target.scale[0]))
    low, high = (int(v) for v in (np.iinfo(target.dtype.numpy()).min, np.iinfo(target.dtype.numpy()).max))
    return min(max(math.floor(quotient + 0.5) + int(target.zero_point[0]), low), high)


def exact(q: int, target: Encoding) -> int:
    """tanh of the number that ``q`` of WIDE stands for."""
    return stored(np.float32(math.tanh(np.float32(q - 300) * np.float32(WIDE.scale[0]))), target)


@pytest.mark.parametrize("target", [UNSIGNED, BYTES])
def test_float32_is_that_of_every_integer(target: Encoding) -> None:
    found = table(function("Tanh"), WIDE, target, Arithmetic())
    assert found.shape == (65536,)
    assert [int(found[q + 32768]) for q in SOME] == [exact(q, target) for q in SOME]


@pytest.mark.parametrize("target", [UNSIGNED, BYTES])
def test_float16_rounds_both_sides(target: Encoding) -> None:
    found = table(function("Tanh"), WIDE, target, Arithmetic(wide_functions="float16"))
    for q in SOME:
        number = np.float16(np.float32(q - 300) * np.float32(WIDE.scale[0]))
        assert found[q + 32768] == stored(float(np.float16(np.float32(math.tanh(float(number))))), target), q


@pytest.mark.parametrize("segments", [1, 16, 256, 32768])
def test_interpolated_is_a_line_between_exact_results(segments: int) -> None:
    arithmetic = Arithmetic(wide_functions="interpolated", segments=segments, rounding="half_up")
    found = table(function("Tanh"), WIDE, UNSIGNED, arithmetic)
    step = 65536 // segments
    for q in SOME:
        first = -32768 + (q + 32768) // step * step
        left, right = exact(first, UNSIGNED), exact(first + step, UNSIGNED)
        line = left + math.floor(Fraction((right - left) * (q - first), step) + Fraction(1, 2))
        assert found[q + 32768] == line, q


def test_a_segment_for_every_integer_is_float32() -> None:
    whole = Arithmetic(wide_functions="interpolated", segments=65536)
    np.testing.assert_array_equal(
        table(function("Tanh"), WIDE, BYTES, whole), table(function("Tanh"), WIDE, BYTES, Arithmetic())
    )


@pytest.mark.parametrize("kind", ["float16", "interpolated"])
def test_bytes_and_requantization_stay_float32(kind: str) -> None:
    arithmetic = Arithmetic(wide_functions=kind)  # type: ignore[arg-type]
    for made, source in ((function("Tanh"), BYTES), (None, WIDE)):
        np.testing.assert_array_equal(
            table(made, source, UNSIGNED, arithmetic), table(made, source, UNSIGNED, Arithmetic())
        )


def test_what_is_no_number_is_the_smallest() -> None:
    found = table(function("Log"), WIDE, BYTES, Arithmetic(wide_functions="float16"))
    assert found[: 32768 + 300].tolist() == [-128] * (32768 + 300)

"""The unsigned grid: files of the AIMET line give −zero_point as ``offset``, counted as if every type were unsigned.

int8 and uint8 are one grid with two ways to count: q_u = q_s + 2^(b−1), zp_u = zp_s + 2^(b−1); the real values are the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import onnx_ir as ir
from qdq_passes.errors import ModelError, UnsupportedError
from qdq_passes.numerics.encoding import Encoding, integer_format, integer_range, is_integer_type


def integer_type(bits: int, *, signed: bool) -> ir.DataType:
    """The ONNX type of ``bits`` bits.

    Raises:
        UnsupportedError: there is none.
    """
    found = ir.DataType.__members__.get(f"{'' if signed else 'U'}INT{bits}")
    if found is None:
        raise UnsupportedError(f"ONNX has no {bits}-bit integers", hint="it has 2, 4, 8, 16 and 32 bits")
    return found


def offset_of(dtype: ir.DataType, zero_point: float) -> int | float:
    """−zero_point on the unsigned grid: int8 and 0 → −128, uint8 and 128 → −128."""
    signed, bits = integer_format(dtype)
    return -(zero_point + 2 ** (bits - 1)) if signed else -zero_point


def zero_point_of(dtype: ir.DataType, offset: float) -> int | float:
    """The zero point for an offset on the unsigned grid; inverse of `offset_of`.

    Raises:
        ModelError: ``dtype`` does not hold it.
    """
    signed, bits = integer_format(dtype)
    zero_point = -offset - 2 ** (bits - 1) if signed else -offset
    low, high = integer_range(dtype, symmetric=False)
    if not low <= zero_point <= high:
        raise ModelError(f"offset {offset:g} gives zero point {zero_point:g}, which {dtype.name.lower()} does not hold")
    return int(zero_point) if float(zero_point).is_integer() else zero_point


def zero_points_of(dtype: ir.DataType, offsets: Iterable[float]) -> tuple[int | float, ...]:
    """`zero_point_of` each."""
    return tuple(zero_point_of(dtype, offset) for offset in offsets)


def as_type(encoding: Encoding, dtype: ir.DataType) -> Encoding:
    """The same grid counted as ``dtype``, of as many bits; ``encoding`` itself when it has that type.

    Raises:
        ModelError: another number of bits, or a zero point that ``dtype`` does not hold.
    """
    if encoding.dtype == dtype:
        return encoding
    if not is_integer_type(encoding.dtype) or integer_format(encoding.dtype)[1] != integer_format(dtype)[1]:
        raise ModelError(f"{encoding.dtype.name.lower()} is no {dtype.name.lower()} counted differently")
    zeros = zero_points_of(dtype, (offset_of(encoding.dtype, z) for z in encoding.zero_point))
    return dataclasses.replace(encoding, dtype=dtype, zero_point=zeros)


def is_whole(encoding: Encoding) -> bool:
    """Whether every zero point is an integer; AIMET knows shifts by half a step, ONNX does not."""
    return all(float(z).is_integer() for z in encoding.zero_point)

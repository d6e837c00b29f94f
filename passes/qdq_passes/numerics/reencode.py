"""Another encoding for a tensor that has one: other widths, signs, symmetry, granularity.

A tensor is stored as x ≈ (q − z)·s with qmin ≤ q ≤ qmax, so its real range is [(qmin − z)·s, (qmax − z)·s].

wider by d bits      s' = s/2^d, z' = z·2^d: (q·2^d − z')·s' = (q − z)·s, every point of the old grid is one of the new
narrower by d bits   the inverse, s' = s·2^d, z' = z/2^d, where 2^d divides z; else s' = (high − low)/(qmax' − qmin') of the real
                     range and z' = round(qmin' − low/s'); a power of two stays s·2^d and z/2^d is rounded half to even, which
                     moves the range by half a step at most
other sign           z' = z ± 2^(b−1), q' = q ± 2^(b−1), s' = s: the same grid under other integers
symmetric            s' = max(|low|, |high|)/qmax', z' = 0, or the middle 2^(b−1) of an unsigned type, from where qmax' counts
asymmetric           s' = (high − low)/(qmax' − qmin'), z' = round(qmin' − low/s') of a range that includes 0
one scale            s' = max s where zero points are equal, else the scale of the range that covers all

Signs change before widths do, so int8 z → uint16 is z' = (z + 128)·256. Scales that are powers of two stay such, rounded up
where they must grow. Types of float numbers (float8, float4) have no zero point; s' = max(|low|, |high|)/their largest number."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError
from qdq_passes.numerics import pow2
from qdq_passes.numerics.arrays import Reals
from qdq_passes.numerics.encoding import (
    FLOAT32_MAX,
    FLOAT32_TINY,
    Encoding,
    integer_format,
    integer_range,
    is_integer_type,
)
from qdq_passes.numerics.granularity import PER_TENSOR, Granularity
from qdq_passes.numerics.quantize import dequantize, quantize

#: Floats that store a tensor as it is: their scale is 1.
PLAIN_FLOATS = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def middle_of(dtype: ir.DataType) -> int:
    """The zero point of a symmetric encoding: 0, or 2^(bits−1) of an unsigned integer type."""
    if not is_integer_type(dtype):
        return 0
    signed, bits = integer_format(dtype)
    return 0 if signed else 1 << (bits - 1)


def is_centered(encoding: Encoding) -> bool:
    """Whether every zero point is the middle of the type, which makes the encoding symmetric."""
    return all(z == middle_of(encoding.dtype) for z in encoding.zero_point)


def real_range(encoding: Encoding) -> tuple[Reals, Reals]:
    """(lowest, highest) real number per scale, in the shape of the scales."""
    low, high = _storage_range(encoding.dtype)
    scale, zero = np.array(encoding.scale, np.float64), np.array(encoding.zero_point, np.float64)
    return ((low - zero) * scale).reshape(encoding.shape), ((high - zero) * scale).reshape(encoding.shape)


def change_type(encoding: Encoding, dtype: ir.DataType) -> Encoding:
    """``encoding`` in the storage type ``dtype``: exact where the width grows or stays, see the module.

    Raises:
        ModelError: from float16 or bfloat16, which have no range to go by.
    """
    if dtype == encoding.dtype:
        return encoding
    if dtype in PLAIN_FLOATS:
        ones = (1.0,) * len(encoding.scale)
        return dataclasses.replace(encoding, dtype=dtype, scale=ones, zero_point=(0,) * len(ones))
    if encoding.dtype in PLAIN_FLOATS:
        raise ModelError(
            f"{encoding.dtype.name.lower()} has no range to choose a scale by", hint="give one with set-qdq{scale=…}"
        )
    if not (is_integer_type(dtype) and is_integer_type(encoding.dtype)):
        return cover(*real_range(encoding), rule=rule_of(encoding, dtype, symmetric=True), like=encoding)
    (signed, bits), (to_signed, to_bits) = integer_format(encoding.dtype), integer_format(dtype)
    shift = 0 if signed == to_signed else (1 if signed else -1) << (bits - 1)
    scale, zero = np.array(encoding.scale, np.float64), np.array(encoding.zero_point, np.int64) + shift
    if to_bits < bits:
        return _narrowed(encoding, dtype, scale, zero, bits - to_bits)
    return _with(encoding, dtype, np.ldexp(scale, bits - to_bits), zero << (to_bits - bits))


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How a scale is chosen for a range.

    Args:
        dtype: storage type.
        symmetric: the zero point is the middle of the type.
        power_of_two: scales are rounded up to powers of two.
        smallest: smallest scale, what the tensor's float type can hold.
        empty: scale of a range without any extent, which every scale covers.
    """

    dtype: ir.DataType
    symmetric: bool
    power_of_two: bool
    smallest: float = FLOAT32_TINY
    empty: float = 1.0


def rule_of(encoding: Encoding, dtype: ir.DataType, *, symmetric: bool, smallest: float = FLOAT32_TINY) -> Rule:
    """The rule that keeps what it can of ``encoding``: powers of two, and the largest scale for ranges that are empty."""
    return Rule(
        dtype=dtype,
        symmetric=symmetric,
        power_of_two=encoding.position is not None,
        smallest=smallest,
        empty=max(encoding.scale, default=1.0),
    )


def cover(low: npt.ArrayLike, high: npt.ArrayLike, *, rule: Rule, like: Granularity | Encoding) -> Encoding:
    """The encoding whose real range covers [low, high] and 0, element by element.

    Args:
        low: lowest values, of the shape of the scales.
        high: highest values, likewise.
        rule: how scales are chosen.
        like: gives axis and block size, which fit the shape of ``low``.

    Raises:
        ModelError: a range that is not finite.
    """
    lows, highs = np.minimum(np.asarray(low, np.float64), 0), np.maximum(np.asarray(high, np.float64), 0)
    if not (np.isfinite(lows).all() and np.isfinite(highs).all()):
        raise ModelError("its range is not finite", hint="look for NaN or Inf in the data")
    lows, highs = np.maximum(lows, -FLOAT32_MAX / 2), np.minimum(highs, FLOAT32_MAX / 2)
    (qmin, qmax), middle = _storage_range(rule.dtype), float(middle_of(rule.dtype))
    exact = np.maximum(-lows, highs) / (qmax - middle) if rule.symmetric else (highs - lows) / (qmax - qmin)
    exact = np.where(exact == 0, rule.empty, exact)
    rounded = _power_above(exact) if rule.power_of_two else exact.astype(np.float32).astype(np.float64)
    scale = np.maximum(rounded, rule.smallest)
    steps = scale if rule.power_of_two else np.maximum(exact, rule.smallest)
    zero = np.full(scale.shape, middle) if rule.symmetric else np.clip(np.rint(qmin - lows / steps), qmin, qmax)
    return Encoding(
        dtype=rule.dtype,
        scale=tuple(scale.ravel().tolist()),
        zero_point=tuple(int(z) for z in zero.ravel()),
        shape=scale.shape,
        axis=like.axis,
        block_size=like.block_size,
    )


def cover_values(values: npt.NDArray[Any], axis: int | None, rule: Rule) -> Encoding:
    """The encoding that covers the data of a constant: [D0 … Dn] with axis=k → scales [Dk], per-tensor for None.

    Raises:
        ModelError: the data is not finite.
    """
    others = None if axis is None else tuple(i for i in range(values.ndim) if i != axis % values.ndim)
    low, high = (f(values.astype(np.float64), axis=others, initial=0.0) for f in (np.min, np.max))
    return cover(low, high, rule=rule, like=Granularity(axis))


def one_scale(encoding: Encoding) -> Encoding:
    """``encoding`` per-tensor: the largest scale where the zero points are equal, else the scale that covers all ranges."""
    if encoding.axis is None or not encoding.scale:
        return encoding
    first = encoding.zero_point[0]
    if all(z == first for z in encoding.zero_point):
        largest = (max(encoding.scale),)
        return dataclasses.replace(encoding, scale=largest, zero_point=(first,), shape=(), axis=None, block_size=0)
    low, high = real_range(encoding)
    rule = rule_of(encoding, encoding.dtype, symmetric=False)
    return cover(low.min(), high.max(), rule=rule, like=PER_TENSOR)


def rounded_to(encoding: Encoding, float_type: npt.DTypeLike) -> Encoding:
    """``encoding`` with its scales as ``float_type`` stores them; one that it does not hold becomes 0 or infinite."""
    with np.errstate(over="ignore", under="ignore"):
        scale = np.array(encoding.scale, np.float64).astype(np.float32).astype(float_type).astype(np.float64)
    return dataclasses.replace(encoding, scale=tuple(scale.ravel().tolist()))


def rounded_up_to(encoding: Encoding, float_type: npt.DTypeLike) -> Encoding:
    """``encoding`` with each scale as the next one that ``float_type`` holds, so that nothing it covers is lost.

    A float16 scale is off by up to 2^-11, which is 16 steps at the end of a 16-bit range, and more below 2^-14.
    """
    exact = np.array(encoding.scale, np.float64)
    with np.errstate(over="ignore", under="ignore"):
        near = exact.astype(np.float32).astype(float_type)
        up = np.where(near.astype(np.float64) < exact, np.nextafter(near, near.dtype.type(np.inf)), near)
    return dataclasses.replace(encoding, scale=tuple(up.astype(np.float64).ravel().tolist()))


def requantized(integers: npt.NDArray[Any], old: Encoding, new: Encoding) -> npt.NDArray[Any]:
    """``integers`` (any shape) of the encoding ``old`` as those of ``new`` that stand for the same values, as near as it has any.

    Where the new grid holds the old one (equal scales, or finer by a power of two) the integers are computed without rounding.
    """
    growth = _growth(old, new)
    if growth is None:
        return quantize(dequantize(integers, old), new)
    old_zero, new_zero = (
        e.granularity.expand(np.array(e.zero_point, np.int64).reshape(e.shape), integers.shape) for e in (old, new)
    )
    factor = old.granularity.expand(np.left_shift(1, growth).reshape(old.shape), integers.shape)
    exact = (integers.astype(np.int64) - old_zero) * factor + new_zero
    stored: npt.NDArray[Any] = np.clip(exact, *integer_range(new.dtype, symmetric=False)).astype(new.dtype.numpy())
    return stored


def clipped(values: npt.NDArray[Any], encoding: Encoding) -> int:
    """How many of ``values`` lie more than half a step outside of what ``encoding`` can store."""
    low, high = real_range(encoding)
    half = np.array(encoding.scale, np.float64).reshape(encoding.shape) / 2
    wide, spread = values.astype(np.float64), encoding.granularity.expand
    outside = (wide < spread(low - half, values.shape)) | (wide > spread(high + half, values.shape))
    return int(outside.sum()) if is_integer_type(encoding.dtype) else 0


def _growth(old: Encoding, new: Encoding) -> npt.NDArray[np.int64] | None:
    """k per scale with new scale = old scale / 2^k, 0 ≤ k ≤ 24, where both store integers on equal granularity; else None."""
    if not (is_integer_type(old.dtype) and is_integer_type(new.dtype)) or old.shape != new.shape:
        return None
    if (old.axis, old.block_size) != (new.axis, new.block_size):
        return None
    mantissa, exponent = np.frexp(np.array(old.scale, np.float64) / np.array(new.scale, np.float64))
    growth = exponent.astype(np.int64) - 1
    return growth if bool(np.all((mantissa == 0.5) & (growth >= 0) & (growth <= 24))) else None


def _narrowed(encoding: Encoding, dtype: ir.DataType, scale: Reals, zero: npt.NDArray[np.int64], by: int) -> Encoding:
    """Narrower by ``by`` bits; ``zero`` has the sign of ``dtype`` already."""
    qmin, qmax = integer_range(dtype, symmetric=False)
    coarse = np.ldexp(scale, by)
    exact_zero = np.clip(np.rint(np.ldexp(zero.astype(np.float64), -by)), qmin, qmax).astype(np.int64)
    is_exact = (exact_zero << by) == zero
    if encoding.position is not None or is_exact.all():
        return _with(encoding, dtype, coarse, exact_zero)
    low, high = (ends.ravel() for ends in real_range(encoding))
    covering = (high - low) / (qmax - qmin)
    rounded = np.clip(np.rint(qmin - low / covering), qmin, qmax).astype(np.int64)
    covering = covering.astype(np.float32).astype(np.float64)
    return _with(encoding, dtype, np.where(is_exact, coarse, covering), np.where(is_exact, exact_zero, rounded))


def _with(encoding: Encoding, dtype: ir.DataType, scale: Reals, zero: npt.NDArray[np.int64]) -> Encoding:
    return dataclasses.replace(
        encoding,
        dtype=dtype,
        scale=tuple(scale.ravel().tolist()),
        zero_point=tuple(int(z) for z in np.broadcast_to(zero, scale.shape).ravel()),
    )


def _storage_range(dtype: ir.DataType) -> tuple[float, float]:
    """Smallest and largest number that ``dtype`` stores."""
    if is_integer_type(dtype):
        low, high = integer_range(dtype, symmetric=False)
        return float(low), float(high)
    largest = float(ml_dtypes.finfo(dtype.numpy()).max)  # type: ignore[no-untyped-call]
    return -largest, largest


def _power_above(scale: Reals) -> Reals:
    flat = [pow2.round_scale(float(s)) for s in scale.ravel()]
    return np.array(flat, np.float64).reshape(scale.shape)

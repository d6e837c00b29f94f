"""Encoding = (dtype, scale, zero_point, granularity): how real numbers are stored as integers, x ≈ (q − zero_point)·scale."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.numerics import pow2
from qdq_passes.numerics.arrays import Numbers, compact
from qdq_passes.numerics.granularity import Granularity

#: Smallest positive number of a float type whose range is below float32's; scales are stored in the tensor's own type.
SMALLEST_SCALE = {ir.DataType.FLOAT16: 2.0**-24}

#: Smallest scale an encoding may have: float32's smallest normal number.
FLOAT32_TINY = float(np.finfo(np.float32).tiny)
FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """How a tensor is stored.

    Args:
        dtype: storage type (int8, uint8, int16, int4, float8e4m3fn…).
        scale: real step per integer, flat in C order; one entry per-tensor. Few are a tuple, many `Numbers`.
        zero_point: the integer that stands for 0.0, as many as scales.
        shape: shape of the scales: ``()`` per-tensor, ``(C,)`` per-axis, the tensor's rank when blocked.
        axis: axis the scales run along, None per-tensor.
        block_size: elements of ``axis`` per scale, 0 unless blocked.
    """

    dtype: ir.DataType
    scale: Sequence[float]
    zero_point: Sequence[int | float]
    shape: tuple[int, ...] = ()
    axis: int | None = None
    block_size: int = 0

    def __post_init__(self) -> None:
        count = math.prod(self.shape)
        if len(self.scale) != count or len(self.zero_point) != count:
            raise ModelError(
                f"{len(self.scale)} scales and {len(self.zero_point)} zero points for scale shape {list(self.shape)}"
            )
        object.__setattr__(self, "scale", compact(self.scale))
        object.__setattr__(self, "zero_point", compact(self.zero_point))

    @classmethod
    def per_tensor(cls, dtype: ir.DataType, scale: float, zero_point: int = 0) -> Encoding:
        """An encoding with one scale for the whole tensor."""
        return cls(dtype=dtype, scale=(float(scale),), zero_point=(zero_point,))

    @property
    def granularity(self) -> Granularity:
        """Per-tensor, per-axis or blocked."""
        return Granularity(self.axis, self.block_size)

    @property
    def is_symmetric(self) -> bool:
        """Whether every zero point is 0."""
        zeros = self.zero_point
        return zeros.is_all(0) if isinstance(zeros, Numbers) else all(z == 0 for z in zeros)

    @property
    def position(self) -> tuple[int, ...] | None:
        """p per scale where scale = 2^-p, or None unless every scale is a power of two."""
        if isinstance(self.scale, Numbers):
            mantissas, exponents = np.frexp(self.scale.array.astype(np.float64))
            return tuple((1 - exponents).tolist()) if (mantissas == 0.5).all() else None
        positions = tuple(pow2.position_of(s) for s in self.scale)
        return None if any(p is None for p in positions) else tuple(p for p in positions if p is not None)

    def scale_array(self) -> npt.NDArray[np.float32]:
        """Scales as float32, in ``shape``."""
        return np.array(self.scale, np.float32).reshape(self.shape)

    def zero_point_array(self) -> npt.NDArray[np.generic]:
        """Zero points in the storage type, in ``shape``."""
        return np.array(self.zero_point).astype(self.dtype.numpy()).reshape(self.shape)

    def to_json(self) -> dict[str, Any]:
        """Canonical JSON form; inverse of `from_json`."""
        return {
            "axis": self.axis,
            "block_size": self.block_size,
            "dtype": self.dtype.name.lower(),
            "scale": nested(self.scale, self.shape),
            "zero_point": nested(self.zero_point, self.shape),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Encoding:
        """Read the form written by `to_json`.

        Raises:
            KeyError, TypeError, ValueError: it is another; UsageError: no such type.
        """
        scale = np.array(data["scale"], np.float64)
        zero_point = np.array(data["zero_point"])
        if zero_point.dtype.kind not in "iuf" or not isinstance(data.get("axis"), int | None):
            raise ValueError("an axis or a zero point is no number")
        return cls(
            dtype=parse_dtype(str(data["dtype"])),
            scale=tuple(scale.ravel().tolist()),
            zero_point=tuple(zero_point.ravel().tolist()),
            shape=scale.shape,
            axis=data.get("axis"),
            block_size=int(data.get("block_size") or 0),
        )


def nested(flat: Sequence[Any], shape: tuple[int, ...]) -> Any:
    """``flat`` (C order) as nested lists of ``shape``; a bare number for shape ()."""
    return np.array(flat, object).reshape(shape).tolist()


def parse_dtype(name: str) -> ir.DataType:
    """``"int8"`` → `ir.DataType.INT8`, in any case.

    Raises:
        UsageError: no such type.
    """
    try:
        return ir.DataType[name.upper()]
    except KeyError:
        raise UsageError(f"unknown data type {name!r}", hint="for example int8, uint8, int16, int4") from None


def integer_range(dtype: ir.DataType, *, symmetric: bool) -> tuple[int, int]:
    """(qmin, qmax) of an integer type; ``symmetric`` leaves out the most negative value, so int8 gives (-127, 127)."""
    signed, bits = integer_format(dtype)
    if not signed:
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)) + int(symmetric), 2 ** (bits - 1) - 1


def range_from_zero(encoding: Encoding, *, symmetric: bool = False) -> tuple[int, int]:
    """`integer_range` of a per-tensor integer ``encoding``, counted from its zero point: (-128, 127) of uint8 around 128."""
    qmin, qmax = integer_range(encoding.dtype, symmetric=symmetric)
    zero_point = int(encoding.zero_point[0])
    return qmin - zero_point, qmax - zero_point


def is_integer_type(dtype: ir.DataType) -> bool:
    """Whether ``dtype`` stores integers (int2 … uint64), not floats."""
    return dtype.name.lower().removeprefix("u").removeprefix("int").isdigit()


@functools.cache
def integer_format(dtype: ir.DataType) -> tuple[bool, int]:
    """(signed, bits) of an integer storage type.

    Raises:
        UsageError: ``dtype`` is not an integer type.
    """
    name = dtype.name.lower()
    signed, digits = not name.startswith("u"), name.removeprefix("u").removeprefix("int")
    if not digits.isdigit():
        raise UsageError(f"{name} is not an integer type", hint="for example int8, uint8, int16, int4")
    return signed, int(digits)


def is_wide(dtype: ir.DataType) -> bool:
    """Whether integers of ``dtype`` have more than 8 bits: sums of them need a wider accumulator, functions a longer table."""
    return integer_format(dtype)[1] > 8


def reduced_range(dtype: ir.DataType) -> tuple[int, int]:
    """(qmin, qmax) of an integer type with one bit less: int8 gives (-64, 64), uint8 (0, 127).

    The bounds of onnxruntime's ``reduce_range``: the sum of two products of a uint8 and such an int8 fits into 16 bits
    (2·255·64 = 32640), which is how CPUs without VNNI add.
    """
    signed, bits = integer_format(dtype)
    return (-(2 ** (bits - 2)), 2 ** (bits - 2)) if signed else (0, 2 ** (bits - 1) - 1)


def encoding_of_range(
    low: float,
    high: float,
    *,
    dtype: ir.DataType,
    symmetric: bool,
    power_of_two: bool,
    smallest: float = FLOAT32_TINY,
    reduced: bool = False,
    min_range: float = 0.0,
    nearest: bool = False,
    empty: float = 1.0,
    floor: float = 0.0,
    widening: float = math.inf,
) -> Encoding:
    """The encoding that covers the observed range [low, high].

    Symmetric: scale = max(|low|, |high|) / qmax, zero point 0 (the middle, 2^(bits-1), for unsigned types). Asymmetric:
    the range is widened to include 0, scale = (high − low) / (qmax − qmin), zero point = round(qmin − low / scale).
    Power of two: the scale is rounded up, so that the range never overflows. An empty range gets scale ``empty``;
    no scale is below ``smallest``, what the tensor's float type can hold. ``reduced`` uses one bit less, see
    `reduced_range`. A range that includes 0 and is still narrower than ``min_range`` is widened upwards, a scale below ``floor``
    is raised to it; of what is not 0 throughout both at most ``widening`` times.
    ``nearest`` rounds to the nearest power of two in log2 instead, as the Vitis line does (clips by up to √2): that of
    2·max(|low|, |high|) / (qmax − qmin) as a float32, or scale 1 where this is no normal number.

    Raises:
        ModelError: the range is not finite, or low > high.
        UsageError: power-of-two scales with asymmetric ranges.
    """
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise ModelError(f"range [{low}, {high}] is not a finite interval", hint="look for NaN or Inf in the data")
    if power_of_two and not symmetric:
        raise UsageError("power-of-two scales are symmetric", hint="drop asymmetric or the power-of-two rule")
    low, high = max(min(low, 0.0), -FLOAT32_MAX / 2), min(max(high, 0.0), FLOAT32_MAX / 2)
    own = high - low
    most = math.inf if own == 0 else widening * max(-low, high) if symmetric else low + widening * own
    high = max(high, min(low + min_range, most))
    qmin, qmax = reduced_range(dtype) if reduced else integer_range(dtype, symmetric=symmetric)
    signed = integer_format(dtype)[0]
    middle = 0 if signed or not symmetric else (qmax + 1) // 2
    exact = max(-low, high) / (qmax - middle) if symmetric else (high - low) / (qmax - qmin)
    if exact == 0:
        return Encoding.per_tensor(dtype, empty, middle if symmetric else 0 if signed else qmin)
    if power_of_two:
        wanted = float(np.float32(2 * max(-low, high) / (qmax - qmin))) if nearest else exact
        scale = 1.0 if nearest and wanted < FLOAT32_TINY else pow2.round_scale(wanted, nearest=nearest)
    else:
        scale = float(np.float32(exact))
    left = math.inf if own == 0 else widening if high - low == own else 1.0
    scale = max(scale, smallest, min(floor, scale * left))
    step = max(exact, smallest, min(floor, exact * left))
    zero_point = middle if symmetric else int(np.clip(round(qmin - low / step), qmin, qmax))
    return Encoding.per_tensor(dtype, scale, zero_point)


def encoding_of_weight(
    array: npt.NDArray[Any],
    axis: int | None,
    *,
    dtype: ir.DataType,
    symmetric: bool,
    power_of_two: bool,
    smallest: float = FLOAT32_TINY,
    reduced: bool = False,
    min_range: float = 0.0,
    nearest: bool = False,
    empty: float = 1.0,
    floor: float = 0.0,
    widening: float = math.inf,
) -> Encoding:
    """The encoding that covers the data of a weight: per-tensor, or with a scale per index of ``axis``.

    Args:
        array: the float weight, any shape; finite.
        axis: axis of the scales, negative counts from the end; weight [D0 … Dn], axis=k → scales [Dk]; None per-tensor.
        dtype: see `encoding_of_range`, like all that follow.
        symmetric: zero point 0.
        power_of_two: every scale is rounded up to a power of two.
        smallest: smallest scale.
        reduced: one bit less.
        min_range: narrowest range.
        nearest: powers of two are rounded to the nearest.
        empty: scale of what is 0 everywhere.
        floor: smallest scale of a policy.
        widening: most times that it and ``min_range`` widen what is not 0.

    Raises:
        ModelError: the data is not finite.
        UsageError: the tensor has no such axis, or power-of-two scales with asymmetric ranges.
    """
    rank, zero = array.ndim, array.dtype.type(0)
    if axis is not None and not -rank <= axis < rank:
        raise UsageError(f"axis {axis} does not exist in shape {list(array.shape)}")
    others = None if axis is None else tuple(i for i in range(rank) if i != axis % rank)
    lows, highs = (np.ravel(f(array, axis=others, initial=zero)) for f in (np.min, np.max))
    found = [
        encoding_of_range(
            float(low), float(high), dtype=dtype, symmetric=symmetric, power_of_two=power_of_two, smallest=smallest,
            reduced=reduced, min_range=min_range, nearest=nearest, empty=empty,
            floor=floor, widening=widening,
        )
        for low, high in zip(lows, highs, strict=True)
    ]  # fmt: skip
    if axis is None:
        return found[0]
    return Encoding(
        dtype=dtype,
        scale=tuple(e.scale[0] for e in found),
        zero_point=tuple(e.zero_point[0] for e in found),
        shape=(len(found),),
        axis=axis % rank,
    )

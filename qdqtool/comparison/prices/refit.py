"""The encoding of the same form that fits values best: what a pair could lose less with."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError
from qdq_passes.numerics.encoding import Encoding, encoding_of_range, integer_format, integer_range, is_integer_type
from qdq_passes.numerics.quantize import dequantize, quantize

Values = npt.NDArray[np.float64]
#: Ranges that are tried: that of the values, and shares of it in steps of 2^(-1/4), down to 1/16.
SHARES = tuple(2.0 ** (-step / 4) for step in range(17))


@dataclass(frozen=True, kw_only=True)
class Refit:
    """An encoding, and the noise with it.

    Args:
        encoding: the best that was tried.
        noise: Σ(x − Q(x))² with it.
        before: the same with the pair's own.
    """

    encoding: Encoding
    noise: float
    before: float

    @property
    def gain(self) -> float:
        """Share of the noise that the best encoding is without, 0..1."""
        return max(0.0, 1 - self.noise / self.before) if self.before > 0 else 0.0


def refitted(
    values: Values, encoding: Encoding, *, dtype: ir.DataType | None = None, power_of_two: bool = False
) -> Refit | None:
    """The best encoding of ``values`` in the form of ``encoding``: symmetric where it is, of powers of two where it is.

    Args:
        values: of the tensor, any shape; for scales along an axis all of it.
        encoding: its own.
        dtype: another type for it.
        power_of_two: symmetric and of powers of two, whatever its own form.

    Returns:
        None of floats, of blocks and of no values.
    """
    wanted = encoding.dtype if dtype is None else dtype
    if not is_integer_type(encoding.dtype) or encoding.block_size or not values.size or not np.isfinite(values).all():
        return None
    before = noise_of(values, encoding)
    if len(encoding.scale) == 1:
        found = min(
            ((noise_of(values, one), one) for one in _tried(values, encoding, wanted, forced=power_of_two)),
            key=lambda pair: pair[0],
        )
        return Refit(encoding=found[1], noise=found[0], before=before)
    if encoding.axis is None:
        return None
    rows = np.moveaxis(values, encoding.axis, 0)
    ones = [_best(row, dataclasses.replace(encoding, scale=(1.0,), zero_point=encoding.zero_point[:1], axis=None, shape=()),
                  encoding, wanted, forced=power_of_two) for row in rows]  # fmt: skip
    best = dataclasses.replace(
        encoding,
        dtype=wanted,
        scale=tuple(one.scale[0] for one in ones),
        zero_point=tuple(one.zero_point[0] for one in ones),
    )
    return Refit(encoding=best, noise=noise_of(values, best), before=before)


def moved_back(values: Values, encoding: Encoding) -> Refit | None:
    """As `refitted`, with another zero point alone: the middle, the lowest, or that of the range of ``values``."""
    if len(encoding.scale) != 1 or not is_integer_type(encoding.dtype) or not values.size:
        return None
    low, high = integer_range(encoding.dtype, symmetric=False)
    at = round(low - min(float(values.min()), 0.0) / float(encoding.scale[0]))
    zeros = {0 if low < 0 else (high + 1) // 2, low, min(max(at, low), high)}
    tried = [dataclasses.replace(encoding, zero_point=(zero,)) for zero in sorted(zeros)]
    best = min(tried, key=lambda one: noise_of(values, one))
    return Refit(encoding=best, noise=noise_of(values, best), before=noise_of(values, encoding))


def per_channel(values: Values, encoding: Encoding, axis: int) -> Refit | None:
    """As `refitted`, with a scale along ``axis`` for an encoding that has one."""
    if len(encoding.scale) != 1 or not is_integer_type(encoding.dtype) or not values.size:
        return None
    ones = [_best(row, encoding, encoding, encoding.dtype) for row in np.moveaxis(values, axis, 0)]
    best = dataclasses.replace(
        encoding, scale=tuple(one.scale[0] for one in ones), zero_point=tuple(one.zero_point[0] for one in ones),
        axis=axis, shape=(len(ones),),
    )  # fmt: skip
    return Refit(encoding=best, noise=noise_of(values, best), before=noise_of(values, encoding))


def _best(row: Values, plain: Encoding, whole: Encoding, dtype: ir.DataType, *, forced: bool = False) -> Encoding:
    exact = whole.position is not None
    tried = [dataclasses.replace(one) for one in _tried(row, plain, dtype, power_of_two=exact, forced=forced)]
    return min(tried, key=lambda one: noise_of(row, one))


def _tried(
    values: Values,
    encoding: Encoding,
    dtype: ir.DataType,
    *,
    power_of_two: bool | None = None,
    forced: bool = False,
) -> Iterator[Encoding]:
    """Encodings of shares of the range of ``values``, the widest first; its own where that has the type."""
    low, high = float(values.min()), float(values.max())
    signed, _ = integer_format(encoding.dtype)
    middle = 0 if signed else (integer_range(encoding.dtype, symmetric=False)[1] + 1) // 2
    symmetric = forced or int(encoding.zero_point[0]) == middle
    exact = forced or ((encoding.position is not None if power_of_two is None else power_of_two) and symmetric)
    for share in SHARES:
        try:
            yield encoding_of_range(low * share, high * share, dtype=dtype, symmetric=symmetric, power_of_two=exact)
        except ModelError:
            return


def noise_of(values: Values, encoding: Encoding) -> float:
    """Σ(x − Q(x))² of ``values``."""
    with np.errstate(all="ignore"):
        stood = dequantize(quantize(values, encoding), encoding).astype(np.float64)
        return float(np.sum(np.square(stood - values)))

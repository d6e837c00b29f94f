"""What a change costs a tensor: its SQNR before and after the move of a scale, from its data or, without data, estimated.

SQNR = 10·log10(Σx² / Σ(x − Q(x))²)    dB, None when Q(x) is x

`fit_of` is how well an encoding fits the values of a tensor: what lies beyond its grid, and the noise of rounding to it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.numerics.agreement import CEILING_DB, FLOOR_DB, Accumulator
from qdq_passes.numerics.encoding import Encoding, integer_range, is_integer_type, range_from_zero
from qdq_passes.numerics.histogram import Histogram
from qdq_passes.numerics.quantize import dequantize, quantize
from qdq_passes.numerics.reencode import real_range

#: A level of noise: dB, or None where there is none.
Level = float | None

#: Values that stand for a range of which nothing else is known: some 16 for each step of 8 bits.
POINTS = 4001


def sqnr_of_data(values: npt.NDArray[Any], encoding: Encoding) -> Level:
    """SQNR in dB of ``values`` (any shape; what is not finite is left out) in the per-tensor integer ``encoding``."""
    low, high = range_from_zero(encoding)
    wide = values if values.dtype in (np.float32, np.float64) else values.astype(np.float32)
    scale = wide.dtype.type(encoding.scale[0])
    with np.errstate(over="ignore", invalid="ignore"):
        noise = np.clip(np.rint(wide / scale), low, high) * scale - wide
    return sqnr(_energy(wide), _energy(noise))


def sqnr_of_rescaled(factor: float) -> Level:
    """SQNR in dB of data multiplied by ``factor`` (its scale is, while its integers stay): the error is x·(factor − 1)."""
    return None if factor == 1 else _limited(-20 * math.log10(abs(factor - 1)))


def sqnr_of_range(low: float, high: float, encoding: Encoding) -> Level:
    """Estimated SQNR in dB of data that is spread evenly over [low, high], in the per-tensor integer ``encoding``."""
    return sqnr_of_data(np.linspace(low, high, POINTS), encoding)


def price_in_words(before: Level, after: Level, *, is_estimate: bool = False) -> str:
    """What a move costs: ``price 6.0 dB``, with ``~`` where it is an estimate; negative where the tensor gains."""
    if before is None and after is None:
        return "price 0.0 dB"
    if before is None or after is None:
        known = in_db(before if before is not None else after or 0.0)
        return f"{known} before, exact now" if after is None else f"exact before, {known} now"
    return f"price {'~' if is_estimate else ''}{in_db(before - after)}"


def in_db(level: Level) -> str:
    """``36.1 dB``, or ``exact``."""
    return "exact" if level is None else f"{round(level, 1) + 0.0:.1f} dB"  # + 0.0: no −0.0


def sqnr(signal: float, noise: float) -> Level:
    """SQNR in dB of the sums of squares Σx² and Σ(x − x')², within the ends of `agreement`."""
    if noise == 0:
        return None
    if signal == 0 or not math.isfinite(noise):
        return FLOOR_DB
    return _limited(10 * (math.log10(signal) - math.log10(noise))) if math.isfinite(signal) else CEILING_DB


def _energy(values: npt.NDArray[Any]) -> float:
    """Σx² in float64, without what is not finite."""
    total = float(np.sum(np.square(values, dtype=np.float64)))
    if math.isfinite(total):
        return total
    return float(np.sum(np.square(values[np.isfinite(values)], dtype=np.float64)))


def _limited(level: float) -> float:
    return min(max(level, FLOOR_DB), CEILING_DB)


#: Elements that are looked at together, so that temporaries stay small beside a large weight.
CHUNK = 1 << 18


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The figures of one tensor.

    Args:
        low: smallest value, in the tensor's unit.
        high: largest value.
        clipped: share of values more than half a step beyond the grid, 0..1.
        sqnr_db: signal to quantization noise ratio in dB; None when every value is on the grid.
    """

    low: float
    high: float
    clipped: float
    sqnr_db: float | None


def fit_of(array: npt.NDArray[Any], encoding: Encoding) -> Fit:
    """The fit of a float constant of any shape; an empty one is exact."""
    if encoding.axis is None and is_integer_type(encoding.dtype) and array.dtype == np.float32 and array.size:
        return _fit_of_plain(array.reshape(-1), encoding)
    total, beyond = Accumulator(), 0
    low, high = math.inf, -math.inf
    for part, of_part in _parts(array, encoding):
        with np.errstate(over="ignore"):  # the end of a grid that reaches to the largest float is infinite
            total.add(part, dequantize(quantize(part, of_part), of_part, part.dtype))
        lowest, highest = (of_part.granularity.expand(bound, part.shape) for bound in real_range(of_part))
        half = of_part.granularity.expand(of_part.scale_array().astype(np.float64), part.shape) / 2
        beyond += int(np.count_nonzero((part < lowest - half) | (part > highest + half)))
        low, high = min(low, float(part.min())), max(high, float(part.max()))
    if not array.size:
        return Fit(low=0.0, high=0.0, clipped=0.0, sqnr_db=None)
    return Fit(low=low, high=high, clipped=beyond / array.size, sqnr_db=total.result().sqnr_db)


def _fit_of_plain(flat: npt.NDArray[np.float32], encoding: Encoding) -> Fit:
    """The common case, a float32 weight with one scale, in as few passes over it as there can be."""
    qmin, qmax = (limit - int(encoding.zero_point[0]) for limit in integer_range(encoding.dtype, symmetric=False))
    scale = np.float32(encoding.scale[0])
    lowest, highest = (qmin - 0.5) * float(scale), (qmax + 0.5) * float(scale)
    low, high, beyond, signal, noise = math.inf, -math.inf, 0, 0.0, 0.0
    with np.errstate(over="ignore"):
        for start in range(0, flat.size, CHUNK):
            part = flat[start : start + CHUNK]
            least, most = float(part.min()), float(part.max())
            if least < lowest or most > highest:
                beyond += int(np.count_nonzero((part < lowest) | (part > highest)))
            error = np.divide(part, scale)
            np.rint(error, out=error)
            np.clip(error, qmin, qmax, out=error)
            np.multiply(error, scale, out=error)
            np.subtract(error, part, out=error)
            signal += float(np.sum(np.square(part, dtype=np.float64)))
            noise += float(np.sum(np.square(error, dtype=np.float64)))
            low, high = min(low, least), max(high, most)
    exact = None if noise == 0 else FLOOR_DB if signal == 0 or not math.isfinite(noise) else _db(signal, noise)
    return Fit(low=low, high=high, clipped=beyond / flat.size, sqnr_db=exact)


def _db(signal: float, noise: float) -> float:
    return min(max(10 * (math.log10(signal) - math.log10(noise)), FLOOR_DB), CEILING_DB)


def fit_of_histogram(histogram: Histogram, encoding: Encoding) -> Fit:
    """The fit of an activation with a per-tensor encoding; values are spread evenly within their bins."""
    sqnr = histogram.sqnr(encoding)
    return Fit(
        low=histogram.low,
        high=histogram.high,
        clipped=histogram.clipped(encoding),
        sqnr_db=sqnr if math.isfinite(sqnr) else None,
    )


def _parts(array: npt.NDArray[Any], encoding: Encoding) -> Iterator[tuple[npt.NDArray[Any], Encoding]]:
    """Pieces of ``array`` with the encoding of each: flat ones per-tensor, the whole where there are scales along an axis."""
    if encoding.axis is not None:
        if array.size:
            yield array, encoding
        return
    flat = array.reshape(-1)
    for start in range(0, flat.size, CHUNK):
        yield flat[start : start + CHUNK], encoding

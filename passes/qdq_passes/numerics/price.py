"""What a change costs a tensor: its SQNR before and after the move of a scale, from its data or, without data, estimated.

SQNR = 10·log10(Σx² / Σ(x − Q(x))²)    dB, None when Q(x) is x"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from qdq_passes.numerics.agreement import CEILING_DB, FLOOR_DB
from qdq_passes.numerics.encoding import Encoding, range_from_zero

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

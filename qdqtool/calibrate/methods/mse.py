"""``mse``: the range of the least squared error on a grid with any scale."""

from __future__ import annotations

from functools import partial

from qdq_passes.numerics.encoding import encoding_of_range

from qdqtool.calibrate.observer import HistogramObserver, Range, storage_type

#: Shares of the largest magnitude that are tried first: each 2^(1/4) below the one before, down to a thousandth.
COARSE = tuple(2.0 ** (-k / 4) for k in range(41))
#: Then so many even steps on either side of the best, as far as its neighbours; and so many again between two of these.
STEPS = 8
REACHES = (2**0.25 - 1, (2**0.25 - 1) / STEPS)


class Mse(HistogramObserver):
    """Of the ranges within what was seen, the one whose grid has the least Σ (x − x')² over the histogram.

    ``symmetric`` (int8): [−t, t] as far as values were seen; t is searched from coarse to fine, to 0.3 %. Otherwise (uint8 with
    any zero point): such a t first, then each end by itself, in turns. Of equal errors the wider range wins.
    """

    def __init__(self, *, bits: int = 8, symmetric: bool = True) -> None:
        super().__init__()
        self.symmetric, self.dtype = symmetric, storage_type(bits, symmetric=symmetric)

    def range(self) -> Range:
        """The best range."""
        observed = self.observed
        bottom, top = min(observed.low, 0.0), max(observed.high, 0.0)

        def error_within(t: float) -> float:
            return self._error(max(bottom, -t), min(top, t))

        t = min((observed.magnitude * share for share in COARSE), key=error_within)
        for reach in REACHES:
            t = min(_around(t, reach, observed.magnitude), key=error_within)
        low, high = max(bottom, -t), min(top, t)
        for reach in () if self.symmetric else REACHES:
            high = min(_around(high, reach, top), key=partial(self._error, low))
            low = -min(_around(-low, reach, -bottom), key=partial(self._error_below, high))
        return observed if (low, high) == (bottom, top) else Range(low, high)

    def _error(self, low: float, high: float) -> float:
        encoding = encoding_of_range(low, high, dtype=self.dtype, symmetric=self.symmetric, power_of_two=False)
        return self.seen.squared_error(encoding)

    def _error_below(self, high: float, depth: float) -> float:
        return self._error(-depth, high)


def _around(end: float, reach: float, limit: float) -> list[float]:
    """``end`` and what lies up to the share ``reach`` above and below it, no further than ``limit``; the largest first."""
    steps = (1 + reach * k / STEPS for k in range(STEPS, -STEPS - 1, -1))
    return sorted({min(end * step, limit) for step in steps}, reverse=True)

"""``percentile``: the range that holds all but a small share of the values."""

from __future__ import annotations

import numpy as np
from qdq_passes.errors import UsageError

from qdqtool.calibrate.observer import HistogramObserver, Range


class Percentile(HistogramObserver):
    """The narrowest range, in bins of the histogram, that leaves out at most (100 − ``percentile``) % of the values.

    ``symmetric``: [−t, t] with the percentile t of |x|, as far as values were seen. Otherwise half of the share is left out at
    either end. The default 99.999 is that of onnxruntime and of the Vitis line. A bound is the outer edge of its bin, so it lies
    within one bin (1/4096 of the larger magnitude) of the exact percentile and never clips more than it says.
    """

    def __init__(self, *, percentile: float = 99.999, symmetric: bool = True) -> None:
        super().__init__()
        if not 50 <= percentile <= 100:
            raise UsageError(f"percentile is 50 to 100, not {percentile}", hint="99.999 clips 1 of 100,000 values")
        self.percentile, self.symmetric = percentile, symmetric

    def range(self) -> Range:
        """The range that is left."""
        seen, observed = self.seen, self.observed
        width = 2.0**seen.exponent
        left_out = 1 - self.percentile / 100
        if self.symmetric:
            index = np.arange(seen.first, seen.first + seen.counts.size)
            order = np.maximum(index, -1 - index)  # bin i of |x|: bins i and −1 − i
            counts = np.bincount(order, weights=seen.counts).astype(np.int64)
            reach = (_last_needed(counts, left_out) + 1) * width
            return Range(max(observed.low, -reach), min(observed.high, reach))
        last = seen.first + _last_needed(seen.counts, left_out / 2)
        first = seen.first + seen.counts.size - 1 - _last_needed(seen.counts[::-1], left_out / 2)
        return Range(max(observed.low, first * width), min(observed.high, (last + 1) * width))


def _last_needed(counts: np.typing.NDArray[np.int64], left_out: float) -> int:
    """Index of the first bin behind which no more than the share ``left_out`` of all counts lies."""
    behind = counts.sum() - np.cumsum(counts)
    return int(np.flatnonzero(behind <= left_out * counts.sum())[0])

"""``entropy``: the clipped range whose quantized histogram diverges least from the histogram of all values."""

from __future__ import annotations

import math

import numpy as np

from qdqtool.calibrate.divergence import Counts, divergences
from qdqtool.calibrate.observer import HistogramObserver, Range, storage_type

#: Ranges are tried in steps of one part of so many.
STEPS = 256


class Entropy(HistogramObserver):
    """Of the ranges [−t, t], as far as values were seen, the one with the least KL divergence, see `divergence`.

    Tried is t from as many bins as the grid has points up to the largest magnitude, in steps of 1/`STEPS`; there are 2048 to 4096
    bins on the larger side, the grid of |x| 128 points (``symmetric``) or the grid of x 256. (With no more bins than points,
    a common default, only the whole range is left to try, and the method is min-max.) Values of exactly 0 count in no bin:
    every grid represents them. Where the grid has more points than there are bins (16 bits) the range is that of all values.
    """

    def __init__(self, *, bits: int = 8, symmetric: bool = True) -> None:
        super().__init__()
        storage_type(bits, symmetric=symmetric)
        self.symmetric = symmetric
        self.levels = 2 ** (bits - 1) if symmetric else 2**bits

    def range(self) -> Range:
        """The range of the least divergence, the widest of those."""
        observed, counts, first = self.observed, *self._bins()
        if self.symmetric:
            index = np.arange(first, first + counts.size)
            counts, first = np.bincount(np.maximum(index, -1 - index), weights=counts).astype(np.int64), 0
        last = first + counts.size
        reaches = _reaches(max(-first, last))
        starts, stops = np.maximum(-reaches, first), np.minimum(reaches, last)
        tried = np.flatnonzero(stops - starts >= self.levels)
        if not (tried.size and counts.any()):
            return observed
        found = divergences(counts, starts[tried] - first, stops[tried] - first, self.levels)[::-1]
        if not np.isfinite(found).any():
            return observed
        reach = float(reaches[tried][::-1][found.argmin()]) * 2.0 ** (self.seen.exponent + 1)
        return Range(max(observed.low, -reach), min(observed.high, reach))

    def _bins(self) -> tuple[Counts, int]:
        """Counts without the zeros, neighbours joined once, and the index of the first."""
        counts, first = self.seen.counts.copy(), self.seen.first
        if self.seen.zeros:
            counts[-first] -= self.seen.zeros
        counts = np.pad(counts, (first % 2, (first + counts.size) % 2))
        return counts.reshape(-1, 2).sum(axis=1), first // 2


def _reaches(most: int) -> Counts:
    """Numbers of bins from 1 to ``most``, each the next or 1/256 more than the one before."""
    steps = np.arange(math.ceil(math.log(most) / math.log1p(1 / STEPS)) + 1)
    return np.unique(np.append(np.minimum(np.exp(steps * math.log1p(1 / STEPS)), most).astype(np.int64), most))

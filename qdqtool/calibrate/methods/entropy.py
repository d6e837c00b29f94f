"""``entropy``: the clipped range whose quantized histogram diverges least from the histogram of all values.

The Kullback-Leibler divergence of a clipped and quantized histogram from it is what is lost on the grid.
For one clipping, bins [start, stop) with counts h: P is h with what lies outside added to the first and last bin. Q puts the bins
into ``levels`` groups and spreads the count R_j of each group j evenly over its N_j bins that are not empty. Both divided by
their totals T and T − outside,

    KL(P‖Q) = 1/T · (Σ_b p_b·ln p_b − Σ_j P_j·ln(R_j / N_j)) + ln((T − outside) / T)

so that sums over bins are differences of running sums, and all clippings are computed at once. Source of the idea: S. Migacz,
8-bit inference with TensorRT, GTC 2017; the formula is worked out here."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from qdqtool.calibrate.observer import HistogramObserver, Range, storage_type

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Clippings that are computed together.
BLOCK = 256
#: Ranges are tried in steps of one part of so many.
STEPS = 256


class Entropy(HistogramObserver):
    """Of the ranges [−t, t], as far as values were seen, the one with the least KL divergence, see `divergences`.

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


def divergences(counts: Counts, starts: Counts, stops: Counts, levels: int) -> Floats:
    """KL(P‖Q) in nats of every clipping, float64 [clippings]; inf where Q is 0 and P is not.

    Args:
        counts: int64 [bins].
        starts: first bin of each clipping.
        stops: bin behind the last of each; at least ``levels`` behind the first.
        levels: points of the grid, 2 or more.
    """
    blocks = [
        _of_block(counts, starts[i : i + BLOCK], stops[i : i + BLOCK], levels) for i in range(0, starts.size, BLOCK)
    ]
    return np.concatenate(blocks) if blocks else np.zeros(0)


def _of_block(counts: Counts, starts: Counts, stops: Counts, levels: int) -> Floats:
    before, held, entropy = (_running(x) for x in (counts, counts > 0, _x_ln(counts.astype(np.float64))))
    total = before[-1]
    edges = starts[:, None] + np.arange(levels + 1) * (stops - starts)[:, None] // levels
    inside, bins = (np.diff(sums[edges], axis=1) for sums in (before, held))
    below, above = before[starts], total - before[stops]
    groups, logs = inside.copy(), entropy[stops] - entropy[starts]
    for column, bin_, extra in ((0, starts, below), (-1, stops - 1, above)):
        own = counts[bin_].astype(np.float64)
        bins[:, column] += (own == 0) & (extra > 0)
        groups[:, column] += extra
        logs += _x_ln(own + extra) - _x_ln(own)
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = np.where(groups > 0, groups * np.log(inside / bins), 0.0).sum(axis=1)
        found = (logs - spread) / total + np.log((total - below - above) / total)
    return np.where(np.isfinite(found), found, np.inf)


def _running(values: npt.NDArray[np.generic]) -> Floats:
    """Sum before each index, and of all: float64 [n + 1]."""
    return np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])


def _x_ln(x: Floats) -> Floats:
    found: Floats = x * np.log(np.where(x > 0, x, 1.0))
    return found

"""``pow2-minmse``: the power-of-two range of symmetric int8 with the least squared error.

With ``reference``, the histogram of the Vitis line of quantizers: its bins depend on the order of the samples.
The first sample makes 2048 bins over its own [min, max]. A later one within the edges is counted into them; one beyond adds as
many bins of the first bin's width at either end as it takes, and all edges are laid out anew between the new ends (which shifts
them by a rounding). Nothing bounds the number of bins: one wide sample after a narrow one makes as many as it likes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from qdq_passes.errors import UnsupportedError, UsageError
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.count_text import counts_of, text_of
from qdq_passes.numerics.encoding import FLOAT32_MAX, FLOAT32_TINY, Encoding, encoding_of_range, integer_range
from qdq_passes.numerics.histogram import Histogram
from qdq_passes.numerics.minmse import OFFSETS

from qdqtool.calibrate.observer import Observer, Range, State, storage_type

Floats = npt.NDArray[np.float64]

#: Bins of the first sample (NumBins of the reference).
BINS = 2048
#: More bins than this are refused: 128 MiB of counts for one tensor.
MOST_BINS = 1 << 24
#: Elements that are counted at a time.
CHUNK = 1 << 16


class Pow2Minmse(Observer):
    """[−127·s, 127·s], s the power of two of the least Σ (x − s·clip(round(x/s), −127, 127))².

    Tried are the position that is nearest in log2 to what max(|min|, |max|) asks for, one coarser and three finer; of equal
    errors the coarser wins. The error comes from a histogram of everything seen, which is exact in any order. A tensor that is
    0 everywhere keeps [0, 0].

    ``reference`` does as the Vitis line does, for files that must agree with it: the histogram takes its bins from the first
    sample and is stretched by later ones, so the result depends on their order and cannot be merged; every value counts as the
    centre of its bin; a tensor of zeros has the coarsest of the five positions, −1; NaN counts as 0, infinities as ±3.4e38.
    """

    def __init__(self, *, bits: int = 8, reference: bool = False) -> None:
        self.dtype = storage_type(bits, symmetric=True)
        self.sanitizes = self.as_written = reference
        self.merges = not reference
        self.seen: Histogram | ReferenceHistogram = ReferenceHistogram() if reference else Histogram()

    def observe(self, values: Array, low: float, high: float) -> None:
        """Count the values."""
        self.seen.add(values, low, high)

    def merge(self, other: Pow2Minmse) -> None:
        """Count what the other counted.

        Raises:
            UsageError: it is the reference's histogram.
        """
        if isinstance(self.seen, Histogram) and isinstance(other.seen, Histogram):
            self.seen.merge(other.seen)
            return
        raise UsageError(
            "with reference=true the ranges depend on the order of the samples, and cannot be merged",
            where="method 'pow2-minmse'",
            hint="calibrate on all samples in one run, or leave out reference",
        )

    def range(self) -> Range:
        """The range of the best position."""
        low, high = self.seen.low, self.seen.high
        assert low <= high, "no sample was observed"
        if low == high == 0 and isinstance(self.seen, Histogram):
            return Range(0.0, 0.0)
        base = encoding_of_range(low, high, dtype=self.dtype, symmetric=True, power_of_two=True, nearest=True)
        best, least = base.scale[0], math.inf
        for offset in OFFSETS:
            scale = math.ldexp(base.scale[0], -offset)
            if FLOAT32_TINY <= scale <= FLOAT32_MAX and (error := self._error(scale)) < least:
                best, least = scale, error
        limit = best * integer_range(self.dtype, symmetric=True)[1]
        return Range(-limit, limit)

    def histogram(self) -> Histogram | None:
        """All values seen; None for the reference's histogram, whose bins are its own."""
        return self.seen if isinstance(self.seen, Histogram) else None

    @property
    def counting(self) -> Histogram | None:
        """The histogram, unless it is the reference's or a method observes in its own way."""
        return self.histogram() if type(self).observe is Pow2Minmse.observe else None

    def state(self) -> State:
        """The histogram."""
        key = "histogram" if isinstance(self.seen, Histogram) else "reference"
        return {key: self.seen.state()}

    def restore(self, state: State, found: Range) -> None:
        """Take up the histogram."""
        if isinstance(self.seen, Histogram):
            self.seen = Histogram.from_state(state["histogram"])
        else:
            self.seen = ReferenceHistogram.from_state(state["reference"])

    def _error(self, scale: float) -> float:
        encoding = Encoding.per_tensor(self.dtype, scale)
        return self.seen.squared_error(encoding, symmetric_range=True)


class ReferenceHistogram:
    """Counts per bin, in the order in which the samples came; empty at first.

    Attributes:
        low: smallest value, +inf when empty.
        high: largest value, −inf when empty.
        edges: float64 [bins + 1].
        counts: int64 [bins].
    """

    def __init__(self) -> None:
        self.low, self.high = math.inf, -math.inf
        self.edges: Floats = np.zeros(0)
        self.counts: npt.NDArray[np.int64] = np.zeros(0, np.int64)

    def add(self, values: npt.NDArray[Any], low: float, high: float) -> None:
        """Count ``values`` (float of any shape, not empty, all finite), whose smallest and largest are ``low`` and ``high``.

        Raises:
            UnsupportedError: it takes more than `MOST_BINS` bins.
        """
        if not self.counts.size:
            self.edges = _first_edges(low, high)
            self.counts = np.zeros(BINS, np.int64)
        else:
            self._stretch(low, high)
        self.low, self.high = min(low, self.low), max(high, self.high)
        self.counts += _counted(values.reshape(-1), self.edges)

    def squared_error(self, encoding: Encoding, *, symmetric_range: bool = False) -> float:
        """Sum of (c − c')² over all values, c being the centre of the bin as a float32 and quantized in float32."""
        centers = ((self.edges[:-1] + self.edges[1:]) / 2).astype(np.float32)
        scale, limits = np.float32(encoding.scale[0]), integer_range(encoding.dtype, symmetric=symmetric_range)
        real = np.clip(np.rint(centers / scale), *limits) * scale
        differences = centers.astype(np.float64) - real.astype(np.float64)
        return float((differences * differences * self.counts).sum())

    def state(self) -> dict[str, Any]:
        """JSON-ready and exact: the edges follow from the first and the last."""
        ends = [float(self.edges[0]), float(self.edges[-1])]
        return {"counts": text_of(self.counts), "edges": ends, "high": self.high, "low": self.low}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> ReferenceHistogram:
        """The histogram that had this `state`.

        Raises:
            ValueError: no histogram has such a state (KeyError, TypeError: a part is missing or of another kind).
        """
        found = cls()
        found.low, found.high, found.counts = float(state["low"]), float(state["high"]), counts_of(state["counts"])
        first, last = map(float, state["edges"])
        if not (first <= found.low <= found.high <= last and math.isfinite(last - first)):
            raise ValueError(f"[{found.low}, {found.high}] is not within the edges {first} and {last}")
        found.edges = np.linspace(first, last, found.counts.size + 1)
        return found

    def _stretch(self, low: float, high: float) -> None:
        first, last, width = float(self.edges[0]), float(self.edges[-1]), float(self.edges[1] - self.edges[0])
        if low >= first and high <= last:
            return
        left, right = (max(0.0, math.ceil(gap / width)) for gap in (first - low, high - last))
        bins = self.counts.size + left + right
        if bins > MOST_BINS:
            raise UnsupportedError(
                f"the reference's histogram takes {bins:.3g} bins once a sample reaches [{low:.6g}, {high:.6g}] after one that "
                f"made bins of {width:.3g}",
                hint="leave out reference (the preset xint8): that histogram is bounded; or leave the tensor float",
            )
        self.edges = np.linspace(first - left * width, last + right * width, int(bins) + 1)
        self.counts = np.pad(self.counts, (int(left), int(right)))


def _first_edges(low: float, high: float) -> Floats:
    """Edges of ``np.histogram`` over one sample: a constant one gets half a unit on either side.

    Raises:
        UnsupportedError: the values are so near each other that the edges are not distinct (numpy refuses them too).
    """
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, BINS + 1)
    if not (np.diff(edges) > 0).all():
        raise UnsupportedError(
            f"between {low:.17g} and {high:.17g} is no room for {BINS} bins, which the reference's histogram needs",
            hint="leave out reference (the preset xint8), or leave the tensor float",
        )
    return edges


def _counted(flat: npt.NDArray[Any], edges: Floats) -> npt.NDArray[np.int64]:
    """``np.histogram(flat, edges)[0]`` to the last count; ``flat`` lies within the edges.

    The place in the row is computed; only where rounding could have put it on the wrong side of an edge is that edge looked at.
    """
    bins, first, last = edges.size - 1, float(edges[0]), float(edges[-1])
    per_unit = bins / (last - first)
    doubt = 16 * np.finfo(np.float64).eps * max(abs(first), abs(last), last - first) * per_unit
    counts = np.zeros(bins, np.int64)
    for start in range(0, flat.size, CHUNK):
        x = flat[start : start + CHUNK].astype(np.float64)
        place = np.subtract(x, first)
        np.multiply(place, per_unit, out=place)
        index, nearest = place.astype(np.intp), np.rint(place)
        np.subtract(place, nearest, out=place)
        near = np.flatnonzero(np.abs(place, out=place) <= doubt)
        edge = nearest[near].astype(np.intp)
        index[near] = edge - (x[near] < edges[edge])
        index[near[edge == bins]] = bins - 1  # the last bin holds its right edge
        counts += np.bincount(index, minlength=bins)
    return counts

"""``pow2-minmse``: the power-of-two range of symmetric int8 with the least squared error."""

from __future__ import annotations

import math

from qdq_passes.errors import UsageError
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import FLOAT32_MAX, FLOAT32_TINY, Encoding, encoding_of_range, integer_range
from qdq_passes.numerics.histogram import Histogram
from qdq_passes.numerics.minmse import OFFSETS

from qdqtool.calibrate.observer import Observer, Range, State, storage_type
from qdqtool.calibrate.reference_histogram import ReferenceHistogram


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

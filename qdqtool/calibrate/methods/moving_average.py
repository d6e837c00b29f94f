"""``moving-average``: smallest and largest value of the samples, averaged exponentially in their order."""

from __future__ import annotations

from qdq_passes.errors import UsageError
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import integer_range

from qdqtool.calibrate.observer import Observer, Range, State, storage_type


class MovingAverage(Observer):
    """low ← low + c·(min of the sample − low), high likewise, from the first sample on; c = ``constant``.

    Minimum and maximum of every sample are kept with its number and averaged at the end, so merged ranges are those of all
    samples in their order. What few samples reach is clipped: outliers that others of the samples do not have.

    The range is as wide as steps of ``eps`` make it at least: 255·eps upwards from min(low, 0), or ±127·eps where ``symmetric``
    (as the observers that Qualcomm's quantizer sets up with eps = 2^-12: the least scale of their 8-bit grid).
    """

    def __init__(self, *, constant: float = 0.01, eps: float = 2.0**-12, bits: int = 8, symmetric: bool = True) -> None:
        if not 0 < constant <= 1:
            raise UsageError(f"constant is above 0 and at most 1, not {constant}")
        if not 0 <= eps < 1:
            raise UsageError(f"eps is a step of the grid, 0 or more and below 1, not {eps}")
        self.constant, self.eps, self.symmetric = constant, eps, symmetric
        self.steps = integer_range(storage_type(bits, symmetric=symmetric), symmetric=symmetric)
        self.records: dict[int, tuple[float, float]] = {}

    def observe(self, values: Array, low: float, high: float) -> None:
        """Note the sample's smallest and largest value, of all its runs where it has several."""
        before = self.records.get(self.sample, (low, high))
        self.records[self.sample] = (min(before[0], low), max(before[1], high))

    def merge(self, other: MovingAverage) -> None:
        """Take over the other's samples.

        Raises:
            UsageError: both saw the same sample.
        """
        if both := self.records.keys() & other.records.keys():
            raise UsageError(f"sample {min(both)} is in both", hint="merge ranges of different samples")
        self.records.update(other.records)

    def shift(self, samples: int) -> None:
        """The samples seen have numbers ``samples`` higher."""
        self.records = {number + samples: record for number, record in self.records.items()}

    def range(self) -> Range:
        """The average, widened to ``eps``."""
        (low, high), *later = (self.records[number] for number in sorted(self.records))
        for record in later:
            low += self.constant * (record[0] - low)
            high += self.constant * (record[1] - high)
        first, last = self.steps
        if self.symmetric:
            least = self.eps * last
            return Range(low, high) if max(-low, high) >= least else Range(-least, least)
        bottom = min(low, 0.0)
        return (
            Range(low, high)
            if max(high, 0.0) - bottom >= self.eps * (last - first)
            else Range(bottom, bottom + self.eps * (last - first))
        )

    def state(self) -> State:
        """Number, minimum and maximum of every sample."""
        numbers = sorted(self.records)
        return {
            "numbers": numbers,
            "low": [self.records[number][0] for number in numbers],
            "high": [self.records[number][1] for number in numbers],
        }

    def restore(self, state: State, found: Range) -> None:
        """Take up the samples."""
        rows = zip(state["numbers"], state["low"], state["high"], strict=True)
        self.records = {int(number): (float(low), float(high)) for number, low, high in rows}

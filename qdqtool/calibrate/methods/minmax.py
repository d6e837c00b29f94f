"""``minmax``: the smallest and largest value seen."""

from __future__ import annotations

from typing import Self

from qdq_passes.numerics.arrays import Array

from qdqtool.calibrate.observer import Observer, Range, State


class Minmax(Observer):
    """[min, max] over all samples. Exact, and merged exactly: min and max do not depend on order or grouping."""

    def __init__(self) -> None:
        self.seen: Range | None = None

    def observe(self, values: Array, low: float, high: float) -> None:
        """Widen the range to hold [low, high]."""
        self._widen(Range(low, high))

    def merge(self, other: Self) -> None:
        """Widen the range to hold the other's."""
        if other.seen is not None:
            self._widen(other.seen)

    def range(self) -> Range:
        """What was seen."""
        assert self.seen is not None, "no sample was observed"
        return self.seen

    def restore(self, state: State, found: Range) -> None:
        """The range is the state."""
        self.seen = found

    def _widen(self, found: Range) -> None:
        self.seen = found if self.seen is None else self.seen.union(found)

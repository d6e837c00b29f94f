"""Methods that choose a range from a histogram of everything seen: what they have in common."""

from __future__ import annotations

from typing import Self

import onnx_ir as ir
from qdq_passes.errors import UsageError
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import parse_dtype
from qdq_passes.numerics.histogram import Histogram

from qdqtool.calibrate.observer import Observer, Range, State


class HistogramObserver(Observer):
    """Keeps a `Histogram`, which is exact: the state does not depend on the order or grouping of the samples."""

    def __init__(self) -> None:
        self.seen = Histogram()

    def observe(self, values: Array, low: float, high: float) -> None:
        """Count the values."""
        self.seen.add(values, low, high)

    def merge(self, other: Self) -> None:
        """Count what the other counted."""
        self.seen.merge(other.seen)

    def histogram(self) -> Histogram | None:
        """All values seen."""
        return self.seen

    def state(self) -> State:
        """The histogram."""
        return {"histogram": self.seen.state()}

    def restore(self, state: State, found: Range) -> None:
        """Take up the histogram."""
        self.seen = Histogram.from_state(state["histogram"])

    @property
    def observed(self) -> Range:
        """[min, max] of everything seen."""
        assert self.seen.total, "no sample was observed"
        return Range(self.seen.low, self.seen.high)


def storage_type(bits: int, *, symmetric: bool) -> ir.DataType:
    """The integer type of so many bits: int8 for symmetric grids, uint8 for asymmetric ones.

    Raises:
        UsageError: there is no such type.
    """
    try:
        return parse_dtype(f"{'int' if symmetric else 'uint'}{bits}")
    except UsageError:
        raise UsageError(f"no integer type has {bits} bits", hint="bits is 2, 4, 8 or 16") from None

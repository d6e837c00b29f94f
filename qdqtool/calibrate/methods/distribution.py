"""``distribution``: the float8 range at which the values spread as the numbers of the float8 type do."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Self

import ml_dtypes
import numpy as np
import onnx_ir as ir
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import parse_dtype

from qdqtool.calibrate.methods.minmax import Minmax
from qdqtool.calibrate.observer import Range, State

#: Elements whose squares are summed at a time.
CHUNK = 1 << 16


class Distribution(Minmax):
    """[−s·max, s·max] with s = σ(values) / σ(numbers of the type): both then have the same standard deviation.

    σ is over all values seen, and over all finite numbers of ``dtype`` (100.06 for float8e4m3fn, whose largest is 448). This is
    the method of the same name of onnxruntime, scenario "same"; its scenario "p3" takes σ of the cube roots instead, and
    doubling the data then makes the scale 1.26 times as large. Larger values saturate at 4.5 σ (float8e4m3fn).

    Sums are rational numbers, so that they do not depend on order and grouping; a constant tensor keeps the range seen.
    """

    def __init__(self, *, dtype: str = "float8e4m3fn") -> None:
        super().__init__()
        self.dtype = parse_dtype(dtype)
        if not self.dtype.name.startswith("FLOAT8E") or "M" not in self.dtype.name:
            raise UsageError(f"dtype is a float8 type, not {dtype}", hint="float8e4m3fn or float8e5m2")
        self.count, self.sum, self.squares = 0, Fraction(), Fraction()

    def observe(self, values: Array, low: float, high: float) -> None:
        """Add up the values and their squares."""
        super().observe(values, low, high)
        flat = values.reshape(-1)
        for start in range(0, flat.size, CHUNK):
            part = flat[start : start + CHUNK].astype(np.float64)
            with np.errstate(over="ignore"):
                total, squares = float(part.sum()), float((part * part).sum())
            if not math.isfinite(squares):
                raise ModelError("the squares of the values overflow", hint="leave it float with --exclude")
            self.sum += Fraction(total)
            self.squares += Fraction(squares)
        self.count += flat.size

    def merge(self, other: Self) -> None:
        """Add the other's sums."""
        super().merge(other)
        self.count += other.count
        self.sum += other.sum
        self.squares += other.squares

    def range(self) -> Range:
        """The range of the scale, or what was seen where that is one value."""
        seen = super().range()
        variance = self.squares / self.count - (self.sum / self.count) ** 2
        deviation = math.sqrt(max(float(variance), 0.0))
        if seen.low == seen.high or not deviation:
            return seen
        largest, spread = _numbers(self.dtype)
        return Range(-deviation / spread * largest, deviation / spread * largest)

    def state(self) -> State:
        """What was seen, and the sums as fractions."""
        seen = super().range()
        return {
            "count": self.count,
            "observed": [seen.low, seen.high],
            "squares": str(self.squares),
            "sum": str(self.sum),
        }

    def restore(self, state: State, found: Range) -> None:
        """Take up the sums."""
        low, high = state["observed"]
        self.seen = Range(low, high)
        self.count, self.sum, self.squares = int(state["count"]), Fraction(state["sum"]), Fraction(state["squares"])


def _numbers(dtype: ir.DataType) -> tuple[float, float]:
    """(largest, standard deviation) of the finite numbers of a float8 type."""
    codes = np.arange(256, dtype=np.uint8).view(dtype.numpy()).astype(np.float64)
    largest = float(ml_dtypes.finfo(dtype.numpy()).max)  # type: ignore[no-untyped-call]
    return largest, float(np.std(codes[np.isfinite(codes)]))

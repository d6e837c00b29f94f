"""Exact histogram of a tensor: integer counts on bins whose width is a power of two, anchored at zero.

Bin i covers [i·w, (i+1)·w), w = 2^exponent. The width depends on the range of all values alone: the wider side has 4096 to 8192
bins. When the range grows, neighbours join pairwise (bin i → floor(i/2)), which is exactly what counting everything with the
wider bins gives: floor(floor(x/w)/2) = floor(x/2w), and scaling a float by a power of two rounds nothing. So the state after
any samples is the same to the last bit whatever their order, grouping and growth, and merging is exact.

Values of exactly 0 (half of what leaves a Relu) are counted once more by themselves, as every grid represents them. The figures
of an encoding take the values of a bin as spread evenly over the part of it that lies within [low, high].

`mean_squared_errors` is what a grid makes of values that are spread evenly over intervals, with `mean_squares` their power
and `clipped_shares` their share beyond the ends. Let t = x/s and n(t) the nearest point of the grid; for integers
n = clip(rint(t), qmin − z, qmax − z). With r = t − n(t),

    ∫ (u − n(u))² du from 0 up to t  =  G(n) + r³/3,      G(n) = 2/3 · Σ (half the gap)³ between 0 and n

also beyond the ends, where n no longer moves; for integers, whose gaps are 1, G(n) = n/12. Over an interval [a, b] within the
cell of one point the mean is (r_a² + r_a·r_b + r_b²)/3, which holds for a single value (a = b) too."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError
from qdq_passes.numerics import counting
from qdq_passes.numerics.count_text import counts_of, text_of
from qdq_passes.numerics.encoding import Encoding, is_integer_type, range_from_zero

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Pieces:
    """Intervals with how many values are spread evenly over each; all float64 [pieces].

    Args:
        left: where each begins.
        right: where each ends; the same for a single value.
        counts: how many values.
    """

    left: Floats
    right: Floats
    counts: Floats


def mean_squared_errors(pieces: Pieces, encoding: Encoding, *, symmetric_range: bool = False) -> Floats:
    """Mean of (x − x')² over each piece, float64 [pieces]; x' is the nearest point of the grid of ``encoding``.

    Raises:
        UsageError: the encoding is not per-tensor.
    """
    scale = _scale(encoding)
    a, b = pieces.left / scale, pieces.right / scale
    point_a, point_b = (_nearest(t, encoding, symmetric_range) for t in (a, b))
    ra, rb = a - point_a, b - point_b
    errors: Floats = (ra * ra + ra * rb + rb * rb) / 3
    at = np.flatnonzero(point_a != point_b)
    if at.size:
        a, b, ra, rb = a[at], b[at], ra[at], rb[at]
        below_a, below_b = (_below(t, point[at], encoding) for t, point in ((a, point_a), (b, point_b)))
        errors[at] = (below_b - below_a + (rb * rb * rb - ra * ra * ra) / 3) / (b - a)
    return errors * scale**2


def mean_squares(pieces: Pieces) -> Floats:
    """Mean of x² over each piece, float64 [pieces]."""
    a, b = pieces.left, pieces.right
    squares: Floats = (a * a + a * b + b * b) / 3
    return squares


def clipped_shares(pieces: Pieces, encoding: Encoding, *, symmetric_range: bool = False) -> Floats:
    """Share of each piece that lies beyond an end of the grid by more than half a step, float64 [pieces].

    Raises:
        UsageError: the encoding is not per-tensor.
    """
    scale = _scale(encoding)
    first, last = _ends(encoding, symmetric_range)
    a, b = pieces.left, pieces.right
    within = np.clip(b, first * scale, last * scale) - np.clip(a, first * scale, last * scale)
    is_one = a == b
    outside = ((a < first * scale) | (a > last * scale)).astype(np.float64)
    shares: Floats = np.where(is_one, outside, 1 - within / np.where(is_one, 1.0, b - a))
    return shares


def _scale(encoding: Encoding) -> float:
    if encoding.shape != ():
        raise UsageError(
            f"scales of shape {list(encoding.shape)}", hint="a histogram is of the whole tensor: one scale"
        )
    return float(np.float32(encoding.scale[0]))


def _nearest(t: Floats, encoding: Encoding, symmetric_range: bool) -> Floats:
    """n(t) in steps of the scale."""
    if not is_integer_type(encoding.dtype):
        points, borders, _ = _float_grid(encoding.dtype)
        return points[np.searchsorted(borders, t)]
    low, high = range_from_zero(encoding, symmetric=symmetric_range)
    return np.clip(np.rint(t), low, high)


def _below(t: Floats, point: Floats, encoding: Encoding) -> Floats:
    """G(n(t)) in steps of the scale, ``point`` being n(t)."""
    if not is_integer_type(encoding.dtype):
        _, borders, below = _float_grid(encoding.dtype)
        return below[np.searchsorted(borders, t)]
    return point / 12


def _ends(encoding: Encoding, symmetric_range: bool) -> tuple[float, float]:
    """Where saturation begins, in steps of the scale."""
    if not is_integer_type(encoding.dtype):
        points, borders, _ = _float_grid(encoding.dtype)
        return float(2 * points[0] - borders[0]), float(2 * points[-1] - borders[-1])
    low, high = range_from_zero(encoding, symmetric=symmetric_range)
    return low - 0.5, high + 0.5


@functools.cache
def _float_grid(dtype: ir.DataType) -> tuple[Floats, Floats, Floats]:
    """(points, borders between them, G) of a float storage type of up to 16 bits."""
    stored = np.dtype(dtype.numpy())
    bits = int(ml_dtypes.finfo(stored).bits)  # type: ignore[no-untyped-call]
    codes = np.arange(2**bits, dtype=np.dtype(f"u{stored.itemsize}"))
    points = codes.view(stored).astype(np.float64)
    points = np.unique(points[np.isfinite(points)] + 0.0)
    gaps = np.diff(points)
    steps, zero = 2 / 3 * (gaps / 2) ** 3, int(np.searchsorted(points, 0.0))
    below = np.concatenate([-np.cumsum(steps[:zero][::-1])[::-1], [0.0], np.cumsum(steps[zero:])])
    return points, points[:-1] + gaps / 2, below


Counts = npt.NDArray[np.int64]

#: log2 of the most bins on either side of zero.
SIDE_BITS = 13
#: Narrowest bins: no scale is below the smallest normal float32, so finer ones tell nothing.
MIN_EXPONENT = -126
#: Elements that are counted at a time, so that their scaled copy and index (4, 4 and 8 bytes) stay in the cache.
CHUNK = 1 << 16

_scratch = threading.local()
_Buffers = tuple[npt.NDArray[Any], npt.NDArray[np.int32], npt.NDArray[np.intp], npt.NDArray[np.bool_]]


class Histogram:
    """Counts of everything added; empty at first.

    Attributes:
        low: smallest value, +inf when empty.
        high: largest value, −inf when empty.
        exponent: log2 of the bin width.
        first: index of the first bin.
        counts: int64 [bins]; the first bin holds ``low``, the last ``high``.
        zeros: how many values are exactly 0; bin 0 counts them too.
    """

    def __init__(self) -> None:
        self.low, self.high = math.inf, -math.inf
        self.exponent, self.first, self.zeros = MIN_EXPONENT, 0, 0
        self.counts: Counts = np.zeros(0, np.int64)
        self._pieces: Pieces | None = None

    @property
    def total(self) -> int:
        """Number of values."""
        return int(self.counts.sum())

    def centers(self) -> npt.NDArray[np.float64]:
        """Middle of each bin, float64 [bins]."""
        index = np.arange(self.first, self.first + self.counts.size, dtype=np.float64)
        return (index + 0.5) * 2.0**self.exponent

    def count(self, values: npt.NDArray[Any]) -> tuple[float, float]:
        """Count ``values`` (float of any shape, not empty) where all are finite, else none; return the smallest and the largest,
        NaN in both where one is NaN."""
        flat = values.reshape(-1)
        if not counting.takes(flat, self.exponent):
            low, high = counting.extremes(flat)
            if counting.is_finite(low, high):
                self.add(flat, low, high)
            return low, high
        found = self._counted(flat)
        if found.is_finite and not found.is_counted:
            self._widen(found.low, found.high)
            found = self._counted(flat)
        return (found.low, found.high) if found.is_counted else counting.extremes(flat)

    def add(self, values: npt.NDArray[Any], low: float, high: float) -> None:
        """Count ``values`` (float of any shape, all finite), whose smallest and largest are ``low`` and ``high``.

        Raises:
            ValueError: they lie elsewhere.
        """
        if not values.size:
            return
        self._widen(low, high)
        flat = values.reshape(-1)
        if not counting.takes(flat, self.exponent):
            self._add(flat, low)
        elif not self._counted(flat).is_counted:
            raise ValueError(f"not all values lie within [{low}, {high}]")

    def _counted(self, flat: npt.NDArray[Any]) -> counting.Counted:
        """Count in C++ what `qdq_passes.numerics.counting` takes; the histogram is as before where the result is not counted."""
        self._pieces = None
        found = counting.count(flat, self.low, self.high, self.exponent, self.first, self.counts)
        self.zeros += found.zeros if found.is_counted else 0
        return found

    def _add(self, flat: npt.NDArray[Any], low: float) -> None:
        """Count the values of ``flat``, the smallest of which is ``low``, in numpy."""
        self._pieces = None
        wide = self._type_for(flat.dtype)
        factor = wide.type(2.0**-self.exponent)
        underflows = self.exponent > 0 and low < 0
        scaled, short, index, is_zero = _buffers(wide, min(flat.size, CHUNK))
        for start in range(0, flat.size, CHUNK):
            part = flat[start : start + CHUNK]
            if part.dtype.kind == "V":
                part = part.astype(wide)
            n = part.size
            np.multiply(part, factor, out=scaled[:n], dtype=wide)
            np.equal(part if self.exponent > 0 else scaled[:n], 0, out=is_zero[:n])
            self.zeros += int(np.count_nonzero(is_zero[:n]))
            if underflows:  # of −2^-140 nothing is left at 2^10, but it lies in bin −1
                scaled[:n][(scaled[:n] == 0) & (part < 0)] = -1
            if self.first:  # else nothing is negative, and the conversion to integers rounds down
                np.floor(scaled[:n], out=scaled[:n])
                np.subtract(scaled[:n], wide.type(self.first), out=scaled[:n])
            np.copyto(short[:n], scaled[:n], casting="unsafe")
            np.copyto(index[:n], short[:n])  # two steps take half as long as one
            self.counts += np.bincount(index[:n], minlength=self.counts.size)

    def merge(self, other: Histogram) -> None:
        """Count what ``other`` counted."""
        if not other.counts.size:
            return
        self._pieces = None
        self._widen(other.low, other.high)
        counts, first = _joined(other.counts, other.first, self.exponent - other.exponent)
        self.counts[first - self.first :][: counts.size] += counts
        self.zeros += other.zeros

    def squared_error(self, encoding: Encoding, *, symmetric_range: bool = False) -> float:
        """Sum of (x − x')² over all values, x' being what the per-tensor ``encoding`` makes of x; in the unit of x squared.

        Args:
            encoding: any integer or float type, one scale.
            symmetric_range: the grid leaves out the most negative integer.

        Raises:
            UsageError: the encoding is not per-tensor.
        """
        pieces = self.pieces()
        return _total(pieces, mean_squared_errors(pieces, encoding, symmetric_range=symmetric_range))

    def sqnr(self, encoding: Encoding, *, symmetric_range: bool = False) -> float:
        """10·log10(Σ x² / Σ (x − x')²) in dB; +inf without an error, −inf where only the error is not 0."""
        pieces = self.pieces()
        error = _total(pieces, mean_squared_errors(pieces, encoding, symmetric_range=symmetric_range))
        signal = _total(pieces, mean_squares(pieces))
        if not error or not signal:
            return -math.inf if error else math.inf
        return 10 * (math.log10(signal) - math.log10(error))

    def clipped(self, encoding: Encoding, *, symmetric_range: bool = False) -> float:
        """Share of the values, 0..1, that saturate: they lie beyond the end of the grid by more than half a step."""
        pieces = self.pieces()
        if not self.total:
            return 0.0
        beyond = _total(pieces, clipped_shares(pieces, encoding, symmetric_range=symmetric_range))
        return beyond / self.total

    def pieces(self) -> Pieces:
        """The intervals that hold values, as far as they lie within [low, high]; the zeros as one of no width."""
        if self._pieces is None:
            self._pieces = self._cut()
        return self._pieces

    def state(self) -> dict[str, Any]:
        """JSON-ready and exact; ``{}`` when empty."""
        if not self.counts.size:
            return {}
        return {"counts": text_of(self.counts), "high": self.high, "low": self.low, "zeros": self.zeros}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Histogram:
        """The histogram that had this `state`.

        Raises:
            ValueError: no histogram has such a state (KeyError, TypeError: a part is missing or of another kind).
        """
        found = cls()
        if not state:
            return found
        low, high, counts = float(state["low"]), float(state["high"]), counts_of(state["counts"])
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise ValueError(f"[{low}, {high}] is no range")
        found._widen(low, high)
        if counts.size != found.counts.size:
            raise ValueError(f"{counts.size} bins where the range has {found.counts.size}")
        found.counts, found.zeros = counts, int(state["zeros"])
        if not 0 <= found.zeros <= (counts[-found.first] if low <= 0 <= high else 0):
            raise ValueError(f"{found.zeros} zeros do not fit the counts")
        return found

    def _cut(self) -> Pieces:
        held, width = np.flatnonzero(self.counts), 2.0**self.exponent
        left, counts = (held + self.first).astype(np.float64), self.counts[held].astype(np.float64)
        counts[left == 0] -= self.zeros
        left, right = np.maximum(left * width, self.low), np.minimum((left + 1) * width, self.high)
        if self.zeros:
            left, right, counts = np.append(left, 0.0), np.append(right, 0.0), np.append(counts, float(self.zeros))
        kept = counts > 0
        return Pieces(left[kept], right[kept], counts[kept])

    def _type_for(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Where scaling values of ``dtype`` is exact: float32 for them and for narrower ones, as far as it holds 1/w."""
        narrow = (dtype.kind == "V" or dtype.itemsize <= 4) and self.exponent <= -MIN_EXPONENT
        return np.dtype(np.float32 if narrow else np.float64)

    def _widen(self, low: float, high: float) -> None:
        """Take in that values lie within [low, high], with bins as wide as that asks for."""
        low, high = min(low + 0.0, self.low), max(high + 0.0, self.high)  # + 0.0: there is one zero
        if (low, high) == (self.low, self.high):
            return
        exponent = exponent_of(low, high)
        first, last = _index(low, exponent), _index(high, exponent)
        grown = np.zeros(last - first + 1, np.int64)
        if self.counts.size:
            counts, start = _joined(self.counts, self.first, exponent - self.exponent)
            grown[start - first :][: counts.size] = counts
        self.low, self.high, self.exponent, self.first, self.counts = low, high, exponent, first, grown


def _total(pieces: Pieces, means: npt.NDArray[np.float64]) -> float:
    """Sum over all values; not a dot product, whose threads would cost more than it takes."""
    return float((pieces.counts * means).sum())


def exponent_of(low: float, high: float) -> int:
    """log2 of the bin width for the range [low, high]: between 2^12 and 2^13 bins on the side of the larger magnitude."""
    magnitude = max(abs(low), abs(high))
    return max(math.frexp(magnitude)[1] - SIDE_BITS, MIN_EXPONENT) if magnitude else MIN_EXPONENT


def _index(value: float, exponent: int) -> int:
    scaled = math.ldexp(value, -exponent)
    return -1 if value < 0 and scaled == 0 else math.floor(scaled)


def _joined(counts: Counts, first: int, steps: int) -> tuple[Counts, int]:
    """``counts`` with neighbours joined ``steps`` times: bin i → floor(i / 2^steps); and the new index of the first."""
    steps = min(steps, SIDE_BITS + 1)  # then only the bins −1 and 0 are left, which stay what they are
    start, stop = first >> steps, (first + counts.size - 1) >> steps
    room = np.zeros((stop - start + 1) << steps, np.int64)
    room[first - (start << steps) :][: counts.size] = counts
    return room.reshape(-1, 1 << steps).sum(1), start


def _buffers(wide: np.dtype[Any], count: int) -> _Buffers:
    """Scratch memory of this thread for ``count`` elements: scaled values, short and long indices, marks."""
    known: dict[str, _Buffers] = _scratch.__dict__
    if wide.name not in known or known[wide.name][0].size < count:
        known[wide.name] = (
            np.empty(count, wide), np.empty(count, np.int32), np.empty(count, np.intp), np.empty(count, np.bool_),
        )  # fmt: skip
    return known[wide.name]

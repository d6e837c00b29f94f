"""What a grid makes of values that are spread evenly over intervals: squared error, power, share beyond the ends.

Let t = x/s and n(t) the nearest point of the grid; for integers n = clip(rint(t), qmin − z, qmax − z). With r = t − n(t),

    ∫ (u − n(u))² du from 0 up to t  =  G(n) + r³/3,      G(n) = 2/3 · Σ (half the gap)³ between 0 and n

also beyond the ends, where n no longer moves; for integers, whose gaps are 1, G(n) = n/12. Over an interval [a, b] within the
cell of one point the mean is (r_a² + r_a·r_b + r_b²)/3, which holds for a single value (a = b) too."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.errors import UsageError
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
    (point_a, below_a), (point_b, below_b) = (_nearest(t, encoding, symmetric_range) for t in (a, b))
    ra, rb = a - point_a, b - point_b
    together = point_a == point_b
    inside = (ra * ra + ra * rb + rb * rb) / 3
    across = (below_b - below_a + (rb * rb * rb - ra * ra * ra) / 3) / np.where(together, 1.0, b - a)
    errors: Floats = np.where(together, inside, across) * scale**2
    return errors


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


def _nearest(t: Floats, encoding: Encoding, symmetric_range: bool) -> tuple[Floats, Floats]:
    """(n(t), G(n)) in steps of the scale."""
    if not is_integer_type(encoding.dtype):
        points, borders, below = _float_grid(encoding.dtype)
        index = np.searchsorted(borders, t)
        return points[index], below[index]
    low, high = range_from_zero(encoding, symmetric=symmetric_range)
    point: Floats = np.clip(np.rint(t), low, high)
    return point, point / 12


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

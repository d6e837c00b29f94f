"""The power of two for a constant with the least squared error, searched as the Vitis line of quantizers does.

p0 = round(−log2(scale)) of the scale that the range asks for. Of the positions p0−1, p0, p0+1, p0+2, p0+3, in this order, the
first of the least error wins: Σ (x − s·clip(round(x / s), qmin, qmax))², s = 2^-p, halves to even, all in float32. Ties therefore
keep the coarser scale: exact data (3.0, 0.25) has error 0 at several positions, zeros at all of them.

The sum is bit for bit that of ``np.sum`` over the whole tensor, though no more than `CHUNK` numbers are looked at together: it
adds halves in the order in which numpy does (pairwise: both halves of a contiguous run, the first a multiple of 8 long)."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from qdq_passes.numerics.encoding import FLOAT32_TINY, Encoding

#: Positions tried, relative to that of the range (Quark 0.13: five, from one coarser to three finer).
OFFSETS = (-1, 0, 1, 2, 3)

#: Numbers looked at together; 256 KiB as float32, which a core's second-level cache holds while five scales are tried.
CHUNK = 1 << 16


def search(
    array: npt.NDArray[Any],
    start: Encoding,
    *,
    limits: tuple[int, int],
    smallest: float = FLOAT32_TINY,
    keep_zeros: bool = False,
) -> Encoding:
    """``start`` with the scales of the least squared error, one search per scale.

    Args:
        array: the float data, any shape; finite.
        start: the encoding of its range: powers of two, rounded to the nearest; per-tensor, or per-axis with axis >= 0.
        limits: smallest and largest integer, counted from the zero point: (-127, 127).
        smallest: smallest scale.
        keep_zeros: the scale of data that is 0 everywhere stays as it is, instead of taking the coarsest.
    """
    if array.size == 0:
        return start
    rows = array.reshape(1, -1) if start.axis is None else _rows(array, start.axis)
    scales = np.array(start.scale, np.float64) * np.exp2(-np.array(OFFSETS, np.float64))[:, None]
    with np.errstate(over="ignore", under="ignore"):
        stored = scales.astype(np.float32)
        errors = _errors(rows, stored, limits)
    errors[~((scales >= smallest) & np.isfinite(stored))] = np.inf
    found = np.take_along_axis(scales, errors.argmin(axis=0)[None], axis=0)[0]
    if keep_zeros:
        found = np.where(rows.any(axis=1), found, start.scale)
    return dataclasses.replace(start, scale=tuple(found.tolist()))


def _rows(array: npt.NDArray[Any], axis: int) -> npt.NDArray[Any]:
    """[D0 … Dn] as [Daxis, rest], a row per scale."""
    return np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)


def _errors(
    rows: npt.NDArray[Any], scales: npt.NDArray[np.float32], limits: tuple[int, int]
) -> npt.NDArray[np.float32]:
    """Squared error of every row at each of its scales: rows [R, K], scales [5, R] → [5, R]."""
    count, length = rows.shape
    if rows.size <= CHUNK:
        return _errors_of_chunk(np.ascontiguousarray(rows, np.float32), scales, limits)
    if count > 1:
        step = max(1, CHUNK // length)
        parts = [_errors(rows[i : i + step], scales[:, i : i + step], limits) for i in range(0, count, step)]
        return np.concatenate(parts, axis=1)
    half = length // 2 // 8 * 8
    return _errors(rows[:, :half], scales, limits) + _errors(rows[:, half:], scales, limits)


def _errors_of_chunk(
    x: npt.NDArray[np.float32], scales: npt.NDArray[np.float32], limits: tuple[int, int]
) -> npt.NDArray[np.float32]:
    low, high = np.float32(limits[0]), np.float32(limits[1])
    work, errors = np.empty_like(x), np.empty(scales.shape, np.float32)
    for scale, error in zip(scales[:, :, None], errors, strict=True):
        np.divide(x, scale, out=work)
        np.rint(work, out=work)
        np.clip(work, low, high, out=work)
        np.multiply(work, scale, out=work)
        np.subtract(x, work, out=work)
        np.multiply(work, work, out=work)
        np.sum(work, axis=1, out=error)
    return errors

"""Values of tensors kept for the figures of their grids: some, evenly, of each channel where it has a scale of its own."""

from __future__ import annotations

import numpy as np
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import Encoding

#: Values of a tensor that are kept of one sample.
TAKEN = 2048


def taken(array: Array, encoding: Encoding) -> Array:
    """Some of the values, evenly, the smallest and the largest among them; what is not finite is left out.

    With scales along an axis they are taken of each channel, and lie along that axis: [1…, C, n], or [n, C, 1…] of one that is
    counted from the end."""
    if encoding.axis is not None:
        return _taken_along(array, encoding.axis)
    flat = np.ravel(array).astype(np.float64)
    flat = flat[np.isfinite(flat)]
    if flat.size <= TAKEN:
        return flat
    ends = [flat.min(), flat.max()]
    return np.concatenate([flat[:: -(-flat.size // TAKEN)], ends])


def _taken_along(array: Array, axis: int) -> Array:
    rows = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1).astype(np.float64)
    rows = rows[:, np.isfinite(rows).all(axis=0)]
    most = max(1, TAKEN // len(rows))
    if rows.shape[1] > most:
        ends = np.stack([rows.min(axis=1), rows.max(axis=1)], axis=1)
        rows = np.concatenate([rows[:, :: -(-rows.shape[1] // most)], ends], axis=1)
    return rows.reshape((1,) * axis + rows.shape) if axis >= 0 else rows.T.reshape((-1, len(rows), *(1,) * (-axis - 1)))

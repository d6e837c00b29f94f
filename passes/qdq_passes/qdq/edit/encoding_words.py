"""An encoding in words, for reports."""

from __future__ import annotations

import numpy as np

from qdq_passes.numerics.encoding import Encoding
from qdq_passes.qdq.look.grids import Grid


def words(encoding: Encoding) -> str:
    """``int8, scale 2^-4, zero point 0``; of many scales their count and their extremes."""
    scale, zero = np.array(encoding.scale, np.float32), np.array(encoding.zero_point, np.float32)
    return str(
        Grid(
            dtype=encoding.dtype, scale=scale, zero_point=zero, axis=encoding.axis, block_size=encoding.block_size,
        )
    )  # fmt: skip


def change_in_words(old: Encoding, new: Encoding) -> str:
    """``int8, scale 2^-4, zero point 0 → int16, scale 2^-12, zero point 0``."""
    return f"{words(old)} → {words(new)}"

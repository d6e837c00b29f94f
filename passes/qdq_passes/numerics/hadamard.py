"""Orthogonal matrices of ±1/√n, whose products spread one large number over n.

Sylvester's construction: H₁ = (1), H₂ₙ = (Hₙ Hₙ; Hₙ −Hₙ)/√2; Hₙ·Hₙᵀ = I. Of a width that is no power of two the largest one that
divides it makes the blocks of a block diagonal matrix. With random signs before it no fixed pattern of rows stays as it was."""

from __future__ import annotations

import numpy as np

from qdq_passes.numerics.arrays import Reals


def block_size(width: int) -> int:
    """The largest power of two that divides ``width``."""
    return width & -width


def rotated(rows: Reals, signs: Reals) -> Reals:
    """``rows`` [.., width] times Q = diag(signs)·blockdiag(H, H, …), in float64.

    Args:
        rows: any numbers.
        signs: ±1, [width].
    """
    size = block_size(rows.shape[-1])
    found = (rows.astype(np.float64) * signs).reshape(-1, size)
    half = 1
    while half < size:
        pairs = found.reshape(-1, size // (2 * half), 2, half)
        found = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2).reshape(-1, size)
        half *= 2
    return np.asarray(found / np.sqrt(size)).reshape(rows.shape)


def random_signs(width: int, seed: int) -> Reals:
    """±1, [width]; the same for the same seed."""
    return np.random.default_rng(seed).choice(np.array([-1.0, 1.0]), width)

"""Factors s per channel that make weights and activations easier to quantize, and that a scaling of channels is exact with.

u is divided by s where it is made, and the weights W that read it are multiplied by s along their inputs
(`recover.look.channel_flow`).

Smoothing (SmoothQuant, arXiv 2211.10438):     s_c = max|u_c|^α / max|W_c|^(1−α)
Equalization (arXiv 1906.04721, equation 11):  s_c = √(max|V_c| / max|W_c|), V the weights that make u_c: both become
√(max|V_c|·max|W_c|)

Powers of two are exact: neither the factor nor any product with it is rounded, short of overflow and underflow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from qdq_passes.numerics.arrays import Reals

#: Factors are rounded to powers of two, or are any numbers.
Factors = Literal["pow2", "any"]

#: Factors stay between 2^-24 and 2^24, beyond which a float32 sum keeps nothing of the smaller term.
LARGEST = 2.0**24

#: How far a model with factors that are no powers of two may differ, of the largest magnitude of an output.
BOUND = 2.0**-14


def smoothing(activations: Reals, weights: Reals, alpha: float) -> Reals:
    """s [c] of the largest magnitudes of activations and weights [c]; 1 where one of them is 0."""
    return _where_both(activations, weights, lambda a, w: a**alpha / w ** (1 - alpha))


def equalizing(before: Reals, behind: Reals) -> Reals:
    """s [c] of the largest magnitudes of the weights that make and that read a channel [c]; 1 where one of them is 0."""
    return _where_both(before, behind, lambda v, w: np.sqrt(v / w))


def _where_both(first: Reals, second: Reals, of: Callable[[Reals, Reals], Reals]) -> Reals:
    both = (first > 0) & (second > 0) & np.isfinite(first) & np.isfinite(second)
    found = np.ones(first.shape)
    found[both] = np.clip(of(first[both], second[both]), 1 / LARGEST, LARGEST)
    return found


def rounded(scale: Reals, factors: Factors) -> Reals:
    """``scale`` as powers of two, the nearest in log2 (halves to even), or as it is."""
    return np.exp2(np.rint(np.log2(scale))) if factors == "pow2" else scale

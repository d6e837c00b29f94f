"""What the DPU of the Vitis line computes instead of an operator, as factors on the exact result.

Its pooling multiplies a sum by k / 2^n instead of dividing it by the count of the window, its hard sigmoid by 2731 / 2^14 instead
of 1/6; quantizers simulate that by a Mul behind the operator. Source: read in AMD Quark 0.13 and reproduced on its output."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

#: Slope of HardSigmoid that stands for the hard sigmoid of the DPU, max(0, min(1, x / 6 + 1/2)).
HARD_SIGMOID_ALPHA, HARD_SIGMOID_BETA = 1 / 6, 0.5
#: (2731 / 2^14) / (1/6).
HARD_SIGMOID_FACTOR = 2731 / 2**14 * 6

#: Square windows the DPU has a multiplier k and a shift n of its own for: side → (k, n).
_OWN = {3: (7, 6), 5: (10, 8), 6: (7, 8), 7: (21, 10), 14: (21, 12)}
#: Side beyond which no factor is applied.
_LARGEST_SIDE = 255

#: Slopes of LeakyRelu are multiples of 1/256; 26/256 comes from 0.1, which is what networks of this line use.
LEAKY_RELU_STEP = 1 / 256
LEAKY_RELU_KNOWN = {26: 0.1}

#: Bounds of a Clip are integers of 8 bits.
CLIP_RANGE = (-128, 127)


def pool_factor(window: Sequence[int]) -> float | None:
    """What the DPU's average over a window comes to, relative to the exact one; None for windows that are not square."""
    if len(window) != 2 or window[0] != window[1]:
        return None
    side = window[0]
    if side > _LARGEST_SIDE:
        return 1.0
    if side in _OWN:
        k, n = _OWN[side]
        return side * side * k / (1 << n)
    return mean_factor(side * side)


def mean_factor(count: int) -> float:
    """The factor for a mean of ``count`` elements: k / 2^n·count with k = round(2^n / count), the first n in 0 … 6 + ⌈log2 count⌉
    that comes closest."""
    candidates = range(7 + math.ceil(math.log2(count)))
    best = min(candidates, key=lambda n: abs(round((1 << n) / count) / (1 << n) - 1 / count))
    return round((1 << best) / count) / (1 << best) * count


def rounded_slope(alpha: float) -> float:
    """The multiple of 1/256 that the DPU has for a slope of LeakyRelu; halves go to the even one, as Python rounds."""
    return round(alpha / LEAKY_RELU_STEP) * LEAKY_RELU_STEP if math.isfinite(alpha) else alpha


def leaky_relu(x: npt.NDArray[np.float64], alpha: float) -> npt.NDArray[np.float64]:
    """x, below 0 times ``alpha``; element by element."""
    return np.where(x < 0, x * alpha, x)


def is_hard_sigmoid(alpha: float, beta: float) -> bool:
    """Whether HardSigmoid(alpha, beta) is the one of the DPU, to 1e-6."""
    return abs(alpha - HARD_SIGMOID_ALPHA) < 1e-6 and abs(beta - HARD_SIGMOID_BETA) < 1e-6


def sigmoid(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """1 / (1 + exp(−x)), element by element; exp of −|x| alone, which does not overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def hard_sigmoid(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """max(0, min(1, x / 6 + 1/2)), element by element."""
    return np.clip(x * HARD_SIGMOID_ALPHA + HARD_SIGMOID_BETA, 0.0, 1.0)

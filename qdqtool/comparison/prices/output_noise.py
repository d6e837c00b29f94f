"""The noise at the outputs of a quantized model, over the signal there: what prices add up to, and what edits are measured by."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
from qdq_passes.numerics.agreement import FLOOR_DB
from qdq_passes.numerics.arrays import Array

#: Noise over signal of an output that is not finite where the float model's is.
BROKEN = 10 ** (-FLOOR_DB / 10)
#: What counts as exact.
EXACT = 1e-20


class OutputNoise:
    """Sums over samples, Σ(y − x)² and Σx² of each output; those of integers and of other shapes are left out.

    Args:
        names: of the outputs in the float model.
        seen: (name, x, y) → ``y`` without what the float model hides in it.
    """

    def __init__(self, names: Iterable[str], seen: Callable[[str, Array, Array], Array] | None = None) -> None:
        self._seen = seen or (lambda name, x, y: y)
        self._noise = dict.fromkeys(names, 0.0)
        self._signal = dict.fromkeys(self._noise, 0.0)

    def add(self, name: str, x: Array, y: Array) -> bool:
        """One sample of the output ``name``: ``x`` in the float model, ``y`` in the quantized one; whether it counts."""
        if x.shape != y.shape or x.dtype.kind != "f":
            return False
        x, y = (self._seen(name, x, one).astype(np.float64) for one in (x, y))
        finite = np.isfinite(x)
        with np.errstate(all="ignore"):
            self._noise[name] += float(np.sum(np.square(y - x), where=finite))
            self._signal[name] += float(np.sum(np.square(x), where=finite))
        return True

    @property
    def powers(self) -> dict[str, float]:
        """Noise over signal of each output that has a signal; `BROKEN` where it is no number."""
        return {
            name: min(noise / signal, BROKEN) if math.isfinite(noise) else BROKEN
            for name, noise in self._noise.items()
            if (signal := self._signal[name]) > 0
        }

    @property
    def total(self) -> float:
        """Over all outputs."""
        return sum(self.powers.values())


def decibels(power: float) -> float:
    """Noise over signal, `EXACT` at the least, in dB: the more, the worse."""
    return 10 * math.log10(max(power, EXACT))

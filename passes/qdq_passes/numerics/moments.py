"""Moments of what a layer multiplies: E[x] and E[x·xᵀ] over the vectors of all samples, and the largest magnitudes.

The products of one strip are float32 (2^-24 of the largest each, of float64 data float64), their sum over strips is float64:
of N strips the error is about 2^-24·√N of what one strip has, far below the damping that `recover.look.rounding` adds. What is
kept of E[x·xᵀ] is float32: half the memory, 2^-24 of each entry."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

import numpy as np
import numpy.typing as npt

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.numerics.arrays import Array, Reals


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerStatistics:
    """What is known of a layer's input; fields that nobody asked for are None.

    Args:
        count: vectors that were seen (output positions of a convolution, rows of a product).
        absmax: [channels] float64, the largest magnitude of each input channel.
        mean: [G, K] float64, E[x].
        response: [G, R] float64, W·E[x] of the float weight.
        moment: [G, K, K] float32, E[x·xᵀ].
        integers: [G, R, K], those of the weight that were learned.
        bias: [G, R] float64, the bias that goes with them.
        scales: float64, as many as the weight has, in the order of its encoding; where they were tuned.
    """

    count: int = 0
    absmax: Reals | None = None
    mean: Reals | None = None
    response: Reals | None = None
    moment: npt.NDArray[np.float32] | None = None
    integers: Array | None = None
    bias: Reals | None = None
    scales: Reals | None = None

    def arrays(self) -> dict[str, Array]:
        """The fields that are known, by name."""
        return {
            f.name: found for f in fields(self) if f.name != "count" and (found := getattr(self, f.name)) is not None
        }


class Moments:
    """Sums over the vectors of one layer.

    Args:
        sizes: (G, K).
        second: whether E[x·xᵀ] is wanted beside E[x].
    """

    def __init__(self, sizes: tuple[int, int], *, second: bool) -> None:
        self.count = 0
        self._total = np.zeros(sizes)
        self._products = np.zeros((*sizes, sizes[1])) if second else None

    def add(self, strips: Iterable[Array]) -> None:
        """Take in strips [G, n, K]."""
        for strip in strips:
            self.count += strip.shape[1]
            self._total += strip.sum(axis=1, dtype=np.float64)
            if self._products is not None:
                for group, vectors in enumerate(strip):
                    self._products[group] += vectors.T @ vectors

    @property
    def mean(self) -> Reals:
        """E[x] [G, K]; 0 of nothing."""
        return self._total / max(self.count, 1)

    @property
    def moment(self) -> npt.NDArray[np.float32] | None:
        """E[x·xᵀ] [G, K, K]; None where it was not wanted."""
        return None if self._products is None else (self._products / max(self.count, 1)).astype(np.float32)


def merged(a: LayerStatistics, b: LayerStatistics) -> LayerStatistics:
    """The statistics of both sets of vectors together, to the last bits."""
    total = max(a.count + b.count, 1)

    def mixed(left: Array | None, right: Array | None) -> Array | None:
        if left is None or right is None:
            return None
        both = left.astype(np.float64) * (a.count / total) + right.astype(np.float64) * (b.count / total)
        return both.astype(left.dtype)

    largest = None if a.absmax is None or b.absmax is None else np.maximum(a.absmax, b.absmax)
    return LayerStatistics(
        count=a.count + b.count,
        absmax=largest,
        mean=mixed(a.mean, b.mean),
        response=mixed(a.response, b.response),
        moment=mixed(a.moment, b.moment),
    )

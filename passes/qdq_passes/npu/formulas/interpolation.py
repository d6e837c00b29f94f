"""What a Resize that interpolates reads, and with which weights: per axis some elements of the input for each of the output.

    linear   the two neighbours of x, the coordinate brought into 0 … size − 1: 1 − r and r, r = x − ⌊x⌋
    cubic    the four around x, those beyond an end are the end: Keys' kernel with a = cubic_coeff_a

Coordinates are float32, as `qdq_passes.npu.formulas.resize` computes them for the nearest element; weights are float64. On an NPU
they are integers of 2^-11 (`WEIGHT_BITS`), rounded half to even, of which the largest takes what is missing to a sum of 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdq_passes.errors import UnsupportedError
from qdq_passes.npu.formulas.resize import Indices, resize_coordinates

#: A weight is a whole number of 2^-11.
WEIGHT_BITS = 11


@dataclass(frozen=True, eq=False, kw_only=True)
class Taps:
    """What is read along one axis.

    Args:
        axis: the axis, from the start.
        indices: int64 [size of the output, n], of the input.
        weights: float64 of the same shape; each row has the sum 1.
    """

    axis: int
    indices: Indices
    weights: npt.NDArray[np.float64]

    def integers(self) -> npt.NDArray[np.int64]:
        """The weights in units of 2^-11, each row of which has the sum 2^11."""
        found = np.rint(self.weights * 2.0**WEIGHT_BITS).astype(np.int64)
        rows, largest = np.arange(len(found)), np.argmax(found, axis=1)
        found[rows, largest] += (1 << WEIGHT_BITS) - found.sum(axis=1)
        return found

    def matrix(self, size: int) -> npt.NDArray[np.float32]:
        """M, float32 [size of the output, ``size``]: along an axis of ``size`` interpolation is M·x.

        Weights that meet at an end of the input are added up in float64."""
        found = np.zeros((len(self.indices), size))
        np.add.at(found, (np.arange(len(found))[:, None], self.indices), self.weights)
        return found.astype(np.float32)


def resize_taps(
    shape: Sequence[int],
    *,
    mode: str,
    scales: npt.NDArray[np.float32] | None = None,
    sizes: Sequence[int] | None = None,
    axes: Sequence[int] = (),
    policy: str = "stretch",
    coordinate_mode: str = "half_pixel",
    cubic_coefficient: float = -0.75,
    exclude_outside: bool = False,
) -> list[Taps]:
    """The taps of each axis that changes; arguments as `resize_nearest_indices`.

    Args:
        shape: of the input.
        mode: ``"linear"`` or ``"cubic"``.
        scales: of each of ``axes``; or
        sizes: of the output.
        axes: what they are for; none means all.
        policy: keep_aspect_ratio_policy.
        coordinate_mode: coordinate_transformation_mode.
        cubic_coefficient: cubic_coeff_a.
        exclude_outside: elements beyond an end of a cubic have the weight 0, the others are brought to the sum 1.

    Raises:
        ModelError: scales or sizes are missing.
        UnsupportedError: a mode is not known.
    """
    if mode not in ("linear", "cubic"):
        raise UnsupportedError(f"a Resize in mode {mode!r} is not known")
    found = []
    for axis, x in resize_coordinates(
        shape, scales=scales, sizes=sizes, axes=axes, policy=policy, coordinate_mode=coordinate_mode
    ).items():
        wide = x.astype(np.float64)
        if mode == "linear":
            indices, weights = _linear(wide, shape[axis])
        else:
            indices, weights = _cubic(wide, shape[axis], cubic_coefficient, exclude_outside=exclude_outside)
        found.append(Taps(axis=axis, indices=indices, weights=weights))
    return found


def _linear(x: npt.NDArray[np.float64], size: int) -> tuple[Indices, npt.NDArray[np.float64]]:
    x = np.clip(x, 0, size - 1)
    first = np.floor(x)
    rest = x - first
    indices = np.minimum(np.stack([first, first + 1], axis=1), size - 1).astype(np.int64)
    return indices, np.stack([1 - rest, rest], axis=1)


def _cubic(
    x: npt.NDArray[np.float64], size: int, a: float, *, exclude_outside: bool
) -> tuple[Indices, npt.NDArray[np.float64]]:
    first = np.floor(x)
    rest = x - first
    near, far = _keys_near, _keys_far
    weights = np.stack([far(rest + 1, a), near(rest, a), near(1 - rest, a), far(2 - rest, a)], axis=1)
    around = (first[:, None] + np.arange(-1, 3)).astype(np.int64)
    if exclude_outside:
        weights = np.where((around < 0) | (around >= size), 0.0, weights)
        weights = weights / weights.sum(axis=1, keepdims=True)
    return np.clip(around, 0, size - 1), weights


def _keys_near(d: npt.NDArray[np.float64], a: float) -> npt.NDArray[np.float64]:
    """Of distances up to 1."""
    return np.asarray(((a + 2) * d - (a + 3)) * d * d + 1)


def _keys_far(d: npt.NDArray[np.float64], a: float) -> npt.NDArray[np.float64]:
    """Of distances from 1 to 2."""
    return np.asarray(((a * d - 5 * a) * d + 8 * a) * d - 4 * a)

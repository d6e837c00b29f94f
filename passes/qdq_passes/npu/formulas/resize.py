"""Resize: which elements of the input it takes, and with which weights, along each axis.

To the nearest one, as onnxruntime's CPU provider computes it, in float32:

    x = where element i of the output lies in the input      coordinate_transformation_mode
    index = x rounded to a whole number                       nearest_mode
    0 ≤ index < size                                          what lies outside is clamped

An axis with scale 1 stays as it is, and so does everything where no size changes. half_pixel_symmetric and the middle of
tf_crop_and_resize are computed in float64, as there. Source: onnxruntime's upsamplebase.h, checked against 1.23.2 and 1.31.1 on
every combination of modes, small sizes and scales. The two do not agree on what is a half: see `TIE`.

A Resize that interpolates reads some elements of the input for each of the output:

    linear   the two neighbours of x, the coordinate brought into 0 … size − 1: 1 − r and r, r = x − ⌊x⌋
    cubic    the four around x, those beyond an end are the end: Keys' kernel with a = cubic_coeff_a

Coordinates are float32, as for the nearest element; weights are float64. On an NPU
they are integers of 2^-11 (`WEIGHT_BITS`), rounded half to even, of which the largest takes what is missing to a sum of 1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError, UnsupportedError

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]

#: How far from a half, in float32, a coordinate may be and still count as one: newer onnxruntimes (1.31.1) mend with it what
#: rounding does to 14.5 = 4.5 / 0.3 − 0.5. In older ones (1.23.2) it is 0.
TIE = np.float32(1e-6)
#: Elements along an axis at most: indices and coordinates of all of them are held.
LONGEST = 1 << 24

#: Stands for the operators before opset 11, which have no nearest_mode: up for smaller outputs, else toward 0.
BEFORE_OPSET_11 = ""


def resize_nearest_indices(
    shape: Sequence[int],
    *,
    scales: npt.NDArray[np.float32] | None = None,
    sizes: Sequence[int] | None = None,
    axes: Sequence[int] = (),
    policy: str = "stretch",
    coordinate_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
    roi: npt.NDArray[np.float32] | None = None,
    tie: np.float32 = TIE,
) -> list[Indices]:
    """Per axis of the input the indices, int64 [size of the output], that are gathered; −1 where the extrapolation value stands.

    Args:
        shape: of the input.
        scales: float32, one per axis of ``axes``; or
        sizes: of the output, likewise.
        axes: what they are for; none means all.
        policy: keep_aspect_ratio_policy, for ``sizes``.
        coordinate_mode: coordinate_transformation_mode.
        nearest_mode: nearest_mode, or `BEFORE_OPSET_11`.
        roi: float32 [starts of all of ``axes``, ends], for tf_crop_and_resize.
        tie: see `TIE`; where 0 gives other indices, runtimes do not agree.

    Raises:
        ModelError: scales or sizes are missing, or are not one per axis.
        UnsupportedError: a mode is not known.
    """
    chosen = [axis % len(shape) for axis in axes] if axes else list(range(len(shape)))
    output, factors = _output(shape, chosen, scales, sizes, policy)
    if output == list(shape):
        return [np.arange(size, dtype=np.int64) for size in shape]
    starts, ends = np.zeros(len(shape), np.float32), np.ones(len(shape), np.float32)
    if roi is not None and roi.size:
        starts[chosen], ends[chosen] = roi.reshape(2, -1)
    found = []
    for axis, (size, resized, factor) in enumerate(zip(shape, output, factors, strict=True)):
        if factor == 1 and (len(shape) > 1 or resized == size):
            found.append(np.arange(resized, dtype=np.int64))
            continue
        x = _coordinates(coordinate_mode, factor, resized, size, starts[axis], ends[axis])
        indices = np.clip(_nearest(x, nearest_mode, tie, smaller=bool(factor < 1)), 0, size - 1)
        if coordinate_mode == "tf_crop_and_resize":
            indices = np.where((x < 0) | (x > size - 1), -1, indices)
        found.append(indices)
    return found


def resize_coordinates(
    shape: Sequence[int],
    *,
    scales: npt.NDArray[np.float32] | None = None,
    sizes: Sequence[int] | None = None,
    axes: Sequence[int] = (),
    policy: str = "stretch",
    coordinate_mode: str = "half_pixel",
) -> dict[int, Floats]:
    """By axis that changes where the elements of the output lie in the input, float32 [size of the output].

    Arguments and errors as `resize_nearest_indices`.
    """
    chosen = [axis % len(shape) for axis in axes] if axes else list(range(len(shape)))
    output, factors = _output(shape, chosen, scales, sizes, policy)
    zero, one = np.float32(0), np.float32(1)
    return {
        axis: _coordinates(coordinate_mode, factor, resized, size, zero, one)
        for axis, (size, resized, factor) in enumerate(zip(shape, output, factors, strict=True))
        if output != list(shape) and (factor != 1 or resized != size)
    }


def _output(
    shape: Sequence[int],
    axes: list[int],
    scales: npt.NDArray[np.float32] | None,
    sizes: Sequence[int] | None,
    policy: str,
) -> tuple[list[int], Floats]:
    """(sizes of the output, factors), of all axes."""
    given = scales if scales is not None else sizes
    if given is None or len(given) != len(axes):
        raise ModelError(f"a Resize needs a scale or a size for each of {len(axes)} axes")
    output, factors = list(shape), np.ones(len(shape), np.float32)
    if scales is not None:
        factors[axes] = scales
        written = factors * np.array(shape, np.float32)
        _refuse_long(written)
        return [int(size) for size in written], factors
    assert sizes is not None
    for axis, size in zip(axes, sizes, strict=True):
        output[axis] = int(size)
    _refuse_long(np.array(output, np.float32))
    factors = np.asarray(np.array(output, np.float32) / np.array(shape, np.float32), np.float32)
    if policy != "stretch":
        one = (min if policy == "not_larger" else max)(factors[axes])
        _refuse_long(one * np.array(shape, np.float32)[axes])
        for axis in axes:
            factors[axis] = one
            output[axis] = int(np.floor(np.float64(one * np.float32(shape[axis])) + 0.5))
    return output, factors


def _refuse_long(sizes: Floats) -> None:
    if not (np.abs(sizes) <= LONGEST).all():
        raise UnsupportedError(f"a Resize to more than {LONGEST:,} elements along an axis")


def _coordinates(mode: str, factor: np.float32, resized: int, size: int, start: np.float32, end: np.float32) -> Floats:
    half, i = np.float32(0.5), np.arange(resized, dtype=np.float32)
    new, old = np.float32(resized), np.float32(size)
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and resized > 1):
        return (i + half) / factor - half
    if mode == "asymmetric":
        return i / factor
    if mode == "tf_half_pixel_for_nn":
        return (i + half) / factor
    if mode == "pytorch_half_pixel" or (mode == "align_corners" and resized == 1):
        return np.zeros(resized, np.float32)
    if mode == "align_corners":
        return i * (old - 1) / (new - 1)
    if mode == "half_pixel_symmetric":
        offset = old / 2 * (1 - new / (factor * old))
        return (np.float64(offset) + (i.astype(np.float64) + 0.5) / np.float64(factor) - 0.5).astype(np.float32)
    if mode != "tf_crop_and_resize":
        raise UnsupportedError(f"a Resize with coordinate_transformation_mode {mode!r} is not known")
    if resized > 1:
        return start * (old - 1) + i * (end - start) * (old - 1) / (new - 1)
    return np.full(resized, 0.5 * np.float64(start + end) * np.float64(old - 1)).astype(np.float32)


def _nearest(x: Floats, mode: str, tie: np.float32, *, smaller: bool) -> Indices:
    floor, ceil = np.floor(x), np.ceil(x)
    if mode in ("round_prefer_floor", "round_prefer_ceil"):
        rest = x - floor
        at_tie = np.abs(rest - np.float32(0.5)) <= tie
        up = np.where(at_tie, mode == "round_prefer_ceil", rest > 0.5)
        return (floor + up).astype(np.int64)
    known = {"floor": floor, "ceil": ceil, BEFORE_OPSET_11: ceil if smaller else np.trunc(x)}
    if mode not in known:
        raise UnsupportedError(f"a Resize with nearest_mode {mode!r} is not known")
    return known[mode].astype(np.int64)


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

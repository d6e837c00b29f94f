"""How well two tensors agree: SQNR, largest difference, cosine, share of equal elements, LSB. Sums in float64, streaming.

With reference x and tested y, over all samples:

    SQNR   = 10·log10(Σx² / Σ(x − y)²)         dB; None when no element differs
    cosine = Σxy / sqrt(Σx²·Σy²)               1 when both are all zero, 0 when one is
    exact  = share of elements with x == y     NaN equals NaN, −0 equals 0
    LSB    = max |x − y| / scale               in units of the scale x or y is stored with

Elements where x is not finite take part in *exact* only: an attention mask of −inf says nothing about noise. Where x is
finite and y is not, y is broken: SQNR is `FLOOR_DB`, the largest difference None. An all-zero x with a y that is not has
`FLOOR_DB` too; `CEILING_DB` stands where elements differ without any measurable noise. Integers and booleans are compared
as numbers, strings by *exact* alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError
from qdq_passes.numerics.arrays import Array

Sums = npt.NDArray[np.float64]

#: SQNR where the formula gives −inf (JSON has no infinity), and the least that is reported.
FLOOR_DB = -300.0
#: SQNR where elements differ but the sum of squares is 0: where x is not finite, or the squares underflow.
CEILING_DB = 300.0


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The figures of one tensor.

    Args:
        sqnr_db: signal to quantization noise ratio in dB; None when no element differs.
        max_abs: largest |x − y|, in the unit of the tensor; None where y is not finite and x is.
        cosine: cosine of the angle between x and y, −1..1.
        exact: share of equal elements, 0..1.
        lsb: largest difference in units of the scale; None without a scale.
        count: elements compared.
    """

    sqnr_db: float | None
    max_abs: float | None
    cosine: float
    exact: float
    lsb: float | None = None
    count: int = 0

    @property
    def is_exact(self) -> bool:
        """Whether every element is equal."""
        return self.exact == 1.0

    def to_json(self) -> dict[str, Any]:
        """JSON-ready: ``sqnr_db, max_abs, cosine, exact``, and ``lsb`` where there is a scale."""
        data = {"sqnr_db": self.sqnr_db, "max_abs": self.max_abs, "cosine": self.cosine, "exact": self.exact}
        return data if self.lsb is None else {**data, "lsb": self.lsb}


@dataclass(frozen=True, kw_only=True)
class SliceAgreement:
    """The SQNR of one index of an axis.

    Args:
        index: index along the axis.
        sqnr_db: as in `Agreement`, over this slice alone.
        exact: share of equal elements in this slice.
    """

    index: int
    sqnr_db: float | None
    exact: float

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"index": self.index, "sqnr_db": self.sqnr_db, "exact": self.exact}


def worst_first(sqnr_db: float | None) -> float:
    """Sort key that puts the lowest SQNR first and exact tensors last."""
    return math.inf if sqnr_db is None else sqnr_db


def alike(array: Array, like: Array) -> Array:
    """``array``; ``like`` where that has another shape, as shapes that hang on values may: nothing can be said of it then."""
    return array if array.shape == like.shape else like


def difference(after: Array, before: Array, like: Array | None = None) -> Array:
    """``after`` less ``before``: 0 where they are the same, infinities (of an attention mask) too; all 0, like ``like``, where
    not all three have one shape, as those that hang on values may not."""
    if like is not None and not after.shape == before.shape == like.shape:
        return np.zeros_like(like)
    return np.subtract(
        after, before, out=np.zeros(np.shape(after), np.result_type(after, before)), where=after != before
    )


def worst(figures: list[float | None]) -> float | None:
    """The lowest SQNR of several; None when all are exact."""
    return min(figures, key=worst_first, default=None)


class Accumulator:
    """Sums of one tensor over samples; holds no tensor.

    Args:
        axis: also keep the sums per index of this axis (negative counts from the end); every sample must have as many.
        scale: the scale y is stored with, for LSB; broadcast against the tensor.
    """

    def __init__(self, *, axis: int | None = None, scale: Array | float | None = None) -> None:
        self.axis = axis
        self.scale = None if scale is None else np.asarray(scale, np.float64)
        self._sums: Sums = np.zeros((len(_ROWS), 0 if axis is not None else 1))
        self._max_abs = 0.0
        self._lsb = 0.0

    def add(self, x: Array, y: Array) -> None:
        """Take in one sample: reference ``x`` and tested ``y``, of one shape.

        Raises:
            ModelError: the shapes differ, there is no such axis, or its length differs from the sample before.
        """
        if x.shape != y.shape:
            raise ModelError(f"shape {list(x.shape)} on one side, {list(y.shape)} on the other")
        xs, ys = _slices(x, self.axis), _slices(y, self.axis)
        scale = self.scale if self.scale is None or self.scale.size == 1 else np.broadcast_to(self.scale, x.shape)
        scales = _slices(scale, self.axis) if scale is not None and scale.size > 1 else None
        sums = np.zeros((len(_ROWS), len(xs)))
        wide = max(1, _AT_ONCE // max(1, len(xs)))
        for part in (slice(begin, begin + wide) for begin in range(0, max(1, xs.shape[1]), wide)):
            sums += self._add_part(xs[:, part], ys[:, part], None if scales is None else scales[:, part])
        if self._sums.shape[1] == 0:
            self._sums = np.zeros_like(sums)
        if self._sums.shape != sums.shape:
            raise ModelError(
                f"axis {self.axis} has {sums.shape[1]} entries, {self._sums.shape[1]} in the samples before"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            self._sums += sums

    def merge(self, other: Accumulator) -> None:
        """Take in the samples of ``other``, which has the same axis and scale: as adding them one by one, if it has one."""
        if self._sums.shape[1] == 0:
            self._sums = np.zeros_like(other._sums)
        with np.errstate(over="ignore", invalid="ignore"):
            self._sums += other._sums
        self._max_abs, self._lsb = max(self._max_abs, other._max_abs), max(self._lsb, other._lsb)

    def _add_part(self, x: Array, y: Array, scale: Array | None) -> Sums:
        """The sums of some columns, and their largest differences; ``scale`` where elements have scales of their own."""
        equal, sums = _equal(x, y), np.zeros((len(_ROWS), len(x)))
        sums[_COUNT] = x.shape[1]
        sums[_EQUAL] = equal.sum(1)
        if x.dtype.kind in "OSU":
            return sums
        with np.errstate(over="ignore", invalid="ignore"):
            difference = _add_numbers(x, y, equal, sums)
            if difference.size:
                self._max_abs = max(self._max_abs, float(difference.max()))
            if difference.size and self.scale is not None:
                lsb = difference.max() / self.scale if scale is None else np.divide(difference, scale)
                self._lsb = max(self._lsb, float(lsb.max()))
        return sums

    def result(self) -> Agreement:
        """The figures of everything added so far."""
        with np.errstate(over="ignore", invalid="ignore"):
            total = self._sums.sum(1)
        broken = bool(total[_BROKEN])
        return Agreement(
            sqnr_db=_sqnr(total),
            max_abs=None if broken or math.isinf(self._max_abs) else self._max_abs,
            cosine=_cosine(total),
            exact=_share(total),
            lsb=None if self.scale is None or broken or math.isinf(self._lsb) else self._lsb,
            count=int(total[_COUNT]),
        )

    def per_slice(self) -> list[SliceAgreement]:
        """The slices along ``axis``, worst first (then by index); one slice without an axis."""
        columns = enumerate(self._sums.T)
        slices = [SliceAgreement(index=i, sqnr_db=_sqnr(column), exact=_share(column)) for i, column in columns]
        return sorted(slices, key=lambda s: (worst_first(s.sqnr_db), s.index))


def agreement(x: Array, y: Array, *, scale: Array | float | None = None) -> Agreement:
    """The figures of one pair of tensors, reference first."""
    accumulator = Accumulator(scale=scale)
    accumulator.add(x, y)
    return accumulator.result()


def per_slice(x: Array, y: Array, axis: int) -> list[SliceAgreement]:
    """The SQNR of each index of ``axis``, worst first: a good total hides a dead slice."""
    accumulator = Accumulator(axis=axis)
    accumulator.add(x, y)
    return accumulator.per_slice()


#: Elements that are compared at once: copies in float64 of all would be many times what the tensors hold.
_AT_ONCE = 1 << 20
_ROWS = _COUNT, _EQUAL, _BROKEN, _XX, _YY, _XY, _NOISE = range(7)


def _slices(array: npt.NDArray[Any], axis: int | None) -> npt.NDArray[Any]:
    """``array`` as [length of axis, rest]; one row without an axis."""
    if axis is None:
        return array.reshape(1, -1)
    if not -array.ndim <= axis < array.ndim:
        raise ModelError(f"no axis {axis} in a tensor of shape {list(array.shape)}")
    moved = np.moveaxis(array, axis, 0)
    return moved.reshape(len(moved), math.prod(moved.shape[1:]))


def _add_numbers(x: Array, y: Array, equal: npt.NDArray[np.bool_], sums: Sums) -> Sums:
    """Fill in the sums of numeric rows; returns |x − y|, 0 where an element is not finite."""
    a, b = x.astype(np.float64), y.astype(np.float64)
    difference = a - b
    _fill(sums, a, b, difference)
    if not np.isfinite(sums).all():  # some element is not finite: once more without those
        broken = np.isfinite(a) & ~np.isfinite(b)
        counted = np.isfinite(a) & ~broken
        a, b = np.where(counted, a, 0.0), np.where(counted, b, 0.0)
        difference = np.where(equal, 0.0, a - b)
        _fill(sums, a, b, difference)
        sums[_BROKEN] = broken.sum(1)
    return np.abs(difference, out=difference)


def _fill(sums: Sums, a: Sums, b: Sums, difference: Sums) -> None:
    for row, left, right in ((_XX, a, a), (_YY, b, b), (_XY, a, b), (_NOISE, difference, difference)):
        sums[row] = np.einsum("ij,ij->i", left, right)


def _equal(x: Array, y: Array) -> npt.NDArray[np.bool_]:
    """Elementwise equality in which NaN equals NaN."""
    equal: npt.NDArray[np.bool_] = np.asarray(x == y)
    return equal if x.dtype.kind in "OSUiub" else equal | ((x != x) & (y != y))


def _sqnr(sums: Sums) -> float | None:
    if sums[_EQUAL] == sums[_COUNT]:
        return None
    if sums[_BROKEN] or not sums[_XX]:
        return FLOOR_DB
    if not sums[_NOISE]:
        return CEILING_DB
    if math.isinf(sums[_XX]) or math.isinf(sums[_NOISE]):
        return FLOOR_DB
    return max(FLOOR_DB, 10 * (math.log10(sums[_XX]) - math.log10(sums[_NOISE])))


def _cosine(sums: Sums) -> float:
    if not (sums[_XX] and sums[_YY]):
        return 1.0 if sums[_XX] == sums[_YY] else 0.0
    cosine = float(sums[_XY]) / (math.sqrt(sums[_XX]) * math.sqrt(sums[_YY]))
    return float(np.clip(cosine, -1.0, 1.0)) if math.isfinite(cosine) else 0.0


def _share(sums: Sums) -> float:
    return float(sums[_EQUAL] / sums[_COUNT]) if sums[_COUNT] else 1.0

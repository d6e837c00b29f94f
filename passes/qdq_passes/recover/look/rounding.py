"""Rounding that compensates: integers of a weight chosen for the least error of what the layer computes, not of the weight.

A row w of W (K numbers) becomes v on its grid; over the inputs x the squared error of the output is E[((w − v)·x)²] = e·H·eᵀ
with e = w − v and H = E[x·xᵀ] [K, K]. With H = (I + A)·D·(I + A)ᵀ, A strictly upper triangular and D diagonal,

    e·H·eᵀ = Σ_k D_k (e_k + Σ_{j<k} e_j·A_jk)²,

so that going through the columns each v_k is the number on the grid nearest to w_k + Σ_{j<k} e_j·A_jk: each error is handed
on to the columns that are still free (the greedy solution of GPTQ, arXiv 2210.17323, in the form of LDLQ, arXiv 2307.13304,
which needs one Cholesky factorization and no inverse). Columns of large H_kk go first. Sweeps then move one column at a time
to the best number on the grid while all others stay, w_k + Σ_{j≠k} e_j·H_jk / H_kk: the error never grows. A row that still
has a larger error than rounding to the nearest gives is rounded to the nearest.

H may be singular (a channel that is always 0, fewer vectors than K): a part of its mean diagonal, the damping, is added to
it. Everything is float64, products are computed on one thread: the same integers on any number of cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.numerics.arrays import Array, Reals
from qdq_passes.numerics.moments import LayerStatistics
from qdq_passes.numerics.one_thread import one_thread
from qdq_passes.qdq.look.weighted_layers import WeightedLayer

#: Columns that are rounded before what they hand on is added to all others by one matrix product.
BLOCK = 128


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The numbers that a weight may have: (q − zero)·scale, low ≤ q ≤ high, rounded to the weight's float type.

    Args:
        scale: [G, R, K] or broadcasting to it.
        zero: likewise.
        low: smallest integer.
        high: largest integer.
        dtype: float type of the weight.
    """

    scale: Array
    zero: Array
    low: int
    high: int
    dtype: np.dtype[Any]

    def values(self, integers: Array) -> Reals:
        """What ``integers`` [G, R, K] stand for, as DequantizeLinear computes it."""
        wide = np.float64 if self.dtype == np.float64 else np.float32
        real = ((integers - self.zero).astype(wide) * self.scale.astype(wide)).astype(self.dtype)
        return np.asarray(real, np.float64)

    def laid_out(self, shape: tuple[int, ...]) -> Grid:
        """This grid with a scale and a zero for each number of ``shape``, in float64."""
        scale, zero = (np.broadcast_to(a.astype(np.float64), shape) for a in (self.scale, self.zero))
        return Grid(scale=scale, zero=zero, low=self.low, high=self.high, dtype=self.dtype)


def quadratic_error(rows: Array, values: Array, moment: Array) -> Reals:
    """(w − v)·H·(w − v)ᵀ of each row: [G, R] of rows and values [G, R, K] and H [G, K, K]."""
    error = rows.astype(np.float64) - values
    return np.asarray(np.einsum("grk,grk->gr", error @ moment.astype(np.float64), error))


@one_thread()
def round_rows(
    rows: Array, grid: Grid, nearest: Array, moment: Array, *, damping: float = 0.01, sweeps: int = 2
) -> Array:
    """Integers [G, R, K] of the rows, of an error that is nowhere larger than that of ``nearest``.

    Args:
        rows: the float weight, [G, R, K].
        grid: what it is rounded to.
        nearest: integers of rounding to the nearest, [G, R, K].
        moment: H, [G, K, K], symmetric and not negative.
        damping: part of the mean of H's diagonal that is added to it.
        sweeps: how often each column is tried again.
    """
    weight, plain = rows.astype(np.float64), nearest.astype(np.float64)
    order = np.argsort(-np.einsum("gkk->gk", moment), axis=1, kind="stable")
    column = order[:, None, :]
    laid = grid.laid_out(weight.shape)
    sorted_grid = Grid(
        scale=np.take_along_axis(laid.scale, column, 2),
        zero=np.take_along_axis(laid.zero, column, 2),
        low=grid.low,
        high=grid.high,
        dtype=grid.dtype,
    )
    turned = np.stack([h[np.ix_(one, one)] for h, one in zip(moment, order, strict=True)]).astype(
        np.float64, copy=False
    )
    _damp(turned, damping)
    work = np.take_along_axis(weight, column, 2)
    found = _compensated(work, sorted_grid, _feedback(turned))
    for _ in range(sweeps):
        if not _swept(work, sorted_grid, found, turned):
            break
    integers = np.empty_like(found)
    np.put_along_axis(integers, column, found, 2)
    better = quadratic_error(weight, grid.values(integers), moment) < quadratic_error(
        weight, grid.values(plain), moment
    )
    return np.where(better[..., None], integers, plain)


def why_unseen(statistics: Mapping[str, LayerStatistics], layers: Sequence[WeightedLayer], *, centred: bool) -> str:
    """Why ``statistics`` do not do for ``layers``; nothing if they do."""
    for layer in layers:
        seen, (groups, _, width) = statistics.get(layer.name), layer.form.sizes
        if seen is None or seen.moment is None or (centred and seen.mean is None):
            return f"the statistics have no second moments of {layer.name}"
        if seen.moment.shape != (groups, width, width):
            return (
                f"the statistics of {layer.name} are of moments {list(seen.moment.shape)}, not {[groups, width, width]}"
            )
    return ""


def rounding_moment(
    statistics: Mapping[str, LayerStatistics], layers: Sequence[WeightedLayer], *, centred: bool
) -> Array:
    """H [G, K, K] of all ``layers`` together; ``centred`` about the mean of x."""
    seen = [one for layer in layers if (one := statistics.get(layer.name)) is not None]
    total = max(sum(one.count for one in seen), 1)
    found: Array | None = None
    for one in seen:
        assert one.moment is not None
        moment = one.moment.astype(np.float64)
        if centred and one.mean is not None:
            moment -= one.mean[:, :, None] * one.mean[:, None, :]
        part = moment * (one.count / total) if len(seen) > 1 else moment
        found = part if found is None else found + part
    assert found is not None
    return found


def _damp(moment: Reals, damping: float) -> None:
    """Add a part of its mean diagonal to the diagonal of H [G, K, K], in place; an H of zeros becomes the identity."""
    diagonal = np.einsum("gkk->gk", moment)
    mean = diagonal.mean(axis=1, keepdims=True)
    diagonal += np.where(mean > 0, mean * max(damping, 1e-9), 1.0)


def _feedback(moment: Reals) -> Reals:
    """A of H = (I + A)·D·(I + A)ᵀ, with ones on its diagonal: the Cholesky factor of H read from its end, columns divided by
    their diagonal. What is not positive definite in float64 (a moment of float32 noise) is damped further until it is."""
    extra, tried = 0.0, moment
    while True:
        try:
            upper = np.linalg.cholesky(tried[:, ::-1, ::-1])[:, ::-1, ::-1]
        except np.linalg.LinAlgError:
            extra, tried = max(10 * extra, 1e-6), moment.copy()
            _damp(tried, extra)
            continue
        upper /= np.einsum("gkk->gk", upper)[:, None, :].copy()
        return np.asarray(upper)


def _nearest(wanted: Reals, grid: Grid, column: int) -> tuple[Reals, Reals]:
    """Integers nearest to ``wanted`` [G, R] on the grid of a column, and their values."""
    scale, zero = grid.scale[..., column], grid.zero[..., column]
    integers = np.clip(np.rint(wanted / scale + zero), grid.low, grid.high)
    return integers, (integers - zero) * scale


def _compensated(work: Reals, grid: Grid, upper: Reals) -> Reals:
    """Integers of the columns in their order, each with what the columns before it hand on."""
    error, found, width = np.zeros_like(work), np.empty_like(work), work.shape[2]
    for start in range(0, width, BLOCK):
        stop = min(start + BLOCK, width)
        handed = error[..., :start] @ upper[:, :start, start:stop]
        for k in range(start, stop):
            found[..., k], values = _nearest(work[..., k] + handed[..., k - start], grid, k)
            error[..., k] = work[..., k] - values
            handed[..., k - start + 1 :] += error[..., k, None] * upper[:, None, k, k + 1 : stop]
    return found


def _swept(work: Reals, grid: Grid, found: Reals, moment: Reals) -> bool:
    """Move each column of ``found`` to its best integers while the others stay; whether any moved."""
    error, width, moved = work - (found - grid.zero) * grid.scale, work.shape[2], False
    for start in range(0, width, BLOCK):
        stop = min(start + BLOCK, width)
        slope = error @ moment[:, :, start:stop]
        for k in range(start, stop):
            own = error[..., k]
            integers, values = _nearest(work[..., k] + slope[..., k - start] / moment[:, k, k, None] - own, grid, k)
            if np.array_equal(integers, found[..., k]):
                continue
            change = (work[..., k] - values) - own
            slope[..., k - start :] += change[..., None] * moment[:, None, k, k:stop]
            error[..., k] += change
            found[..., k], moved = integers, True
    return moved

"""Scales of a weight chosen for the least error of what the layer computes, not of the weight.

A row w of W (K numbers) is stored as v = s∘(q − z): each of its segments, the numbers of one scale, has an s. Over inputs x of
second moments H = E[x·xᵀ] it costs e·H·eᵀ with e = w − v. Two searches, both along rows that do not touch each other:

nearest       segment by segment, while all others stay, the best of `RATIOS` times the scale that is there, each with the
              integers rounded to the nearest, and with the s that fits those integers best,
                  s = (n·H_bb·w_b + n·c) / (n·H_bb·n),  n = q − z, c what the errors of the other segments add;
              then all segments anew. The error never grows.
compensated   integers as `round_rows` chooses them; then the scales of all segments of a row together that fit them best, one
              linear system N·H·Nᵀ s = N·H·w with a row of N for each segment; then the integers for these, and so on.

Where one scale serves all rows their errors are added up. Powers of two are halved and doubled, and never fitted. A row (or the
whole weight) for which nothing better was found keeps what it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.numerics.arrays import Array, Reals
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.layer_form import LayerForm
from qdq_passes.numerics.one_thread import one_thread
from qdq_passes.recover.look.rounding import Grid, quadratic_error, round_rows

#: What the scale that is there is multiplied by: what clips the largest numbers, and a little more.
RATIOS = tuple(round(0.5 + 0.05 * step, 2) for step in range(14) if step != 10)
#: The same where scales are powers of two.
POWERS = (0.25, 0.5, 2.0)
#: A fitted scale stays within this factor of the one before it.
FARTHEST = 2.0
SWEEPS = 2
ROUNDS = 4

#: Integers [G, R, K] of rows on a grid.
Rounding = Callable[[Grid], Reals]


@dataclass(frozen=True, eq=False, kw_only=True)
class Segments:
    """Which numbers of a row share a scale.

    Args:
        of: [K], the segment of each number; the same in every row.
        index: [G, R, S], the place of each segment's scale among those of the encoding.
        is_one: one scale serves all rows.
    """

    of: npt.NDArray[np.int64]
    index: npt.NDArray[np.int64]
    is_one: bool

    @property
    def count(self) -> int:
        """Scales in a row."""
        return int(self.index.shape[2])


def segments_of(encoding: Encoding, form: LayerForm) -> Segments | str:
    """How the scales of ``encoding`` lie along the rows of ``form``; or why they cannot be searched row by row."""
    groups, outputs, width = form.sizes
    if encoding.axis is None:
        of = np.zeros(width, np.int64)
        return Segments(of=of, index=np.zeros((groups, outputs, 1), np.int64), is_one=True)
    numbers = np.arange(len(encoding.scale)).reshape(encoding.shape)
    place = form.rows(np.broadcast_to(encoding.granularity.expand(numbers, form.shape), form.shape))
    _, first, of = np.unique(place[0, 0], return_index=True, return_inverse=True)
    index = place[:, :, first]
    if not np.array_equal(index[:, :, of], place) or np.unique(index).size != index.size:
        return "its scales do not run along its outputs"
    return Segments(of=of.astype(np.int64), index=index, is_one=False)


@one_thread()
def search_scales(
    rows: Array,
    grid: Grid,
    segments: Segments,
    moment: Array,
    *,
    rounding: Rounding | None = None,
    damping: float = 0.01,
    power_of_two: bool = False,
) -> tuple[Reals, float, float]:
    """Scales [G, R, S], and the error of all rows before and with them; no row has a larger one than before.

    Args:
        rows: the float weight, [G, R, K].
        grid: what it is on now.
        segments: where its scales are.
        moment: H, [G, K, K].
        rounding: how integers are chosen; to the nearest where nothing is said.
        damping: part of the mean of H's diagonal that is added to it while searching.
        power_of_two: scales stay powers of two.
    """
    exact, weight = moment.astype(np.float64), rows.astype(np.float64)
    damped, width = exact.copy(), rows.shape[2]
    mean = np.einsum("gkk->g", exact) / width
    np.einsum("gkk->gk", damped)[...] += np.where(mean > 0, mean * damping, 1.0)[:, None]
    laid, round_to = grid.laid_out(weight.shape), rounding or nearest_on(weight)
    first = np.array([np.flatnonzero(segments.of == s)[0] for s in range(segments.count)])
    start, problem = laid.scale[..., first], _Problem(weight, laid, segments, damped)
    if rounding is None:
        tried = iter([problem.descended(start, POWERS if power_of_two else RATIOS, fits=not power_of_two)])
    elif power_of_two:
        tried = iter([start * factor for factor in POWERS])
    else:
        tried = problem.fitted(start, round_to)
    best, error = start, _error(weight, laid, round_to, exact, segments)
    before = _total(error, segments)
    for scale in tried:
        kept = scale.astype(grid.dtype).astype(np.float64)  # as it is stored
        found = _error(weight, _at(laid, kept, segments), round_to, exact, segments)
        better = found < error
        best, error = np.where(better[..., None], kept, best), np.where(better, found, error)
    return best, before, _total(error, segments)


def nearest_on(weight: Reals) -> Rounding:
    """Rounding ``weight`` to the nearest."""
    return lambda grid: np.clip(np.rint(weight / grid.scale + grid.zero), grid.low, grid.high)


def compensating(weight: Reals, moment: Array, *, damping: float, sweeps: int) -> Rounding:
    """Rounding as `round_rows` does it."""

    def of(grid: Grid) -> Reals:
        plain = nearest_on(weight)(grid)
        return np.asarray(round_rows(weight, grid, plain, moment, damping=damping, sweeps=sweeps))

    return of


def _at(grid: Grid, scale: Reals, segments: Segments) -> Grid:
    return replace(grid, scale=scale[..., segments.of])


def _error(weight: Reals, grid: Grid, rounding: Rounding, moment: Reals, segments: Segments) -> Reals:
    """Of each row, [G, R]; the sum of all where one scale serves them all."""
    found = quadratic_error(weight, grid.values(rounding(grid)), moment)
    return np.broadcast_to(found.sum(), found.shape) if segments.is_one else found


def _total(error: Reals, segments: Segments) -> float:
    return float(error.flat[0] if segments.is_one else error.sum())


@dataclass(frozen=True, eq=False)
class _Problem:
    weight: Reals
    grid: Grid
    segments: Segments
    moment: Reals

    def _shared(self, numbers: Reals) -> Reals:
        """``numbers`` [G, R] of rows, their sum where they have one scale."""
        return np.broadcast_to(numbers.sum(), numbers.shape) if self.segments.is_one else numbers

    def descended(self, scale: Reals, ratios: tuple[float, ...], *, fits: bool) -> Reals:
        """``scale`` improved segment by segment, integers rounded to the nearest."""
        scale, grid = scale.copy(), _at(self.grid, scale, self.segments)
        error = self.weight - (nearest_on(self.weight)(grid) - grid.zero) * grid.scale
        for _ in range(SWEEPS if self.segments.count > 1 else 1):
            before = scale.copy()
            for segment in range(self.segments.count):
                self._improve(scale, error, segment, ratios, fits=fits)
            if np.array_equal(before, scale):
                break
        return scale

    def _improve(self, scale: Reals, error: Reals, segment: int, ratios: tuple[float, ...], *, fits: bool) -> None:
        """Give one segment of each row its best scale, in place, and ``error`` what is left with it."""
        columns = np.flatnonzero(self.segments.of == segment)
        own = self.moment[:, columns[:, None], columns]
        weight, zero, kept = self.weight[..., columns], self.grid.zero[..., columns], error[..., columns]
        across = error @ self.moment[:, :, columns] - kept @ own
        start, best_scale, best_error = scale[..., segment].copy(), scale[..., segment].copy(), kept.copy()

        def cost(left: Reals) -> Reals:
            return self._shared(((left @ own + 2 * across) * left).sum(axis=2))

        def offers() -> Iterator[tuple[Reals, Reals]]:
            for ratio in ratios:
                at = start * ratio
                steps = integers(at)
                yield at, steps
                if fits:
                    fit = self._fit(steps, weight, own, across, at)
                    yield from ((fit, steps), (fit, integers(fit)))

        def integers(at: Reals) -> Reals:
            return np.clip(np.rint(weight / at[..., None] + zero), self.grid.low, self.grid.high) - zero

        least = cost(kept)
        for tried, steps in offers():
            left = weight - tried[..., None] * steps
            found = cost(left)
            better = found < least
            least = np.where(better, found, least)
            best_scale = np.where(better, tried, best_scale)
            best_error = np.where(better[..., None], left, best_error)
        scale[..., segment], error[..., columns] = best_scale, best_error

    def _fit(self, steps: Reals, weight: Reals, own: Reals, across: Reals, at: Reals) -> Reals:
        """The scale that fits the integers ``steps`` of one segment best; ``at`` where it is none, or far away."""
        turned = steps @ own
        below = self._shared((turned * steps).sum(axis=2))
        above = self._shared((turned * weight + across * steps).sum(axis=2))
        with np.errstate(divide="ignore", invalid="ignore"):
            found = above / below
        return np.where((below > 0) & (found > at / FARTHEST) & (found < at * FARTHEST), found, at)

    def fitted(self, scale: Reals, rounding: Rounding) -> Iterator[Reals]:
        """Scales that fit the integers of the scales before them, round after round."""
        for _ in range(ROUNDS):
            grid = _at(self.grid, scale, self.segments)
            scale = self._all_fitted(rounding(grid) - grid.zero, scale)
            yield scale

    def _all_fitted(self, steps: Reals, scale: Reals) -> Reals:
        """The scales [G, R, S] that fit the integers ``steps`` best, those of a row together; far away what ``scale`` has."""
        count = self.segments.count
        belongs = self.segments.of[:, None] == np.arange(count)  # [K, S]
        above = ((steps * (self.weight @ self.moment)) @ belongs).reshape(scale.shape)
        below = np.empty((*scale.shape, count))
        for segment in range(count):
            turned = (steps * belongs[:, segment]) @ self.moment
            below[..., segment, :] = (turned * steps) @ belongs
        if self.segments.is_one:
            above, below = (np.broadcast_to(part.sum(axis=(0, 1)), part.shape).copy() for part in (above, below))
        diagonal = np.einsum("grss->grs", below)
        diagonal += 1e-9 * diagonal.mean(axis=2, keepdims=True) + np.finfo(np.float64).tiny
        found = np.linalg.solve(below, above[..., None])[..., 0]
        far = ~((found > scale / FARTHEST) & (found < scale * FARTHEST))
        return np.where(far, scale, found)

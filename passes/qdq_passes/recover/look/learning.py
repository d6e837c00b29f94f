"""Learned rounding of one layer: integers and a bias for which it gives back what the float model computes there, from the inputs
that the quantized model feeds it.

    y = V·x + b,    z = y + o,    error = E[(clip(z) − clip(Z))²],    clip(z) = min(max(z, low), high)

x are the inputs in the quantized model, whose layers before have their integers already, o what a residual connection adds there,
Z what the float model has in the place of z. Without the clip the best real weight is a linear regression of the wanted y on x,
drawn towards W where the data say little (μ the mean of H's diagonal):

    H = E[(x − E[x])·(x − E[x])ᵀ],    W* = W + E[(T − W·x)·(x − E[x])ᵀ]·(H + λμ·I)⁻¹,    b = E[T − V·x],

and any V costs (V − W*)·(H + λμ·I)·(V − W*)ᵀ more than W*: `recover.look.rounding` rounds for just that. What layers before have
lost is made up for here, as far as it is linear in x.

The clip is no obstacle to it: at the present z each term (clip(z) − clip(Z))² lies below (z − T)², touching it, with T = z where
both are cut off at the same end and T = clip(Z) where z is not cut off (where only z is, T = clip(Z) lies above it and shows the
way back). So the regression on T, from V to V, does not let the error grow, and after each round every row keeps the best
integers it had. The weight of W, λ, is chosen on samples that take no part in the regression, and so is whether all this is
better than rounding to the nearest. Nothing is random; products are computed on one thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.numerics.arrays import Array, Reals
from qdq_passes.numerics.one_thread import one_thread
from qdq_passes.recover.look.rounding import Grid, round_rows

#: Weights of W that are tried, parts of the mean of H's diagonal.
DAMPINGS = (0.01, 0.1, 1.0)
#: Below so many vectors all take part in the regression and in the choice.
FEW = 16


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerSamples:
    """What a layer reads and what it is to give.

    Args:
        inputs: x of the quantized model, [G, n, K].
        wanted: Z of the float model, [G, n, R].
        added: o of the quantized model, [G, n, R]; None for 0.
        low: what z is cut off at from below.
        high: from above.
        held: vectors at the end that are of samples which only choose.
    """

    inputs: Array
    wanted: Array
    added: Array | None = None
    low: float = -np.inf
    high: float = np.inf
    held: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class Start:
    """What is learned from.

    Args:
        rows: the float weight [G, R, K].
        nearest: its integers, rounded to the nearest.
        bias: [G, R].
        grid: what the weight is rounded to.
        stored: what becomes of a bias [G, R] when it is stored; None where it has to stay as it is.
    """

    rows: Array
    nearest: Array
    bias: Reals
    grid: Grid
    stored: Callable[[Reals], Reals] | None


@dataclass(frozen=True, eq=False, kw_only=True)
class Learned:
    """What was found.

    Args:
        integers: [G, R, K].
        bias: [G, R], as stored.
        before: mean squared error of rounding to the nearest.
        after: that of ``integers`` and ``bias``, nowhere larger.
    """

    integers: Array
    bias: Reals
    before: float
    after: float


@one_thread()
def learn(start: Start, samples: LayerSamples, *, rounds: int = 4, sweeps: int = 1) -> Learned:
    """The integers and the bias of a layer.

    Args:
        start: the layer.
        samples: the data.
        rounds: regressions, each on what the one before it leaves.
        sweeps: how often each column is tried again when rounding.
    """
    count = samples.inputs.shape[1]
    cut = count - samples.held if count >= FEW and 0 < samples.held < count else count
    taught = _Part(samples, slice(0, cut))
    chosen = taught if cut == count else _Part(samples, slice(cut, count))
    whole = taught if cut == count else _Part(samples, slice(0, count))
    nearest = _Rows(integers=start.nearest.astype(np.float64), bias=start.bias)
    moment = taught.moment(is_centred=start.stored is not None)
    ends, best = [nearest], None
    for damping in DAMPINGS:
        regression = _Regression(start, taught, moment, damping, sweeps)
        ends.append(regression.improved(nearest, 1))
        found = (chosen.error(start, ends[-1]).sum(), regression, ends[-1])
        best = found if best is None or found[0] < best[0] else best
    assert best is not None
    ends.append(best[1].improved(best[2], rounds - 1))
    errors = [(chosen.error(start, end).sum(), whole.error(start, end).sum()) for end in ends]
    order = sorted(range(len(ends)), key=lambda i: (errors[i][0], i))
    kept = next(i for i in order if errors[i][1] <= errors[0][1])
    outputs = start.bias.size
    return Learned(
        integers=ends[kept].integers,
        bias=ends[kept].bias,
        before=errors[0][1] / outputs,
        after=errors[kept][1] / outputs,
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class _Rows:
    """Integers [G, R, K] and bias [G, R]."""

    integers: Array
    bias: Reals


@dataclass(eq=False)
class _Part:
    """Some of the samples."""

    samples: LayerSamples
    part: slice

    def __post_init__(self) -> None:
        given = self.samples
        self.inputs: Array = given.inputs[:, self.part]
        self.added: Array | None = None if given.added is None else given.added[:, self.part]
        self.wanted: Array = np.clip(given.wanted[:, self.part], given.low, given.high)

    def outputs(self, values: Array, bias: Reals) -> Array:
        """z [G, n, R]."""
        z = self.inputs @ np.swapaxes(values, 1, 2).astype(self.inputs.dtype) + bias[:, None].astype(self.inputs.dtype)
        return np.asarray(z if self.added is None else z + self.added)

    def error(self, start: Start, rows: _Rows) -> Reals:
        """Mean squared error of each row [G, R]."""
        z = self.outputs(start.grid.values(rows.integers), rows.bias)
        off = np.clip(z, self.samples.low, self.samples.high) - self.wanted
        return np.asarray(np.einsum("gnr,gnr->gr", off, off, dtype=np.float64) / max(off.shape[1], 1))

    def targets(self, values: Array, bias: Reals) -> Array:
        """T − o [G, n, R]: what y is to be, at the present values."""
        z = self.outputs(values, bias)
        low, high = self.samples.low, self.samples.high
        is_right = ((z <= low) & (self.wanted <= low)) | ((z >= high) & (self.wanted >= high))
        wanted = np.where(is_right, z, self.wanted)
        return wanted if self.added is None else wanted - self.added

    @cached_property
    def mean(self) -> Reals:
        """E[x] [G, K]."""
        return np.asarray(self.inputs.mean(axis=1, dtype=np.float64))

    @cached_property
    def centred(self) -> Array:
        """x − E[x] [G, n, K]."""
        return np.asarray(self.inputs - self.mean[:, None].astype(self.inputs.dtype))

    def moment(self, *, is_centred: bool) -> Reals:
        """H [G, K, K], about the mean of x or about 0."""
        inputs = self.centred if is_centred else self.inputs
        return np.asarray((np.swapaxes(inputs, 1, 2) @ inputs).astype(np.float64) / max(inputs.shape[1], 1))


class _Regression:
    """Regressions on what is wanted, with one weight of W.

    Args:
        start: the layer.
        part: the samples.
        moment: H.
        damping: the weight of W.
        sweeps: how often each column is tried again when rounding.
    """

    def __init__(self, start: Start, part: _Part, moment: Reals, damping: float, sweeps: int) -> None:
        self._start, self._part, self._sweeps = start, part, sweeps
        self._is_free = start.stored is not None
        self._mean = part.mean if self._is_free else np.zeros_like(part.mean)
        self._inputs = part.centred if self._is_free else part.inputs
        self._moment = moment.copy()
        diagonal = np.einsum("gkk->gk", self._moment)
        diagonal += np.maximum(diagonal.mean(axis=1, keepdims=True), 1e-30) * damping
        self._inverse = np.linalg.inv(self._moment)
        self._values, self._bias = start.rows.astype(np.float64), start.bias

    def improved(self, best: _Rows, rounds: int) -> _Rows:
        """Each row of ``best``, or the better one that ``rounds`` further regressions found."""
        start, part = self._start, self._part
        x, rows, count = part.inputs, start.rows.astype(np.float64), max(part.inputs.shape[1], 1)
        least = part.error(start, best)
        for _ in range(rounds):
            target = part.targets(self._values, self._bias)
            off = target - x @ np.swapaxes(rows, 1, 2).astype(x.dtype)
            if not self._is_free:
                off -= start.bias[:, None].astype(off.dtype)
            slope = (np.swapaxes(off, 1, 2) @ self._inputs).astype(np.float64) / count
            wanted = rows + slope @ self._inverse
            tried = round_rows(wanted, start.grid, start.nearest, self._moment, damping=0.0, sweeps=self._sweeps)
            self._values = start.grid.values(tried)
            if start.stored is not None:
                level = target.mean(axis=1, dtype=np.float64) - np.einsum("grk,gk->gr", self._values, self._mean)
                self._bias = start.stored(level)
            found = _Rows(integers=tried, bias=self._bias)
            error = part.error(start, found)
            is_better = error < least
            best = _Rows(
                integers=np.where(is_better[..., None], tried, best.integers),
                bias=np.where(is_better, self._bias, best.bias),
            )
            least = np.minimum(least, error)
        return best

"""The numbers that are tuned: a latent number for each number of a weight, in steps of its grid, and logarithms of its scales.

A weight is (round(u) − z)·s. The gradient passes straight through round; Adam (arXiv 1412.6980) moves u, and ln s while the
integers are what they are. Towards the end u is drawn to the middle of its step, so that it does not swing about a border
(arXiv 2203.11086)."""

from __future__ import annotations

import numpy as np
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import integer_range
from qdq_passes.numerics.moments import LayerStatistics
from qdq_passes.numerics.quantize import quantize
from qdq_passes.qdq.look.weighted_layers import WeightedLayer
from qdq_passes.recover.tune_weights import scales_can_move

#: How far u moves in a step of the optimizer, in parts of the grid's range; how far ln s does.
RATE, SCALE_RATE = 0.002 / 16, 0.0005
#: How strongly u is drawn to the middle of its step at the end, in parts of that rate.
DAMPING = 0.1
#: Adam's memories of gradients and of their squares.
FIRST, SECOND = 0.9, 0.99
#: A latent number starts where the float weight is, but no nearer to the border of its step than this.
INSIDE = 0.45


class Adam:
    """One array's moving averages.

    Args:
        shape: of the array.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._first, self._second, self._count = np.zeros(shape, np.float32), np.zeros(shape, np.float32), 0

    def step(self, gradient: Array) -> Array:
        """What to subtract, of about 1."""
        self._count += 1
        self._first += np.float32(1 - FIRST) * (gradient - self._first)
        self._second += np.float32(1 - SECOND) * (gradient * gradient - self._second)
        first = self._first / np.float32(1 - FIRST**self._count)
        second = self._second / np.float32(1 - SECOND**self._count)
        return np.asarray(first / (np.sqrt(second) + np.float32(1e-12)))


class Latents:
    """One weight that is tuned.

    Args:
        layer: its layer, with a pair on a float weight.
        float_weight: the weight of the float model.
        narrow: integers around zero point 0 leave out the most negative one.
    """

    def __init__(self, layer: WeightedLayer, float_weight: Array, *, narrow: bool) -> None:
        assert layer.pair is not None
        assert layer.pair.encoding is not None
        assert layer.float_weight is not None
        encoding = layer.pair.encoding
        shape, self._form = layer.float_weight.shape, layer.form
        self._low, self._high = integer_range(encoding.dtype, symmetric=narrow and encoding.is_symmetric)
        flat = np.arange(len(encoding.scale)).reshape(encoding.shape)
        self._owner = np.broadcast_to(encoding.granularity.expand(flat, shape), shape)
        zero = np.array(encoding.zero_point, np.float32)
        self._zero = zero[self._owner] if zero.any() else np.zeros((), np.float32)
        self._logs = np.log(np.array(encoding.scale, np.float64))
        self._scales_move, self._given = scales_can_move(layer), np.array(encoding.scale, np.float64)
        start = quantize(layer.float_weight, encoding).astype(np.float32)
        real = float_weight.astype(np.float32) / self._laid_out() + self._zero
        self._latent = np.clip(real, start - INSIDE, start + INSIDE).astype(np.float32)
        self._of_latent, self._of_logs = Adam(shape), Adam(self._logs.shape)
        self._best = self._state()

    @property
    def values(self) -> Array:
        """The weight as it stands, float32."""
        return np.asarray((self._integers() - self._zero) * self._laid_out())

    def step(self, gradient: Array, rate: float) -> None:
        """Move along the gradient of the weight.

        Args:
            gradient: of the weight.
            rate: parts of the full rate, from 1 at the begin to 0 at the end.
        """
        scale, integers = self._laid_out(), self._integers()
        by_step = gradient * scale
        if self._scales_move:
            by_log = np.bincount(
                self._owner.ravel(), weights=(by_step * (integers - self._zero)).ravel(), minlength=self._logs.size
            )
            self._logs = self._logs - rate * SCALE_RATE * self._of_logs.step(by_log.astype(np.float32)).astype(
                np.float64
            )
        full = np.float32(RATE * (self._high - self._low + 1))
        self._latent -= np.float32(rate) * full * self._of_latent.step(by_step)
        self._latent -= full * np.float32((1 - rate) * DAMPING) * (self._latent - np.rint(self._latent))

    def keep(self) -> None:
        """What stands is the best so far."""
        self._best = self._state()

    @property
    def found(self) -> LayerStatistics:
        """The best."""
        integers, scales = self._best
        rows = np.ascontiguousarray(self._form.rows(integers))
        return LayerStatistics(integers=rows, scales=scales if self._scales_move else None)

    def _integers(self) -> Array:
        return np.asarray(np.clip(np.rint(self._latent), self._low, self._high))

    def _laid_out(self) -> Array:
        scales = np.exp(self._logs) if self._scales_move else self._given
        return np.asarray(scales.astype(np.float32)[self._owner])

    def _state(self) -> tuple[Array, Array]:
        scales = np.exp(self._logs).astype(np.float32) if self._scales_move else self._given
        small = np.int8 if self._low >= -128 and self._high < 128 else np.int32
        return self._integers().astype(small), scales.astype(np.float64)

"""What moves of positions cost, from the data of weights and biases and from what calibration saw of activations."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from qdq_passes.encode.look.observed import Ranges, histogram_of, range_of
from qdq_passes.graph.uses import constant_array
from qdq_passes.numerics.agreement import FLOOR_DB
from qdq_passes.numerics.price import Level, price_in_words, sqnr_of_data, sqnr_of_range, sqnr_of_rescaled
from qdq_passes.numerics.quantize import dequantize
from qdq_passes.numerics.reencode import real_range
from qdq_passes.qdq.look.pairs import Pair, pair_with
from qdq_passes.refine.edit.scales import Stored
from qdq_passes.refine.look.position_groups import tensor_of
from qdq_passes.refine.look.positions import Positions


class MovePrices:
    """Prices of the moves of one run, by tensor; each level of noise is computed once.

    Args:
        positions: the positions, not yet written.
        ranges: what calibration found, None without.
        stored: what becomes of stored integers.
    """

    def __init__(self, positions: Positions, ranges: Ranges | None, stored: Stored) -> None:
        self._positions, self._ranges, self._stored = positions, ranges or {}, stored
        self._levels: dict[tuple[str, int], tuple[Level, bool]] = {}

    def of(self, half: ir.Node, old: int, new: int) -> str:
        """What it costs the tensor of ``half`` to go from position ``old`` to ``new``, in words."""
        (before, is_estimate), (after, _) = self._level(half, old), self._level(half, new)
        return price_in_words(before, after, is_estimate=is_estimate)

    def _level(self, half: ir.Node, position: int) -> tuple[Level, bool]:
        """SQNR of the tensor at ``position``, and whether it is an estimate."""
        key = (tensor_of(half), position)
        if key not in self._levels:
            self._levels[key] = self._measure(half, position)
        return self._levels[key]

    def _measure(self, half: ir.Node, position: int) -> tuple[Level, bool]:
        pair = pair_with(half)
        if pair is not None and pair.stored is not None:
            return self._of_constant(pair, half, position), False
        encoding, name = self._positions.encoding_at(half, position), tensor_of(half)
        histogram = histogram_of(self._ranges, name)
        if histogram is not None and histogram.total:
            level = histogram.sqnr(encoding)
            return (None if level == math.inf else max(level, FLOOR_DB)), False
        low, high = self._range(half, name)
        return sqnr_of_range(low, high, encoding), True

    def _of_constant(self, pair: Pair, half: ir.Node, position: int) -> Level:
        """From float data, or from what the integers in the file stand for."""
        array = constant_array(pair.stored)
        assert array is not None
        if pair.q is not None:
            return sqnr_of_data(array, self._positions.encoding_at(half, position))
        if self._stored == "keep":
            steps = self._positions.in_file(half) - position
            return sqnr_of_rescaled(math.ldexp(1.0, steps)) if np.any(array != _zero(pair)) else None
        values = dequantize(array, self._positions.encoding(half))
        return sqnr_of_data(values, self._positions.encoding_at(half, position))

    def _range(self, half: ir.Node, name: str) -> tuple[float, float]:
        """The observed range; that of the encoding in the file where there is none."""
        known = range_of(self._ranges, name)
        if known is not None:
            return known
        lowest, highest = real_range(self._positions.encoding(half))
        return float(lowest.min()), float(highest.max())


def _zero(pair: Pair) -> float:
    encoding = pair.encoding
    return encoding.zero_point[0] if encoding is not None else 0

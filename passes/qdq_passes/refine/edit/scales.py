"""Planned positions made real: scales where they are, stored integers requantized, biases at s_x·s_w following.

What moves cost comes from the data of weights and biases and from what calibration saw of activations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.core.base import Change
from qdq_passes.encode.edit.encoding_policy import Ranges, histogram_of, range_of
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.operators.qdq_ops import is_dequantize
from qdq_passes.graph.uses import constant_array
from qdq_passes.numerics import pow2
from qdq_passes.numerics.agreement import FLOOR_DB
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.price import Level, price_in_words, sqnr_of_data, sqnr_of_range, sqnr_of_rescaled
from qdq_passes.numerics.quantize import dequantize
from qdq_passes.numerics.reencode import real_range, requantized
from qdq_passes.qdq.edit.biases import follow_biases
from qdq_passes.qdq.edit.float_values import remember_scale
from qdq_passes.qdq.edit.pairs import Use, write_constant
from qdq_passes.qdq.look.pairs import Pair, encoding_of, pair_of, pair_with
from qdq_passes.refine.look.position_groups import tensor_of
from qdq_passes.refine.look.scale_positions import Move, Positions

#: What becomes of stored integers whose scale moves: integers of the same values, or the same integers, which then stand for
#: other values.
Stored = Literal["requantize", "keep"]


def write_positions(model: ir.Model, positions: Positions, stored: Stored) -> Iterator[Change]:
    """Give Q and DQ nodes the scales that ``positions`` plans, in the float type and shape they have.

    A scale that others read too is copied for those that move. The changes are those of biases that follow.

    Args:
        model: the model that ``positions`` was made of.
        positions: the plan.
        stored: what becomes of stored integers.
    """
    moves = positions.moves()
    if not moves:
        return
    namer, coupled = Namer(model), positions.coupled
    if stored == "requantize":
        _requantize(moves, namer)
    else:
        _remember(moves)
    for move in moves:
        uses: dict[ir.Value, list[Use]] = {}
        for node in move.nodes:
            scale = node.inputs[1]
            assert scale is not None
            uses.setdefault(scale, []).append((node, 1))
        for scale, readers in uses.items():
            write_constant(scale, _scale(scale, move.new), readers, namer)
    yield from follow_biases(coupled, {node for move in moves for node in move.nodes}, namer)


def _scale(scale: ir.Value, position: int) -> npt.NDArray[Any]:
    old = constant_array(scale)
    assert old is not None
    return np.full(old.shape, pow2.scale_of(position), old.dtype)


def _requantize(moves: Sequence[Move], namer: Namer) -> None:
    """Integers of the values that the stored ones stand for; DQ nodes of one tensor that move alike keep sharing it."""
    groups: dict[tuple[ir.Value, Encoding, Encoding], list[Use]] = {}
    for move in moves:
        for pair, old, new in _stored_constants(move):
            assert pair.stored is not None
            groups.setdefault((pair.stored, old, new), []).append((pair.dq, 0))
    for (value, old, new), uses in groups.items():
        integers = constant_array(value)
        assert integers is not None
        write_constant(value, ir.tensor(requantized(integers, old, new), dtype=new.dtype), uses, namer)


def _remember(moves: Sequence[Move]) -> None:
    """Note on stored integers what scale they were made with, for remove-qdq."""
    for move in moves:
        for pair, old, new in _stored_constants(move):
            assert pair.stored is not None
            remember_scale(pair.stored, old, new)


def _stored_constants(move: Move) -> Iterator[tuple[Pair, Encoding, Encoding]]:
    """The stored integers that ``move`` is about, with their encodings in the file and as planned."""
    for node in move.nodes:
        pair, old = pair_of(node) if is_dequantize(node) else None, encoding_of(node)
        if pair is not None and pair.q is None and pair.stored is not None and old is not None:
            yield pair, old, dataclasses.replace(old, scale=(pow2.scale_of(move.new),))


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

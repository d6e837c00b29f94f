"""Planned positions made real: scales where they are, stored integers requantized, biases at s_x·s_w following."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.core.base import Change
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.operators.qdq_ops import is_dequantize
from qdq_passes.graph.uses import constant_array
from qdq_passes.numerics import pow2
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.reencode import requantized
from qdq_passes.qdq.edit.biases import follow_biases
from qdq_passes.qdq.edit.pairs import Use, write_constant
from qdq_passes.qdq.look.pairs import encoding_of, pair_of
from qdq_passes.refine.look.positions import Move, Positions

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
        for node in move.nodes:
            pair, old = pair_of(node) if is_dequantize(node) else None, encoding_of(node)
            if pair is not None and pair.q is None and pair.stored is not None and old is not None:
                new = dataclasses.replace(old, scale=(pow2.scale_of(move.new),))
                groups.setdefault((pair.stored, old, new), []).append((node, 0))
    for (value, old, new), uses in groups.items():
        integers = constant_array(value)
        assert integers is not None
        write_constant(value, ir.tensor(requantized(integers, old, new), dtype=new.dtype), uses, namer)

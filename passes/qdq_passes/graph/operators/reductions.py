"""Means, sums and norms along axes, in the forms exporters write: with or without the reduced axes, and pooled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from qdq_passes.graph.operators.arithmetic import ARITHMETIC
from qdq_passes.graph.operators.windows import written_axes
from qdq_passes.graph.uses import integer_of, is_standard

Kind = Literal["mean", "sum", "squares", "norm"]
#: What is computed of each row: Σx/n, Σx, Σx², √Σx².
KINDS: dict[str, Kind] = {
    "ReduceMean": "mean", "GlobalAveragePool": "mean", "ReduceSum": "sum", "ReduceSumSquare": "squares", "ReduceL2": "norm",
}  # fmt: skip
#: Operators that put reduced axes back.
_RESTORING = ("Expand", "Reshape", "Unsqueeze")
#: Operators whose output has as many axes as the input that has most of them, and how many are looked through.
_ELEMENTWISE, _FARTHEST = ("Abs", *ARITHMETIC, "Sqrt"), 8


@dataclass(frozen=True)
class Reduction:
    """One value for each row of another value; the reduced axes stay, with size 1.

    Args:
        kind: what is computed.
        source: of what.
        axes: reduced axes, sorted; counted from the end where the rank is known or they were written so.
    """

    kind: Kind
    source: ir.Value
    axes: tuple[int, ...]


def reduction_of(value: ir.Value | None) -> Reduction | None:
    """The reduction that ``value`` is, axes kept; None where it is none, or its axes cannot be told."""
    node, restored = value.producer() if value is not None else None, False
    while node is not None and is_standard(node, *_RESTORING) and node.inputs[0] is not None:
        node, restored = node.inputs[0].producer(), True
    if node is None or not is_standard(node, *KINDS) or value is None or node.inputs[0] is None:
        return None
    source = node.inputs[0]
    rank = rank_of(source)
    axes = _axes_of(node, rank)
    if axes is None:
        return None
    kept = node.op_type == "GlobalAveragePool" or bool(integer_of(node, "keepdims", 1))
    if restored or not kept:
        return Reduction(KINDS[node.op_type], source, axes) if _is_restored(value, source, axes) else None
    return Reduction(KINDS[node.op_type], source, axes)


def rank_of(value: ir.Value) -> int | None:
    """Number of axes of ``value``, from its shape or from what a few elementwise nodes make it of; None when unknown."""
    return _rank(value, _FARTHEST)


def has_shape_of(value: ir.Value, other: ir.Value) -> bool:
    """Whether both shapes are known and the same, symbols by name."""
    if value.shape is None or other.shape is None or value.shape.rank() != other.shape.rank():
        return False
    return all(_is_same(mine, theirs) for mine, theirs in zip(value.shape, other.shape, strict=True))


def _rank(value: ir.Value, steps: int) -> int | None:
    if value.shape is not None or steps == 0:
        return None if value.shape is None else value.shape.rank()
    node = value.producer()
    if node is None or not is_standard(node, *_ELEMENTWISE, *KINDS):
        return None
    if node.op_type in KINDS and not (node.op_type == "GlobalAveragePool" or integer_of(node, "keepdims", 1)):
        return None
    inputs = node.inputs[:1] if node.op_type in KINDS else node.inputs
    ranks = [None if v is None else _rank(v, steps - 1) for v in inputs]
    return max((r for r in ranks if r is not None), default=None) if None not in ranks else None


def _axes_of(node: ir.Node, rank: int | None) -> tuple[int, ...] | None:
    if node.op_type == "GlobalAveragePool":
        return None if rank is None else tuple(range(2 - rank, 0))
    axes = written_axes(node)
    if not axes:  # computed, or all: along no axis
        return None
    if rank is not None:
        axes = [axis - rank if axis >= 0 else axis for axis in axes]
    return tuple(sorted(axes))


def _is_restored(value: ir.Value, source: ir.Value, axes: tuple[int, ...]) -> bool:
    """Whether ``value`` has the shape of ``source`` with size 1 along ``axes``: then no element has moved."""
    if value.shape is None or source.shape is None or value.shape.rank() != source.shape.rank():
        return False
    pairs = list(zip(value.shape, source.shape, strict=True))
    reduced = {axis % len(pairs) for axis in axes}
    if any(pairs[axis][0] != 1 for axis in reduced):
        return False
    return all(_is_same(mine, theirs) for axis, (mine, theirs) in enumerate(pairs) if axis not in reduced)


def _is_same(mine: int | ir.SymbolicDim, theirs: int | ir.SymbolicDim) -> bool:
    if isinstance(mine, int | np.integer) or isinstance(theirs, int | np.integer):
        return mine == theirs
    return mine.value is not None and mine.value == theirs.value

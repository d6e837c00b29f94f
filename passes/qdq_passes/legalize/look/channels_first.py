"""Which operators compute the same on tokens [B, S, C] and on channels-first tensors (B, C, 1, S), and which hang together.

[B, S, C] becomes [B, C, 1, S], [M, C] becomes [1, C, 1, M]: axis -1 is axis 1, and axes that broadcast still do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from qdq_passes.attention.look.regions import is_alike
from qdq_passes.graph.attributes import integer_of, integers_of
from qdq_passes.graph.operators.linears import Linear, Rank, is_fixed
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantize
from qdq_passes.graph.reach import in_order
from qdq_passes.graph.uses import constant_array, is_standard

Kind = Literal["linear", "alike", "reduce", "cut", "join", "norm", "view"]
_REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare")
_CUTS = ("Slice", "Split")
_VIEWS = ("Reshape", "Squeeze", "Unsqueeze")
_NORMS = ("LayerNormalization", "RMSNormalization")


@dataclass(frozen=True)
class Member:
    """A node that has a twin on channels-first tensors.

    Args:
        node: the node.
        kind: how its twin is made.
        operands: indices of the inputs that are activations of its rank.
        linear: what it is of a linear layer.
    """

    node: ir.Node
    kind: Kind
    operands: tuple[int, ...]
    linear: Linear | None = None


class Facts:
    """What must be known of values.

    Args:
        rank_of: number of dimensions of a value.
        sizes_of: sizes of a value, None unless all are known.
        dtype_of: element type of a value.
    """

    def __init__(
        self,
        rank_of: Rank,
        sizes_of: Callable[[ir.Value], list[int] | None],
        dtype_of: Callable[[ir.Value], ir.DataType | None],
    ) -> None:
        self.rank_of, self.sizes_of, self.dtype_of = rank_of, sizes_of, dtype_of


def members(graph: ir.Graph | ir.Function, linears: Sequence[Linear], facts: Facts) -> list[Member]:
    """The nodes of ``graph`` around ``linears`` that have a twin, producers first: all that hang together with one of them."""
    heads = {each.node: each for each in linears}
    adds = {each.add for each in linears if each.add is not None}
    found: dict[ir.Node, Member] = {}
    for node in in_order(graph):
        member = Member(node, "linear", (0,), heads[node]) if node in heads else None
        if member is None and node not in adds:
            member = _member(node, facts)
        if member is not None:
            found[node] = member
    groups = _Groups()
    for member in found.values():
        groups.unite([*(v for i in member.operands if (v := member.node.inputs[i]) is not None), *_written(member)])
    wanted = {groups.find(each.x) for each in linears}
    return [m for m in found.values() if groups.find(_written(m)[0]) in wanted]


def _written(member: Member) -> list[ir.Value]:
    return [member.linear.y] if member.linear is not None else [v for v in member.node.outputs if v.name]


class _Groups:
    """Values that hang together."""

    def __init__(self) -> None:
        self._parents: dict[ir.Value, ir.Value] = {}

    def find(self, value: ir.Value) -> ir.Value:
        """The value that stands for the group of ``value``."""
        while value in self._parents and self._parents[value] is not value:
            value = self._parents[value]
        return value

    def unite(self, values: Iterable[ir.Value]) -> None:
        """Make one group of ``values``."""
        first, *others = values
        for other in others:
            self._parents[self.find(other)] = self.find(first)


def _member(node: ir.Node, facts: Facts) -> Member | None:
    rank = facts.rank_of(node.outputs[0]) if node.outputs else None
    if rank not in (2, 3) or not node.inputs or node.inputs[0] is None:
        return None
    if is_alike(node):
        return _alike(node, rank, facts)
    if is_fixed(node.inputs[0]):
        return None
    if is_standard(node, *_REDUCTIONS) and _keeps_axis(node, rank):
        return Member(node, "reduce", (0,))
    if is_standard(node, *_NORMS) and _is_plain_norm(node, rank, facts):
        return Member(node, "norm", (0,))
    if is_standard(node, *_CUTS) and _cut_axis(node, rank) in (-1, rank - 1):
        return Member(node, "cut", (0,))
    if is_standard(node, "Concat") and integer_of(node, "axis", 0) in (-1, rank - 1):
        same = all(v is not None and not is_fixed(v) and facts.rank_of(v) == rank for v in node.inputs)
        return Member(node, "join", tuple(range(len(node.inputs)))) if same else None
    if is_standard(node, *_VIEWS) and _is_view(node, facts):
        return Member(node, "view", (0,))
    return None


def _alike(node: ir.Node, rank: int, facts: Facts) -> Member | None:
    """Element by element: each operand is an activation of the same rank, or fixed, or one number."""
    operands = []
    is_pair = is_quantize(node) or is_dequantize(node)
    for index, value in enumerate(node.inputs):
        if value is None:
            continue
        known = facts.rank_of(value)
        is_number = known == 0 or facts.sizes_of(value) == [1]
        if known == rank and not is_fixed(value):
            operands.append(index)
        elif not is_number and (is_pair or not is_fixed(value) or known is None or known > rank):
            return None
    return Member(node, "alike", tuple(operands)) if operands else None


def _keeps_axis(node: ir.Node, rank: int) -> bool:
    axes, array = integers_of(node, "axes"), constant_array(node.inputs[1] if len(node.inputs) > 1 else None)
    if array is not None:
        axes = [int(axis) for axis in array.ravel()]
    return axes in ([-1], [rank - 1]) and integer_of(node, "keepdims", 1) == 1


def _cut_axis(node: ir.Node, rank: int) -> int | None:
    """The one axis that a Slice or Split cuts; None where it is not known or several."""
    if node.op_type == "Split":
        return integer_of(node, "axis", 0)
    if len(node.inputs) < 4:  # the attributes of opsets before 10, or all axes
        return None
    axes = constant_array(node.inputs[3])
    return int(axes.ravel()[0]) if axes is not None and axes.size == 1 else None


def _is_plain_norm(node: ir.Node, rank: int, facts: Facts) -> bool:
    """Over the last axis, in float32, with nothing written but the result."""
    others = any(v.uses() or v.is_graph_output() for v in node.outputs[1:])
    x = node.inputs[0]
    is_float = x is not None and facts.dtype_of(x) == ir.DataType.FLOAT
    fixed = all(v is None or is_fixed(v) for v in node.inputs[1:])
    return is_float and fixed and not others and integer_of(node, "axis", -1) in (-1, rank - 1)


def _is_view(node: ir.Node, facts: Facts) -> bool:
    """Between [1, S, C] and [S, C], which are the same channels first."""
    x = node.inputs[0]
    before = facts.sizes_of(x) if x is not None else None
    after = facts.sizes_of(node.outputs[0])
    if before is None or after is None or {len(before), len(after)} - {2, 3}:
        return False
    return [1, *before][-3:] == [1, *after][-3:]

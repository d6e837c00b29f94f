"""Operators on tokens [B, S, C] as operators on channels-first tensors (B, C, 1, S): which compute the same, which hang together,
and how they are written so, with layout changes where both meet.

[B, S, C] becomes [B, C, 1, S], [M, C] becomes [1, C, 1, M]: axis -1 is axis 1, and axes that broadcast still do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.attention.look.regions import is_alike
from qdq_passes.core.base import Change
from qdq_passes.graph.build import OPSET_OF_AXES, OPSET_OF_MEAN_AXES, Builder, Site, attribute_of, drop_chains
from qdq_passes.graph.convex import DisjointSets
from qdq_passes.graph.edit import graph_of, hand_over, inherit, move_annotations, remove
from qdq_passes.graph.operators.linears import Linear, Rank, is_fixed
from qdq_passes.graph.operators.qdq_ops import is_qdq
from qdq_passes.graph.uses import constant_array, in_order, integer_of, integers_of, is_standard, only_reader, readers
from qdq_passes.legalize.edit.conv_weights import ConvWeights

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
    groups = DisjointSets[ir.Value]()
    for member in found.values():
        first, *others = [*(v for i in member.operands if (v := member.node.inputs[i]) is not None), *_written(member)]
        for other in others:
            groups.join(first, other)
    wanted = {groups.root(each.x) for each in linears}
    return [m for m in found.values() if groups.root(_written(m)[0]) in wanted]


def _written(member: Member) -> list[ir.Value]:
    return [member.linear.y] if member.linear is not None else [v for v in member.node.outputs if v.name]


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
    is_pair = is_qdq(node)
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


#: [B, 1, S, C] ↔ [B, C, 1, S].
TO_CHANNELS, TO_TOKENS = (0, 3, 1, 2), (0, 2, 3, 1)
#: [B, H, S, D] ↔ [B, S, H, D], as attentions put their heads forward.
_HEADS = [0, 2, 1, 3]


class ChannelsFirst:
    """The twins of one graph's members.

    Args:
        builder: the builder of the pass.
        weights: makes the weights of the convolutions.
        facts: what is known of values.
    """

    def __init__(self, builder: Builder, weights: ConvWeights, facts: Facts) -> None:
        self._builder, self._weights, self._facts = builder, weights, facts
        self._twins: dict[ir.Value, ir.Value] = {}

    def convert(self, members: Sequence[Member]) -> Iterator[Change]:
        """Replace ``members``, producers first, by their twins."""
        gone: list[ir.Node] = []
        for member in members:
            self._write(member)
            gone.append(member.node)
            if member.linear is not None and member.linear.add is not None:
                gone.append(member.linear.add)
        inside = set(gone)
        for node in gone:
            for value in node.outputs:
                if value in self._twins:
                    self._give_back(value, inside)
        read = [value for node in gone for value in node.inputs if value is not None and value.producer() not in inside]
        for node in reversed(gone):
            yield from remove(node, "computes on channels-first tensors now")
        yield from drop_chains(v for v in read if not v.is_graph_input())

    def _write(self, member: Member) -> None:
        node = member.node
        site = self._builder.at(node, base=node.name)
        if member.linear is not None:
            self._linear(member, site)
        elif member.kind == "view":
            source = node.inputs[0]
            assert source is not None
            self._twins[node.outputs[0]] = self._twin(source, node)
        elif member.kind == "norm":
            self._note(node.outputs[0], self._norm(node, site))
        else:
            self._again(member)

    def _linear(self, member: Member, site: Site) -> None:
        linear, anchor = member.linear, member.node
        assert linear is not None
        olds = [linear.node, *([linear.add] if linear.add is not None else [])]
        site = self._builder.at(anchor, base=anchor.name, stands_for=olds)
        inputs = [self._twin(linear.x, anchor), self._weights.weight(linear, anchor)]
        bias = self._weights.bias(linear, anchor)
        self._note(linear.y, site("Conv", *inputs, *([] if bias is None else [bias]), kernel_shape=[1, 1]))

    def _again(self, member: Member) -> None:
        """The same operator on the twins of its activations."""
        node, namer = member.node, self._builder.namer
        site = self._builder.at(node, base=node.name)
        inputs: list[ir.Value | None] = []
        for index, value in enumerate(node.inputs):
            if value is not None and index in member.operands:
                value = self._twin(value, node)
            elif value is not None and member.kind == "alike":
                value = self._spread(value, node)
            inputs.append(value)
        attributes = {key: a for key, a in node.attributes.items() if not (key == "axis" and member.kind != "alike")}
        if member.kind == "reduce":
            attributes.pop("axes", None)
            if site.opset < (OPSET_OF_AXES if node.op_type == "ReduceSum" else OPSET_OF_MEAN_AXES):
                attributes["axes"] = attribute_of("axes", [1])
            else:
                inputs[1:] = [site.constant([1], word="axes")]
        elif node.op_type == "Slice":
            inputs[3] = site.constant([1], word="axes")
        elif member.kind in ("cut", "join"):
            attributes["axis"] = attribute_of("axis", 1)
        name = namer.fresh(f"{node.name}_nchw")
        outputs = [ir.Value(name=namer.fresh(f"{v.name}_nchw") if v.name else "") for v in node.outputs]
        new = ir.Node(node.domain, node.op_type, inputs, list(attributes.values()), outputs=outputs, name=name)
        graph_of(node).insert_before(node, inherit(new, [node]))
        for old, value in zip(node.outputs, outputs, strict=True):
            self._note(old, value)

    def _norm(self, node: ir.Node, site: Site) -> ir.Value:
        """LayerNormalization or RMSNormalization in pieces: x / sqrt(mean(x²) + ε)·γ + β, of x − mean(x) for the first."""
        source = node.inputs[0]
        assert source is not None
        x = self._twin(source, node)
        epsilon = node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5
        if node.op_type == "LayerNormalization":
            x = site("Sub", x, site.mean(x, [1]))
        mean = site.mean(site("Mul", x, x), [1])
        y = site("Div", x, site("Sqrt", site("Add", mean, site.constant(epsilon, ir.DataType.FLOAT, "epsilon"))))
        for op_type, value in zip(("Mul", "Add"), node.inputs[1:3], strict=False):
            y = y if value is None else site(op_type, y, self._spread(value, node))
        return y

    def _note(self, old: ir.Value, new: ir.Value) -> None:
        dtype = self._facts.dtype_of(old)
        new.type = old.type if old.type is not None or dtype is None else ir.TensorType(dtype)
        new.shape = _turned(old.shape)
        move_annotations(old, new)
        self._twins[old] = new

    def _twin(self, value: ir.Value, reader: ir.Node) -> ir.Value:
        """``value`` channels first, made before ``reader`` where there is none yet."""
        if value not in self._twins:
            site = self._builder.at(reader, base=value.name)
            made = self._of_heads(value, site)
            if made is None:
                axes = [1] if self._facts.rank_of(value) == 3 else [0, 1]
                made = site.transpose(site.unsqueeze(value, *axes), *TO_CHANNELS)
            made.shape = _turned(value.shape)
            self._twins[value] = made
        return self._twins[value]

    def _of_heads(self, value: ir.Value, site: Site) -> ir.Value | None:
        """Of heads [B, H, S, D] that become [B, S, H·D] by Transpose and Reshape: by one Transpose [B, H, D, S]."""
        reshape = value.producer()
        turn = (
            reshape.inputs[0].producer()
            if reshape is not None and reshape.inputs and reshape.inputs[0] is not None
            else None
        )
        if reshape is None or turn is None or not is_standard(reshape, "Reshape") or not _puts_heads(turn):
            return None
        heads, sizes = turn.inputs[0], self._facts.sizes_of(value)
        before = self._facts.sizes_of(heads) if heads is not None else None
        if heads is None or before is None or sizes is None or sizes != [before[0], before[2], before[1] * before[3]]:
            return None
        return site.reshape(site.transpose(heads, 0, 1, 3, 2), [sizes[0], sizes[2], 1, sizes[1]])

    def _spread(self, value: ir.Value, reader: ir.Node) -> ir.Value:
        """A fixed operand of a token tensor, so that it spreads over the channels-first one."""
        rank = self._facts.rank_of(value)
        if rank == 0 or self._facts.sizes_of(value) in ([1], [1, 1], [1, 1, 1]):
            return value
        array = constant_array(value)
        site = self._builder.at(reader, base=value.name)
        if array is None:
            axes = {1: [1, 2], 2: [0, 1], 3: [1]}[rank or 1]
            spread = site.unsqueeze(value, *axes)
            return spread if rank == 1 else site.transpose(spread, *TO_CHANNELS)
        padded = array.reshape((1,) * (3 - array.ndim) + array.shape)
        if self._facts.rank_of(reader.outputs[0]) == 2 and array.ndim == 2:
            padded = array[None]
        turned = np.ascontiguousarray(padded.transpose(0, 2, 1)[:, :, None, :])
        turned = turned[0] if turned.shape[0] == 1 and array.ndim < 3 else turned
        dtype = value.dtype or ir.DataType.from_numpy(array.dtype)
        return self._builder.constant(graph_of(reader), turned, dtype, f"{value.name}_nchw", reader)

    def _give_back(self, old: ir.Value, inside: set[ir.Node]) -> None:
        """Where others than ``inside`` read ``old``, [B, S, C], let them read it made of its twin."""
        new = self._twins[old]
        for node, _ in readers(old):
            if node not in inside:
                self._to_heads(old, new, node)
        if all(node in inside for node, _ in readers(old)) and not old.is_graph_output():
            return
        producer = old.producer()
        assert producer is not None
        site = self._builder.at(producer, base=new.name)
        tokens = site.transpose(new, *TO_TOKENS)
        axes = [1] if self._facts.rank_of(old) == 3 else [0, 1]
        result = site.squeeze(tokens, *axes)
        result.type, result.shape = old.type or new.type, old.shape.copy() if old.shape is not None else None
        hand_over(old, result, self._builder.namer)

    def _to_heads(self, old: ir.Value, new: ir.Value, reshape: ir.Node) -> None:
        """[B, S, H·D] that becomes [B, H, S, D] by Reshape and Transpose, of [B, H·D, 1, S] by one Transpose of [B, H, D, S]."""
        turn = only_reader(reshape.outputs[0]) if is_standard(reshape, "Reshape") else None
        sizes, heads = self._facts.sizes_of(old), self._facts.sizes_of(reshape.outputs[0])
        if turn is None or not _puts_heads(turn) or sizes is None or heads is None or turn.graph is not reshape.graph:
            return
        if len(sizes) != 3 or len(heads) != 4 or heads[:2] != sizes[:2]:
            return
        batch, tokens, count, size = heads
        site = self._builder.at(turn, base=turn.name)
        made = site.transpose(site.reshape(new, [batch, count, size, tokens]), 0, 1, 3, 2)
        made.shape = ir.Shape([batch, count, tokens, size])
        hand_over(turn.outputs[0], made, self._builder.namer)
        read = list(reshape.inputs)
        remove([turn, reshape], "one Transpose of channels-first heads")
        for _ in drop_chains(v for v in read if v is not old):
            pass


def _puts_heads(node: ir.Node) -> bool:
    return is_standard(node, "Transpose") and integers_of(node, "perm") == _HEADS


def _turned(shape: ir.Shape | None) -> ir.Shape | None:
    """[B, S, C] or [M, C] as [B, C, 1, S] or [1, C, 1, M]."""
    if shape is None or len(shape) not in (2, 3):
        return None
    batch, tokens, channels = ([1, *shape])[-3:]
    return ir.Shape([batch, channels, 1, tokens])

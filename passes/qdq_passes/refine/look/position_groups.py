"""Which Q and DQ nodes have one scale: what moves together when a position moves, and whether it can."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.encode.edit.encoding_policy import Ranges, range_of
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantize
from qdq_passes.graph.uses import SHARING, constant_array, is_constant, is_standard, label
from qdq_passes.numerics.encoding import integer_format, is_integer_type
from qdq_passes.numerics.reencode import is_centered
from qdq_passes.qdq.look.pairs import dequantizers, encoding_of, pair_of, pair_with

#: Operators that tie the scale of what they write to that of what they read, where both read the same initializer.
TYING = SHARING | {"Resize"}
#: Widest integers of what a DPU multiplies; biases are wider.
_BITS = 8


@dataclass(frozen=True, eq=False)
class PositionGroup:
    """Q and DQ nodes that move together.

    Args:
        nodes: the nodes, in the order of the file.
        by_initializer: they have nothing in common but the scale initializer, of which alone is asked then.
        origin: the half whose tensor is read here by a pair that is planned and not in the graph: a `stand_in`.
    """

    nodes: tuple[ir.Node, ...]
    by_initializer: bool
    origin: ir.Node | None = None

    @property
    def is_constant(self) -> bool:
        """Whether all of it stands on weights and biases."""
        return self.origin is None and all(is_constant(n.inputs[0]) or _quantizes_constant(n) for n in self.nodes)

    def why_not(self, *, any_scale: bool) -> str | None:
        """Why the group has no position (``any_scale``: no one encoding) that may change, in words; None when it has."""
        first = encoding_of(self.nodes[0])
        encodings = [first] if self.by_initializer else [encoding_of(node) for node in self.nodes]
        if first is None or None in encodings:
            return "has no constant scale and zero point"
        if len(first.scale) != 1 or first.block_size:
            return f"has {len(first.scale)} scales"
        if not any_scale and first.position is None:
            return f"has the scale {first.scale[0]:.6g}, no power of two"
        if not is_integer_type(first.dtype):
            return f"is {first.dtype.name.lower()}, no integer type"
        if self.by_initializer:
            return None
        if any(
            e is None or (e.dtype, e.scale, e.zero_point) != (first.dtype, first.scale, first.zero_point)
            for e in encodings
        ):
            return "has different encodings at its Q and DQ nodes"
        if not any_scale and not is_centered(first):
            return f"has the zero point {first.zero_point[0]}"
        if not any_scale and integer_format(first.dtype)[1] > _BITS and not all(map(_is_of_bias, self.nodes)):
            return f"is {first.dtype.name.lower()}; shift limits are for 8 bits"
        return next((reason for node in self.nodes if (reason := _why_fixed(node)) is not None), None)


def stand_in(half: ir.Node) -> PositionGroup:
    """A DQ for one reader of the tensor of ``half``, in no graph, which moves alone."""
    return PositionGroup((ir.Node("", half.op_type, []),), by_initializer=False, origin=half)


def position_groups(halves: Iterable[ir.Node], *, by_initializer: bool) -> dict[ir.Node, PositionGroup]:
    """Every Q and DQ node with a scale input → the nodes that move together with it.

    Args:
        halves: the Q and DQ nodes of a model, those of bodies and functions too.
        by_initializer: all that read one scale initializer move together, whatever they stand on.
    """
    halves = [
        node for node in halves if len(node.inputs) > 1 and node.inputs[0] is not None and node.inputs[1] is not None
    ]
    leaders, origins = _Leaders(), _Origins()
    quantizers = Counter(node.inputs[0] for node in halves if is_quantize(node))
    for node in halves:
        if by_initializer:
            leaders.tie(node, node.inputs[1])
            continue
        tags = [*_pair_tags(node), origins.tag(node)]
        if is_quantize(node) and quantizers[node.inputs[0]] > 1 and (encoding := encoding_of(node)) is not None:
            tags.append((node.inputs[0], encoding))  # equal pairs on one value, one per reader
        for tag in tags:
            leaders.tie(node, tag)
    members: dict[Hashable, list[ir.Node]] = {}
    for node in halves:
        members.setdefault(leaders.of(node), []).append(node)
    groups = [PositionGroup(tuple(nodes), by_initializer) for nodes in members.values()]
    return {node: group for group in groups for node in group.nodes}


def readers_of(nodes: Collection[ir.Node]) -> list[ir.Node | None]:
    """The nodes that read what the DQ nodes among ``nodes`` write, each once; None stands for a graph output.

    Data movement and a Pad are looked through where their output has no pair, and left out where it has one among ``nodes``.
    """
    group, found = set(nodes), dict[ir.Node | None, None]()
    todo = [node.outputs[0] for node in nodes if is_dequantize(node)]
    while todo:
        value = todo.pop()
        found |= {None: None} if value.is_graph_output() else {}
        for node in value.consumers():
            halves = [after for after in node.successors() if is_quantize(after)]
            if is_quantize(node):
                found |= {node: None} if node not in group else {}
            elif not is_standard(node, *TYING, "Pad") or not group.issuperset(halves):
                found[node] = None
            elif not halves:
                todo += node.outputs
    return list(found)


def is_zero_at(half: ir.Node, ranges: Ranges) -> bool:
    """Whether the tensor that the Q or DQ ``half`` stands on is 0 throughout: a constant, or what ``ranges`` saw."""
    pair = pair_with(half)
    if pair is None or pair.stored is None:
        return range_of(ranges, tensor_of(half)) == (0.0, 0.0)
    array, encoding = constant_array(pair.stored), pair.encoding
    zero = 0 if pair.q is not None or encoding is None else encoding.zero_point[0]
    return array is not None and encoding is not None and not np.any(array != zero)


def tensor_of(half: ir.Node) -> str:
    """Name of the float tensor that the Q or DQ ``half`` stands on."""
    pair = pair_with(half)
    if pair is not None:
        return pair.tensor
    value = half.outputs[0] if is_dequantize(half) else half.inputs[0]
    return (value.name if value is not None else None) or label(half)


class _Leaders:
    """Disjoint sets of nodes and tags."""

    def __init__(self) -> None:
        self._above: dict[Hashable, Hashable] = {}

    def of(self, item: Hashable) -> Hashable:
        """The one that stands for all that is tied to ``item``."""
        root = item
        while (above := self._above.get(root, root)) != root:
            root = above
        while (above := self._above.get(item, item)) != root:
            self._above[item] = root
            item = above
        return root

    def tie(self, one: Hashable, other: Hashable) -> None:
        """Put the sets of both together."""
        self._above[self.of(one)] = self.of(other)


class _Origins:
    """Where what a Q reads, or a DQ writes, comes from without a change of scale."""

    def __init__(self) -> None:
        self._known: dict[tuple[ir.Value, ir.Value], ir.Value] = {}

    def tag(self, node: ir.Node) -> Hashable:
        """(value, scale): equal for all halves that data movement ties to one value with one scale initializer."""
        value, scale = node.inputs[0] if is_quantize(node) else node.outputs[0], node.inputs[1]
        assert value is not None
        assert scale is not None
        walked = []
        while (value, scale) not in self._known:
            walked.append((value, scale))
            before = _before(value, scale)
            if before is None:
                break
            value = before
        origin = self._known.get((value, scale), value)
        self._known |= dict.fromkeys(walked, origin)
        return origin, scale


def _before(value: ir.Value, scale: ir.Value) -> ir.Value | None:
    """What ``value`` is made of without leaving the grid of ``scale``; None where it begins."""
    producer = value.producer()
    if producer is None or not producer.inputs:
        return None
    if is_dequantize(producer) and len(producer.inputs) > 1 and producer.inputs[1] is scale:
        integers = producer.inputs[0]
        quantizer = integers.producer() if integers is not None else None
        return quantizer.inputs[0] if quantizer is not None and is_quantize(quantizer) else integers
    if not is_standard(producer, *TYING) or (producer.op_type == "MaxPool" and value is not producer.outputs[0]):
        return None
    return producer.inputs[0]


def _pair_tags(node: ir.Node) -> list[Hashable]:
    """What ties ``node`` to the other half of its pair."""
    if is_quantize(node):
        return [node]
    quantizer = node.inputs[0].producer() if node.inputs[0] is not None else None
    return [quantizer] if quantizer is not None and is_quantize(quantizer) else []


def _quantizes_constant(dq: ir.Node) -> bool:
    """Whether what ``dq`` reads is written by a Q of a constant."""
    quantizer = dq.inputs[0].producer() if dq.inputs[0] is not None else None
    return quantizer is not None and is_quantize(quantizer) and is_constant(quantizer.inputs[0])


def _is_of_bias(node: ir.Node) -> bool:
    dqs = [node] if is_dequantize(node) else dequantizers(node)
    pairs = [pair_of(dq) for dq in dqs]
    return bool(pairs) and all(pair is not None and pair.kind == "bias" for pair in pairs)


def _why_fixed(node: ir.Node) -> str | None:
    """Why another scale would be seen by more than the DQ nodes of the integers that ``node`` writes or reads."""
    integers = node.outputs[0] if is_quantize(node) else node.inputs[0]
    assert integers is not None
    if integers.is_graph_output():
        return "leaves the graph as integers"
    if is_dequantize(node):
        producer = integers.producer()
        if integers.is_graph_input():
            return "enters the graph as integers"
        if not is_constant(integers) and (producer is None or not is_quantize(producer)):
            return f"is made of integers by {label(producer) if producer is not None else 'a body'}"
    others = [use.node for use in integers.uses() if not is_dequantize(use.node) or use.idx != 0]
    return f"has integers that {label(others[0])} reads too" if others else None

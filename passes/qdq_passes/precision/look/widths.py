"""In how many bits operators compute, read from the DequantizeLinear nodes that their operands come from; how often values change
between 8 bit and anything else.

A multiply-accumulate is as wide as its widest operand: int4 weights times uint8 activations are 8 bit, times uint16 activations
16 bit; with integer weights alone, float activations, it is float. The bias does not count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.convex import DisjointSets
from qdq_passes.graph.operators.kinds import CONTROL_INPUTS
from qdq_passes.graph.operators.macs import MULTIPLYING, macs_of
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantization, is_quantize_dequantize
from qdq_passes.graph.uses import (
    FLOAT_TYPES,
    SHARING,
    all_nodes,
    dtype_of,
    is_constant,
    is_standard,
    label,
    only_reader,
)
from qdq_passes.integers.look.dynamic_quantization import dynamic_groups
from qdq_passes.numerics.encoding import integer_format, is_integer_type
from qdq_passes.precision.look.boundaries import FUSED
from qdq_passes.qdq.look.pairs import encoding_of

#: Width of what is held as a float, of any type: above those of all integers that operands are stored in.
FLOAT = 64
#: Up to so many bits count as 8 bit.
EIGHT = 8


class OperandWidths:
    """Widths in one model, which is not to be changed while this is in use.

    Args:
        model: the model.
    """

    def __init__(self, model: ir.Model) -> None:
        groups = dynamic_groups(model)
        self._dynamic = {group.output: integer_format(group.dtype)[1] for group in groups}
        self._inside = {node: integer_format(group.dtype)[1] for group in groups for node in group.nodes}
        self._traced: dict[ir.Value, int] = {}
        self.nodes = all_nodes(model)

    def of_value(self, value: ir.Value) -> int:
        """Bits that ``value`` is held in where it is read: of the DequantizeLinear before it, looking through what only moves
        values; `FLOAT` without one."""
        if value not in self._traced:
            self._traced[value] = self._trace(value)
        return self._traced[value]

    def of_product(self, node: ir.Node) -> int:
        """Bits of the wider of the two operands that ``node`` (a Conv, Gemm, MatMul…) multiplies."""
        return max(self.of_value(value) for value in node.inputs[:2] if value is not None)

    def of_operator(self, node: ir.Node) -> int | None:
        """Bits that ``node`` computes in: of the widest activation it reads; None when it computes on no float.

        Operators between which no pair stands are one: an activation is one with the layer before it; others (a Gelu or a norm
        spelt out) are where they make one tensor, and it and all that they read is at most 8 bit. What else is read without a
        pair is `FLOAT`.
        """
        operands = self.operands(node)
        if not operands:
            return None
        first = node.inputs[0]
        if is_standard(node, *FUSED) and first is not None and only_reader(first) is node:
            layer = first.producer()
            if layer is not None and self.computes(layer):
                return self.of_operator(layer)
        width = max(self.of_value(value) for value in operands)
        return EIGHT if width == FLOAT and node in self._narrow else width

    def computes(self, node: ir.Node) -> bool:
        """Whether ``node`` computes on floats: it neither quantizes, nor casts, nor only moves values."""
        return not (self.is_pair(node) or is_standard(node, "Cast", *SHARING)) and bool(self.operands(node))

    def is_pair(self, node: ir.Node) -> bool:
        """Whether ``node`` belongs to what quantizes and dequantizes."""
        return is_quantization(node) or node in self._inside

    def given_by(self, node: ir.Node) -> int | None:
        """Bits that a node that computes nothing gives to what it hands on: those of a pair, `FLOAT` of a Cast; else None."""
        if node in self._inside:
            return self._inside[node]
        if self.is_pair(node):
            return bits_of(node)
        return FLOAT if is_float_cast(node) else None

    def operands(self, node: ir.Node) -> list[ir.Value]:
        """Floats that ``node`` computes on, without its parameters."""
        control = CONTROL_INPUTS.get(node.op_type, set()) if node.domain in ("", "ai.onnx") else set()
        found = [v for i, v in enumerate(node.inputs) if v is not None and i not in control and not _is_parameter(v)]
        return [v for v in found if dtype_of(v) is None or dtype_of(v) in FLOAT_TYPES]

    def _trace(self, value: ir.Value) -> int:
        seen: set[ir.Value] = set()
        while value not in seen:
            seen.add(value)
            producer = value.producer()
            if value in self._dynamic:
                return self._dynamic[value]
            if producer is not None and (is_dequantize(producer) or is_quantize_dequantize(producer)):
                return bits_of(producer)
            if producer is None or not is_standard(producer, *SHARING) or producer.inputs[0] is None:
                return FLOAT
            value = producer.inputs[0]
        return FLOAT

    @cached_property
    def _narrow(self) -> set[ir.Node]:
        """The nodes of groups without pairs inside that make one tensor, and that nothing wider than 8 bit enters or leaves."""
        chosen = [node for node in self.nodes if not self.is_pair(node) and self.operands(node)]
        found: set[ir.Node] = set()
        for group in _connected(chosen, self.operands):
            members = set(group)
            left = [v for node in group for v in node.outputs if any(user not in members for user in v.consumers())]
            if len(left) == 1 and all(self._has_narrow_ends(node, members) for node in group):
                found |= members
        return found

    def _has_narrow_ends(self, node: ir.Node, group: set[ir.Node]) -> bool:
        entering = [v for v in self.operands(node) if v.producer() not in group]
        leaving = [user for v in node.outputs for user in v.consumers() if user not in group]
        if is_float_cast(node) or any(v.is_graph_output() for v in node.outputs):
            return False
        if any(self.of_value(v) > EIGHT for v in entering):
            return False
        return all(self.is_pair(user) and (self.given_by(user) or FLOAT) <= EIGHT for user in leaving)


def is_float_cast(node: ir.Node) -> bool:
    """Whether ``node`` casts a float to another float type."""
    if not is_standard(node, "Cast") or node.inputs[0] is None:
        return False
    source, to = dtype_of(node.inputs[0]), dtype_of(node.outputs[0])
    return to in FLOAT_TYPES and (source is None or source in FLOAT_TYPES) and source != to


def bits_of(node: ir.Node) -> int:
    """Bits of what a Q, DQ or FixNeuron stores."""
    encoding = encoding_of(node)
    dtype = encoding.dtype if encoding is not None else None
    if dtype is None and not is_quantize_dequantize(node):
        integers = node.inputs[0] if is_dequantize(node) else node.outputs[0]
        dtype = dtype_of(integers) if integers is not None else None
    if dtype is None:
        return FLOAT
    return integer_format(dtype)[1] if is_integer_type(dtype) else dtype.bitwidth


def _connected(nodes: list[ir.Node], operands: Callable[[ir.Node], list[ir.Value]]) -> list[list[ir.Node]]:
    """``nodes`` in groups: connected by values that one of them writes and another computes on."""
    sets = DisjointSets(nodes)
    for node in nodes:
        for value in operands(node):
            producer = value.producer()
            if producer is not None and producer in sets:
                sets.join(producer, node)
    return sets.groups()


def _is_parameter(value: ir.Value) -> bool:
    """Whether ``value`` is constant, or made of a constant by pairs and Casts."""
    seen: set[ir.Value] = set()
    while value not in seen:
        seen.add(value)
        if is_constant(value):
            return True
        node = value.producer()
        if node is None or node.inputs[:1] in ((), (None,)):
            return False
        if not (is_quantization(node) or is_standard(node, "Cast")):
            return False
        first = node.inputs[0]
        assert first is not None
        value = first
    return False


#: Bits of the widest operand, at most → the share that it counts for.
SHARES = {4: "4", 8: "8", 16: "16"}


@dataclass(frozen=True)
class Crossing:
    """A tensor that occurs in 8 bit or less and in something wider.

    Args:
        tensor: what its producer writes.
        producer: name of the node that computes it.
        readers: names of the nodes that compute with it.
        widths: bits that occur, ascending; 64 for floats.
    """

    tensor: str
    producer: str
    readers: tuple[str, ...]
    widths: tuple[int, ...]


def mac_counts(model: ir.Model) -> dict[str, int]:
    """Multiply-accumulates of one inference by the width of their widest operand: ``4``, ``8``, ``16`` and ``float``.

    Conv, ConvTranspose, Gemm and MatMul count, in bodies and functions too; a dimension that is not known counts as 1, a product
    of unknown shape nothing.
    """
    widths = OperandWidths(model)
    counts = dict.fromkeys((*SHARES.values(), "float"), 0)
    for node in all_nodes(model):
        if is_standard(node, *MULTIPLYING):
            bits = widths.of_product(node)
            counts[next((name for most, name in SHARES.items() if bits <= most), "float")] += macs_of(node) or 0
    return counts


def mac_shares(model: ir.Model) -> dict[str, float]:
    """`mac_counts` as shares of their sum, 0 to 1; all 0 where nothing is multiplied."""
    return shares_of(mac_counts(model))


def shares_of(counts: Mapping[str, int]) -> dict[str, float]:
    """Counts as shares of their sum; all 0 where that is 0."""
    total = sum(counts.values())
    return {name: count / total if total else 0.0 for name, count in counts.items()}


def boundary_crossings(model: ir.Model) -> list[Crossing]:
    """The tensors at which ``model`` changes between 8 bit and anything else, each once, in the order of the graph.

    A tensor is followed from the operator that computes it, through pairs, Casts and what only moves values, to those that
    compute with it. It is a crossing where up to 8 bit and more both occur: as widths that these operators compute in
    (`OperandWidths.of_operator`), or as types of the pairs and Casts on the way. Graph inputs are computed by none, and with
    what is only a graph output nothing computes.
    """
    widths = OperandWidths(model)
    found = []
    for node in all_nodes(model):
        own = widths.of_operator(node) if widths.computes(node) else None
        for value in node.outputs if own is not None else ():
            readers, on_the_way = _behind(widths, value)
            occurring = {own, *on_the_way, *(widths.of_operator(reader) for reader in readers)} - {None}
            bits = tuple(sorted(width for width in occurring if width is not None))
            if readers and bits[0] <= EIGHT < bits[-1]:
                names = tuple(label(reader) for reader in readers)
                found.append(Crossing(value.name or "", label(node), names, bits))
    return found


def _behind(widths: OperandWidths, value: ir.Value) -> tuple[list[ir.Node], set[int]]:
    """The nodes that compute with ``value`` in the end, and the widths that it is given on the ways to them."""
    readers: dict[ir.Node, None] = {}
    given: set[int] = set()
    for node in value.consumers():
        if widths.computes(node):
            readers |= dict.fromkeys([node] if any(v is value for v in widths.operands(node)) else [])
        elif widths.is_pair(node) or is_standard(node, "Cast", *SHARING):
            for output in node.outputs if is_standard(node, *SHARING) else node.outputs[:1]:
                beyond, more = _behind(widths, output)
                width = widths.given_by(node)
                readers |= dict.fromkeys(beyond)
                given |= {*more, *([width] if width is not None and beyond else [])}
    return list(readers), given

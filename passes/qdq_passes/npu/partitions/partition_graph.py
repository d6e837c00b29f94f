"""Partitions: convex sets of nodes that an NPU runs as one program, and what crosses their edges.

    x → Q → DQ → Conv → Q → DQ → Softplus → Q → DQ → Conv → Q → DQ → y
            └─ partition 0 ┘                     └ partition 1 ┘

A QuantizeLinear belongs to the unit it ends, a DequantizeLinear to the partition that alone reads it; one with readers elsewhere
stays with its readers in the partition that writes its integers, or else outside. A pair on a constant joins its reader; where
several partitions read it, each has a copy."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.convex import convex_groups, joined_siblings
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_qdq, is_quantize, reads_stored
from qdq_passes.graph.uses import constant_array, dtype_of, is_constant
from qdq_passes.npu.units.units import Unit, UnitGraph, operands_of
from qdq_passes.numerics.missing import is_missing


@dataclass(frozen=True, eq=False, kw_only=True)
class Partition:
    """Nodes that the NPU runs as one program.

    Args:
        id: counts from 0, in the order of the first nodes.
        engine: the engine that computes most of its units, the first such.
        units: their units, each after what it reads.
        nodes: their nodes, QuantizeLinear and DequantizeLinear included, in the order of the file; in no other partition.
        indices: places of ``nodes`` in the main graph.
        copies: pairs on constants that others read too: each reader has its own.
        inputs: values from outside that are no constants, in the order in which ``nodes`` read them.
        outputs: values that something outside reads, or that are graph outputs, in the order in which ``nodes`` write them.
    """

    id: int
    engine: str
    units: tuple[Unit, ...]
    nodes: tuple[ir.Node, ...]
    indices: tuple[int, ...]
    copies: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]

    @property
    def boundary_bytes(self) -> int:
        """Bytes that cross its edge in one inference; a dimension that is not known counts as 1."""
        return sum(bytes_of(value) for value in (*self.inputs, *self.outputs))

    @cached_property
    def compute_nodes(self) -> int:
        """Operators that compute or move data; requantizations are none."""
        return compute_nodes(self.units)


def compute_nodes(units: Iterable[Unit]) -> int:
    """Operators of ``units`` that compute or move data; requantizations are none."""
    return sum(len(unit.nodes) for unit in units if unit.is_compute and not unit.is_requantization)


def bytes_of(value: ir.Value) -> int:
    """Bytes of ``value`` in one inference; two 4-bit elements are a byte. A dimension, or a whole shape, that is not known counts
    as 1, an unknown type as float32, and so do texts."""
    shape = next((v.shape for v in itertools.chain((value,), _same_shape(value)) if v.shape is not None), ())
    count = math.prod(d if isinstance(d, int) else 1 for d in shape)
    dtype = _element_type(value)
    plain = ir.DataType.FLOAT if dtype in (None, ir.DataType.STRING, ir.DataType.UNDEFINED) else dtype
    return -(-count * plain.bitwidth // 8)


def weight_bytes(units: Iterable[Unit]) -> int:
    """Bytes of the weights, biases and other constants of ``units``, each once, as they are stored after quantization."""
    return sum(stored_weights(units).values())


def stored_weights(units: Iterable[Unit]) -> dict[ir.Value, int]:
    """The weights, biases and other constants of ``units``, and their bytes as they are stored after quantization."""
    found: dict[ir.Value, int] = {}
    for unit in units:
        operands = [*unit.operands, *(operand for node in unit.tail for operand in operands_of(node))]
        for operand in operands:
            if operand.constant and operand.kind != "control":
                source = (
                    operand.quantize.inputs[0] if operand.quantize is not None else operand.integers or operand.value
                )
                tensor = None if source is None else source.const_value
                array = tensor if is_missing(tensor) else constant_array(source)
                if source is not None and array is not None:
                    bits = operand.encoding.dtype.bitwidth if operand.encoding is not None else 0
                    found[source] = -(-array.size * bits // 8) if bits else array.nbytes
    return found


def group_units(graph: UnitGraph, taken: Collection[Unit], *, join_siblings: bool = False) -> list[tuple[Unit, ...]]:
    """The units of ``taken`` that run together, in the order of their first units.

    Args:
        graph: all units.
        taken: those to be in groups.
        join_siblings: see `joined_siblings`.
    """
    members: dict[int, list[Unit]] = {}
    groups = convex_groups(graph.before, [item in taken for item in graph.items])
    if join_siblings:
        groups = joined_siblings(graph.before, groups)
    for item, group in zip(graph.items, groups, strict=True):
        if group is not None and isinstance(item, Unit):
            members.setdefault(group, []).append(item)
    return [tuple(units) for units in members.values()]


def with_data(graph: UnitGraph, taken: Collection[Unit]) -> set[Unit]:
    """``taken`` without what works on shapes, indices and masks that the CPU makes: it would begin a group of no operator that
    computes, which the others wait for."""
    found: set[Unit] = set()
    for item, before in zip(graph.items, graph.before, strict=True):
        read = [graph.items[number] for number in before]
        if item in taken and isinstance(item, Unit) and (item.is_compute or all(other in found for other in read)):
            found.add(item)
    return found


def make_partitions(
    nodes: Iterable[ir.Node],
    graph: UnitGraph,
    groups: Sequence[tuple[Unit, ...]],
    engines: Mapping[Unit, str],
    *,
    ends_inside: bool,
) -> list[Partition]:
    """Partitions of ``groups`` of units, with their Q and DQ nodes.

    Args:
        nodes: those of the main graph, in the order of the file.
        graph: its units.
        groups: from `group_units`.
        engines: what computes each unit of a group.
        ends_inside: whether the QuantizeLinear of a float graph input and the DequantizeLinear of a float graph output belong
            to the partition beside them.
    """
    owners = _Owners(nodes, graph, groups, ends_inside=ends_inside)
    found = []
    for number, units in enumerate(groups):
        inside, copies = owners.nodes[number], owners.copies[number]
        found.append(
            Partition(
                id=number,
                engine=Counter(engines[unit] for unit in units).most_common(1)[0][0],
                units=units,
                nodes=tuple(inside),
                indices=tuple(owners.places[node] for node in inside),
                copies=tuple(copies),
                inputs=tuple(_inputs(inside, copies)),
                outputs=tuple(_outputs(inside)),
            )
        )
    return found


class _Owners:
    """Which group each node belongs to.

    Args:
        places: node of the main graph → its index.
        nodes: nodes of each group, in order.
        copies: pairs on constants of each group that others read too, in order.
    """

    def __init__(
        self, nodes: Iterable[ir.Node], graph: UnitGraph, groups: Sequence[tuple[Unit, ...]], *, ends_inside: bool
    ) -> None:
        self.places = {node: index for index, node in enumerate(nodes)}
        self._ends_inside = ends_inside
        group_of = {unit: number for number, units in enumerate(groups) for unit in units}
        of_item = [group_of.get(item) if isinstance(item, Unit) else None for item in graph.items]
        self._owner = {node: of_item[item] for node, item in graph.item_of.items()}
        self._copied: dict[ir.Node, set[int | None]] = {}
        for node in reversed(graph.nodes):  # readers first
            if node not in graph.item_of and is_qdq(node):
                self._place(node)
        self.nodes: list[list[ir.Node]] = [[] for _ in groups]
        self.copies: list[list[ir.Node]] = [[] for _ in groups]
        for node in self.places:
            owner = self._owner.get(node)
            if owner is not None:
                self.nodes[owner].append(node)
            for number in self._copied.get(node, ()):
                if number is not None:
                    self.copies[number].append(node)

    def _place(self, node: ir.Node) -> None:
        read = self._readers(node.outputs[0])
        only = next(iter(read)) if len(read) == 1 else None
        source = node.inputs[0]
        if reads_stored(node):
            self._owner[node] = only
            if len(read) > 1:
                self._copied[node] = read
        elif is_dequantize(node):
            producer = source.producer() if source is not None else None
            behind = self._owner.get(producer) if producer is not None else None
            stays = behind in read or (node.outputs[0].is_graph_output() and self._ends_inside)
            self._owner[node] = behind if only is None and stays else only
        elif source is not None and source.is_graph_input() and self._ends_inside:
            self._owner[node] = only

    def _readers(self, value: ir.Value) -> set[int | None]:
        """Groups that read ``value``; None for everything else, a graph output too."""
        found: set[int | None] = {None} if value.is_graph_output() else set()
        for use in value.uses():
            found |= self._copied.get(use.node) or {self._owner.get(use.node)}
        return found


def _inputs(nodes: Sequence[ir.Node], copies: Sequence[ir.Node]) -> Iterator[ir.Value]:
    known = {value for node in (*nodes, *copies) for value in node.outputs}
    for node in nodes:
        for value in node.inputs:
            if value is not None and value not in known and not is_constant(value):
                known.add(value)
                yield value


def _outputs(nodes: Sequence[ir.Node]) -> Iterator[ir.Value]:
    inside = set(nodes)
    for node in nodes:
        for value in node.outputs:
            if value.is_graph_output() or any(use.node not in inside for use in value.uses()):
                yield value


def _same_shape(value: ir.Value) -> Iterator[ir.Value]:
    """Values of the same shape: before the QuantizeLinear of integers, behind their DequantizeLinear."""
    producer = value.producer()
    if producer is not None and is_quantize(producer) and producer.inputs[0] is not None:
        yield producer.inputs[0]
    for use in value.uses():
        if is_dequantize(use.node) and use.idx == 0:
            yield use.node.outputs[0]


def _element_type(value: ir.Value) -> ir.DataType | None:
    """Type of an element: of integers that of the zero point, where the value itself tells none."""
    found = dtype_of(value)
    producer = value.producer()
    if found is not None or producer is None or not is_quantize(producer):
        return found
    zero_point = producer.inputs[2] if len(producer.inputs) > 2 else None
    return dtype_of(zero_point) if zero_point is not None else ir.DataType.UINT8

"""Cosines and sines that follow from positions alone: where they begin, where they are read, and the graph between.

    position_ids → Cast → Mul(frequencies) → Concat → Cos → Mul(factor) │ Unsqueeze → Mul(queries)

They are cut behind the last operator that computes (│): what only lays them out stays. Positions are a graph input of integers,
or the integers that the graph makes of one number a row."""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.foreign import tensor_proto, to_proto
from qdq_passes.graph.sizes import static_sizes
from qdq_passes.graph.uses import dtype_of, has_body, in_order, is_constant, is_standard, label, values_read

#: Lay elements out, each elsewhere: what reads a table may do so as well.
_LAYING_OUT = frozenset({"Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
#: Operators over which one position tells another one's angles: a rotation that chooses frequencies by the longest.
_MIXING = frozenset({"ArgMax", "ArgMin", "CumSum", "Max", "Min", "Softmax", "TopK"})


@dataclass(frozen=True, eq=False, kw_only=True)
class Angles:
    """Cosines and sines of positions.

    Args:
        source: the graph input that they follow from, int32 or int64.
        starts: values of integers that hold a position each, static; the first that tells the angles of its own is to be taken.
        values: what is read of them.
        nodes: all between ``source`` and ``values``, in order, with what they read of constants.
        trigonometry: the Cos and Sin among them.
    """

    source: ir.Value
    starts: tuple[ir.Value, ...]
    values: tuple[ir.Value, ...]
    nodes: tuple[ir.Node, ...]
    trigonometry: tuple[ir.Node, ...]

    def between(self, start: ir.Value) -> list[ir.Node] | None:
        """What of ``nodes`` makes ``values`` of ``start`` and constants; None where something else is read."""
        return self._path(start, self.values)

    def made_by(self, start: ir.Value) -> list[ir.Node]:
        """What of ``nodes`` makes ``start`` of the source; nothing where it is the source."""
        return self._path(self.source, (start,)) or []

    def _path(self, start: ir.Value, ends: tuple[ir.Value, ...]) -> list[ir.Node] | None:
        wanted, found = list(ends), dict[ir.Node, None]()
        while wanted:
            value = wanted.pop()
            producer = value.producer()
            if value is start or (producer is None and is_constant(value)):
                continue
            if producer is None or value.is_graph_input():
                return None
            if producer not in found:
                found[producer] = None
                wanted += values_read(producer)
        return [node for node in self.nodes if node in found]


def rotary_angles(graph: ir.Graph) -> Iterator[Angles | tuple[ir.Node, str]]:
    """The angles of ``graph``, by the input that they follow from; a Cos or Sin that follows from more, and why it is left."""
    origins: dict[ir.Value, frozenset[ir.Value]] = {value: frozenset({value}) for value in graph.inputs}
    for value in graph.initializers.values():
        if is_constant(value):
            origins[value] = frozenset()
    nodes = in_order(graph)
    for node in nodes:
        read = [origins.get(value, frozenset({value})) for value in values_read(node)]
        for output in node.outputs:
            origins[output] = frozenset().union(*read)
    groups: dict[ir.Value, list[ir.Node]] = {}
    for node in nodes:
        if not is_standard(node, "Cos", "Sin") or not (found := origins[node.outputs[0]]):
            continue
        source = next(iter(found))
        dtype = dtype_of(source)
        if len(found) > 1 or dtype not in (ir.DataType.INT32, ir.DataType.INT64):
            yield node, f"it is not of positions alone, but of {', '.join(sorted(v.name or '' for v in found))}"
        else:
            groups.setdefault(source, []).append(node)
    for source, trigonometry in groups.items():
        yield _angles(nodes, origins, source, tuple(trigonometry))


def why_mixed(nodes: list[ir.Node]) -> str | None:
    """Why the angles of one position may hang on other positions, in words; None where no operator mixes them."""
    for node in nodes:
        if has_body(node):
            return f"{label(node)} computes a body"
        if node.op_type in _MIXING or node.op_type.startswith("Reduce"):
            return f"{label(node)} makes one number of several positions"
    return None


def why_foreign(nodes: list[ir.Node]) -> str | None:
    """Which operator is none of ONNX's own, in words: nobody here knows what it computes; None where all are."""
    found = next((node for node in nodes if not is_standard(node, node.op_type)), None)
    return None if found is None else f"{label(found)} is an operator of {found.domain}"


def graph_between(
    nodes: list[ir.Node], start: ir.Value, values: tuple[ir.Value, ...], opset: int, ir_version: int
) -> onnx.ModelProto:
    """A model of ``nodes`` alone, from ``start`` to ``values``, constants within."""
    constants = {v for node in nodes for v in values_read(node) if v.producer() is None and v is not start}
    graph = onnx.GraphProto(name="angles", node=[to_proto(node) for node in nodes])
    for value in sorted(constants, key=lambda v: v.name or ""):
        assert value.const_value is not None
        graph.initializer.append(tensor_proto(value.const_value, value.name))
    for values_of, ends in ((graph.input, (start,)), (graph.output, values)):
        for value in ends:
            shape = [int(d) for d in value.shape if isinstance(d, int)] if value is start and value.shape else None
            dtype = dtype_of(value)
            if dtype is None:  # who computes it finds out
                values_of.append(onnx.ValueInfoProto(name=value.name))
            else:
                values_of.append(onnx.helper.make_tensor_value_info(value.name or "", int(dtype), shape))
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=ir_version)


def _count(value: ir.Value) -> int:
    """Elements of ``value`` where its shape is static, else 0."""
    sizes = static_sizes(value)
    return 0 if sizes is None else math.prod(sizes)


def _angles(
    nodes: list[ir.Node],
    origins: dict[ir.Value, frozenset[ir.Value]],
    source: ir.Value,
    trigonometry: tuple[ir.Node, ...],
) -> Angles:
    """The angles that follow from ``source``."""
    pure = [node for node in nodes if all(origins[v] <= {source} for v in node.outputs)]
    inside, behind = set(pure), set(trigonometry)
    for node in pure:
        if any(value.producer() in behind for value in values_read(node)):
            behind.add(node)
    read: dict[ir.Value, None] = {}
    for node in pure:
        if node not in behind:
            continue
        for value in node.outputs:
            if value.is_graph_output() or any(use.node not in inside for use in value.uses()):
                read[_before_laying_out(value, behind)] = None
    starts = [source, *(v for node in pure if node not in behind for v in node.outputs if origins[v])]
    static = [v for v in starts if dtype_of(v) in (ir.DataType.INT32, ir.DataType.INT64) and _count(v)]
    static.sort(key=lambda v: -_count(v))
    return Angles(source=source, starts=tuple(static), values=tuple(read), nodes=tuple(pure), trigonometry=trigonometry)


def _before_laying_out(value: ir.Value, behind: set[ir.Node]) -> ir.Value:
    """What ``value`` is before it was laid out; itself where it is a graph output."""
    while not value.is_graph_output():
        node = value.producer()
        if node is None or not is_standard(node, *_LAYING_OUT) or node.inputs[0] is None:
            break
        if node.inputs[0].producer() not in behind:
            break
        value = node.inputs[0]
    return value

"""Who makes, reads and holds a value, and what lies between two; bodies and local functions included. Attributes of nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.numerics.missing import data_of

#: Operators that move elements without computing on them: output and input share one encoding.
DATA_MOVEMENT = frozenset({
    "DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile",
    "Transpose", "Unsqueeze",
})  # fmt: skip

#: Operators whose output takes values of their first input only, so that both share one encoding.
SHARING = DATA_MOVEMENT | {"MaxPool"}

FLOAT_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})
#: Float types that QuantizeLinear takes; float64 is none of them.
QUANTIZABLE_TYPES = FLOAT_TYPES - {ir.DataType.DOUBLE}

#: Why nothing is done with a value of which `dtype_of` tells nothing.
UNKNOWN_TYPE = "its type is unknown; run infer-shapes first"

GraphLike = ir.Graph | ir.Function

#: Operators whose first output has the element type of their first data input (the second of Where and DequantizeLinear).
SAME_TYPE = DATA_MOVEMENT | {
    "Abs", "Add", "AveragePool", "BatchNormalization", "Ceil", "Clip", "Concat", "Conv", "ConvTranspose",
    "DequantizeLinear", "Div", "Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu", "Gemm", "GlobalAveragePool",
    "GlobalMaxPool", "HardSigmoid", "HardSwish", "InstanceNormalization", "LayerNormalization", "LeakyRelu", "Log",
    "LogSoftmax", "LpNormalization", "MatMul", "Max", "MaxPool", "Mean", "Min", "Mish", "Mul", "Neg", "PRelu", "Pad",
    "Pow", "RMSNormalization", "Reciprocal", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Relu", "Resize",
    "Selu", "Sigmoid", "Sign", "Softmax", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tanh", "Where",
}  # fmt: skip

#: Types of Constant's attributes that are no tensors.
_CONSTANT_TYPES = {
    "value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64,
    "value_string": np.object_, "value_strings": np.object_,
}  # fmt: skip

#: Operators whose further inputs say along which axes, or into which shape: those are no part of what is computed.
_STEERED = ("Expand", "ReduceL2", "ReduceMean", "ReduceSum", "ReduceSumSquare", "Reshape", "Squeeze", "Unsqueeze")


def graph_likes(model: ir.Model) -> list[GraphLike]:
    """The main graph and every local function."""
    return [model.graph, *model.functions.values()]


def all_nodes(model: ir.Model) -> list[ir.Node]:
    """Every node: main graph, bodies of control flow, local functions; in the order of the file."""
    found: list[ir.Node] = []
    for graph_like in graph_likes(model):
        _gather(graph_like, found)
    return found


def _gather(graph: GraphLike, found: list[ir.Node]) -> None:
    """Append the nodes of ``graph`` to ``found``, each before those of its bodies; faster than onnx_ir's own iterator."""
    for node in graph:
        found.append(node)
        if node.attributes:
            for body in bodies_of(node):
                _gather(body, found)


def all_graphs(model: ir.Model) -> list[ir.Graph]:
    """Every graph that may hold initializers: the main graph and all bodies of control flow, those in functions too."""
    return [graph for graph in all_graph_likes(model) if isinstance(graph, ir.Graph)]


def all_graph_likes(model: ir.Model) -> list[GraphLike]:
    """Every graph, body of control flow and local function, each without what stands in its bodies."""
    return [found for graph_like in graph_likes(model) for found in with_bodies(graph_like)]


def with_bodies(graph: GraphLike) -> list[GraphLike]:
    """``graph`` and every body in it, each before those in it; faster than onnx_ir's ``subgraphs``."""
    bodies = (body for node in graph if node.attributes for body in bodies_of(node))
    return [graph, *(found for body in bodies for found in with_bodies(body))]


def all_values(model: ir.Model) -> list[ir.Value]:
    """Every value, each once: inputs and initializers of each graph, then outputs of its nodes."""
    return list(dict.fromkeys(_values(model)))


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph_like in all_graph_likes(model):
        yield from graph_like.inputs
        if isinstance(graph_like, ir.Graph):
            yield from graph_like.initializers.values()
        for node in graph_like:
            yield from node.outputs


def constant_array(value: ir.Value | None) -> npt.NDArray[Any] | None:
    """The array of an initializer (that is no graph input) or of a Constant node's output; None when not constant, or missing.

    An initializer that is also a graph input is a default that the caller may override, hence not constant.
    """
    if value is None or value.is_graph_input():
        return None
    if value.const_value is not None:
        return data_of(value.const_value)
    producer = value.producer()
    if producer is None or not is_standard(producer, "Constant"):
        return None
    for name, attribute in producer.attributes.items():
        if attribute.is_ref() or name == "sparse_value":
            return None
        if name == "value":
            return data_of(attribute.as_tensor())
        array: npt.NDArray[Any] = np.array(attribute.value, _CONSTANT_TYPES[name])
        return array
    return None


def known_array(value: ir.Value | None) -> npt.NDArray[Any]:
    """The array of ``value``, which is known to be constant."""
    array = constant_array(value)
    assert array is not None
    return array


def is_constant(value: ir.Value | None) -> bool:
    """Whether ``value`` is stored in the model (the data is not read, and may be missing)."""
    if value is None or value.is_graph_input():
        return False
    if value.const_value is not None:
        return True
    producer = value.producer()
    return producer is not None and producer.op_type == "Constant" and producer.domain in ("", "ai.onnx")


def dtype_of(value: ir.Value, known: Mapping[ir.Value, ir.DataType | None] = {}) -> ir.DataType | None:
    """Element type of ``value``: ``known``, its own, its tensor's, its Cast's, or what `SAME_TYPE` operators keep; else None."""
    seen: set[ir.Value] = set()
    current: ir.Value | None = value
    while current is not None and current not in seen:
        seen.add(current)
        if current.dtype is not None or current in known:
            return known.get(current, current.dtype)
        if current.const_value is not None:
            return current.const_value.dtype
        array = constant_array(current)
        if array is not None:
            return None if array.dtype.kind == "O" else ir.DataType.from_numpy(array.dtype)
        producer = current.producer()
        if producer is not None and is_standard(producer, "Cast"):
            to = producer.attributes.get("to")
            return None if to is None or to.is_ref() else ir.DataType(to.as_int())
        if producer is None or producer.op_type not in SAME_TYPE or producer.domain not in ("", "ai.onnx"):
            return None
        if producer.outputs[0] is not current:
            return None
        written = producer.attributes.get("output_dtype")
        if written is not None and producer.op_type == "DequantizeLinear" and not written.is_ref() and written.as_int():
            return ir.DataType(written.as_int())
        index = 1 if producer.op_type in ("Where", "DequantizeLinear") else 0
        current = producer.inputs[index] if index < len(producer.inputs) else None
    return None


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """Input ``index`` of ``node``; None where there is none, or it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def may_be_float(value: ir.Value) -> bool:
    """Whether ``value`` is, or as far as is known may be, a float tensor."""
    dtype = dtype_of(value)
    return dtype is None or dtype in FLOAT_TYPES


def readers(value: ir.Value) -> list[tuple[ir.Node, int]]:
    """(node, input index) of every reader, bodies included, in a stable order."""
    return [(use.node, use.idx) for use in value.uses()]


def only_reader(value: ir.Value) -> ir.Node | None:
    """The one node that reads ``value``, once; None when there are several uses or it is a graph output."""
    uses = readers(value)
    return uses[0][0] if len(uses) == 1 and not value.is_graph_output() else None


def is_standard(node: ir.Node, *op_types: str) -> bool:
    """Whether ``node`` is one of ``op_types`` of the default ONNX domain."""
    return node.domain in ("", "ai.onnx") and node.op_type in op_types


def has_body(node: ir.Node) -> bool:
    """Whether ``node`` holds a graph (If, Loop, Scan, SequenceMap)."""
    return any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values())


def bodies_of(node: ir.Node) -> list[ir.Graph]:
    """The graphs that ``node`` holds."""
    found: list[ir.Graph] = []
    for attribute in node.attributes.data.values():
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            found.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
            found += attribute.as_graphs()
    return found


def main_nodes(model: ir.Model) -> list[ir.Node]:
    """Nodes of the main graph, without bodies."""
    return list(model.graph)


def op_type_of(node: ir.Node) -> str:
    """The operator as targets and reports write it: bare for ONNX's own, else ``domain::type``."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"


def label(node: ir.Node) -> str:
    """What messages call ``node``: its name, or its type where it has none."""
    return node.name or node.op_type


def integers_of(node: ir.Node, attribute: str) -> list[int]:
    """A list attribute of ``node``; empty where it has none."""
    found = node.attributes.get(attribute)
    return [] if found is None or found.is_ref() else list(found.as_ints())


def integer_of(node: ir.Node, attribute: str, default: int) -> int:
    """An integer attribute of ``node``."""
    found = node.attributes.get(attribute)
    return default if found is None or found.is_ref() else found.as_int()


def float_of(node: ir.Node, attribute: str, default: float) -> float:
    """A float attribute of ``node``."""
    found = node.attributes.get(attribute)
    return default if found is None or found.is_ref() else found.as_float()


def text_of(node: ir.Node, attribute: str, default: str) -> str:
    """A text attribute of ``node``."""
    found = node.attributes.get(attribute)
    return default if found is None or found.is_ref() else found.as_string()


@dataclass(frozen=True)
class Reach:
    """Predecessors and successors of every node of one graph; built once, asked often."""

    predecessors: dict[ir.Node, list[ir.Node]]
    successors: dict[ir.Node, list[ir.Node]]

    def after(self, nodes: Iterable[ir.Node]) -> set[ir.Node]:
        """Nodes that (transitively) read what ``nodes`` write; ``nodes`` themselves left out."""
        return _closure(nodes, self.successors)

    def before(self, nodes: Iterable[ir.Node]) -> set[ir.Node]:
        """Nodes whose outputs ``nodes`` (transitively) read; ``nodes`` themselves left out."""
        return _closure(nodes, self.predecessors)

    def between(self, sources: Iterable[ir.Node], sinks: Iterable[ir.Node]) -> set[ir.Node]:
        """Nodes on any path from a source to a sink, both ends included; empty when no path exists."""
        sources, sinks = set(sources), set(sinks)
        return (self.after(sources) | sources) & (self.before(sinks) | sinks)

    def inside(self, sources: Iterable[ir.Node], sinks: Iterable[ir.Node]) -> set[ir.Node]:
        """Nodes on a path from a source to a sink that meets no other source or sink, both ends left out."""
        sources, sinks = set(sources), set(sinks)
        ends = sources | sinks
        return _closure(sources, self.successors, ends) & _closure(sinks, self.predecessors, ends)


def reach(graph: ir.Graph | Sequence[ir.Node]) -> Reach:
    """Edges of ``graph``, or of its nodes, values captured by bodies included."""
    predecessors: dict[ir.Node, list[ir.Node]] = {node: [] for node in graph}
    successors: dict[ir.Node, list[ir.Node]] = {node: [] for node in graph}
    for node in graph:
        producers = (value.producer() for value in values_read(node))
        for producer in dict.fromkeys(p for p in producers if p is not None):
            if producer in successors:
                predecessors[node].append(producer)
                successors[producer].append(node)
    return Reach(predecessors, successors)


def values_read(node: ir.Node) -> list[ir.Value]:
    """Inputs of ``node`` and what its bodies capture from outside."""
    values = [value for value in node.inputs if value is not None]
    for body in bodies_of(node):
        values += _captured(node, body)
    return values


def needed_for(values: Iterable[ir.Value]) -> set[ir.Node]:
    """Nodes that ``values`` are computed by, through all graphs that these read from."""
    stack = [node for value in values if (node := value.producer()) is not None]
    found = set(stack)
    while stack:
        for value in values_read(stack.pop()):
            node = value.producer()
            if node is not None and node not in found:
                found.add(node)
                stack.append(node)
    return found


def in_order(graph: Iterable[ir.Node]) -> list[ir.Node]:
    """The nodes of ``graph``, or of a list, producers first even where the file has them in another order. What bodies capture
    counts; in a graph with a cycle, which is invalid, each node still comes once."""
    nodes = list(graph)
    rank: dict[ir.Node | None, int] = {node: k for k, node in enumerate(nodes)}
    before = [[k for v in values_read(node) if (k := rank.get(v.producer(), -1)) >= 0] for node in nodes]
    if all(j < k for k, sources in enumerate(before) for j in sources):
        return nodes
    done: dict[int, None] = {}
    for first in range(len(nodes)):
        stack = [(first, False)]
        open_: set[int] = set()
        while stack:
            k, is_left = stack.pop()
            if is_left:
                done[k] = None
            elif k not in done and k not in open_:
                open_.add(k)
                stack.append((k, True))
                stack += [(j, False) for j in before[k] if j not in done]
    return [nodes[k] for k in done]


def _captured(node: ir.Node, body: ir.Graph) -> list[ir.Value]:
    inner = [value for n in body.all_nodes() for value in n.inputs if value is not None]
    return [value for value in [*inner, *body.outputs] if value.graph is node.graph]


def _closure(
    nodes: Iterable[ir.Node], edges: dict[ir.Node, list[ir.Node]], closed: Iterable[ir.Node] = ()
) -> set[ir.Node]:
    start, closed = set(nodes), set(closed)
    seen: set[ir.Node] = set()
    stack = [other for node in start for other in edges.get(node, ())]
    while stack:
        node = stack.pop()
        if node not in seen and node not in start and node not in closed:
            seen.add(node)
            stack.extend(edges.get(node, ()))
    return seen


def nodes_between(sources: Collection[ir.Value], output: ir.Value) -> list[ir.Node] | None:
    """The nodes that compute ``output`` from ``sources`` and constants, each after what it reads; None if it takes others too."""
    found: dict[ir.Node, None] = {}
    entered: set[ir.Node] = set()

    def visit(value: ir.Value) -> bool:
        node = value.producer()
        if value in sources or is_constant(value):
            return True
        if node is None or (node in entered and node not in found):
            return False
        if node not in found:
            entered.add(node)
            inputs = node.inputs[:1] if node.op_type in _STEERED else node.inputs
            if not all(visit(v) for v in inputs if v is not None):
                return False
            found[node] = None
        return True

    return list(found) if visit(output) and found else None


def why_not_closed(nodes: Sequence[ir.Node], output: ir.Value) -> str | None:
    """Who takes a value that ``nodes`` write, other than they and ``output``'s readers, in words; None when no one does.

    Who asks for its shape alone does not take it.
    """
    if len({node.graph for node in nodes}) > 1:
        return "its nodes lie in different graphs"
    inside = set(nodes)
    for value in (value for node in nodes for value in node.outputs if value is not output and value.name):
        if value.is_graph_output():
            return f"{value.name}, which is inside, is a graph output"
        for user in value.consumers():
            if user not in inside and not is_standard(user, "Shape"):
                return f"{value.name}, which is inside, is read by {label(user)} as well"
    return None


def shape_readers(nodes: Sequence[ir.Node], output: ir.Value) -> list[ir.Node]:
    """The Shape nodes that read a value that ``nodes`` write, other than ``output``."""
    inner = [value for node in nodes for value in node.outputs if value is not output]
    return [user for value in inner for user in value.consumers() if is_standard(user, "Shape")]

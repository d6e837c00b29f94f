"""Reachability over the main graph: what comes before a node, after it, and on the paths between two.

A node that holds a body (If, Loop) reads what the nodes of its body capture from the main graph.
`nodes_between` is what computes one value from others; `why_not_closed`, whether anyone else looks inside."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from qdq_passes.graph.uses import bodies_of, is_constant, is_standard, label


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


def reach(graph: ir.Graph) -> Reach:
    """Edges of ``graph``, values captured by bodies included."""
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


def in_order(graph: ir.Graph | ir.Function) -> list[ir.Node]:
    """The nodes of ``graph``, producers first even where the file has them in another order. What bodies capture counts;
    in a graph with a cycle, which is invalid, each node still comes once."""
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


#: Operators whose further inputs say along which axes, or into which shape: those are no part of what is computed.
_STEERED = frozenset(
    {"Expand", "ReduceL2", "ReduceMean", "ReduceSum", "ReduceSumSquare", "Reshape", "Squeeze", "Unsqueeze"}
)


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

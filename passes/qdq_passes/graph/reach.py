"""Reachability over the main graph: what comes before a node, after it, and on the paths between two.

A node that holds a body (If, Loop) reads what the nodes of its body capture from the main graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from qdq_passes.graph.uses import bodies_of


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

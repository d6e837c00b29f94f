"""Which graph stands inside which, what of one can be seen from another, and how a person would call each place."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from qdq_passes.graph.uses import GraphLike, all_nodes, graph_likes, is_standard, label


@dataclass(frozen=True)
class Nesting:
    """Bodies of control flow and the nodes that hold them; built once per run of a pass, which must not add or remove bodies.

    Args:
        holders: body → the node that holds it.
    """

    holders: dict[ir.Graph, ir.Node]

    def around(self, graph: ir.Graph | None) -> list[ir.Graph]:
        """``graph`` and the graphs it stands in, from the inside to the outside."""
        found: list[ir.Graph] = []
        while graph is not None:
            found.append(graph)
            holder = self.holders.get(graph)
            graph = holder.graph if holder is not None else None
        return found

    def step_in(self, graph: ir.Graph, node: ir.Node) -> ir.Node | None:
        """The node of ``graph`` that is ``node`` or holds it; None where ``node`` stands outside of ``graph``."""
        current: ir.Node | None = node
        while current is not None and current.graph is not graph:
            current = self.holders.get(current.graph) if current.graph is not None else None
        return current

    def sees(self, graph: ir.Graph, value: ir.Value) -> bool:
        """Whether ``value`` is defined in ``graph`` or in one around it."""
        return value.graph in self.around(graph)


def nesting_of(model: ir.Model) -> Nesting:
    """The bodies of ``model``, those in local functions included."""
    holders: dict[ir.Graph, ir.Node] = {}
    for node in all_nodes(model):
        for attribute in node.attributes.values():
            if attribute.is_ref():
                continue
            if attribute.type == ir.AttributeType.GRAPH:
                holders[attribute.as_graph()] = node
            elif attribute.type == ir.AttributeType.GRAPHS:
                holders |= dict.fromkeys(attribute.as_graphs(), node)
    return Nesting(holders)


def is_constant_node(value: ir.Value) -> bool:
    """Whether a Constant node writes ``value``, so that its place in the order of nodes matters."""
    producer = value.producer()
    return producer is not None and is_standard(producer, "Constant")


def places(model: ir.Model) -> dict[str, GraphLike]:
    """Path → graph: ``""`` the main graph, ``if1.then_branch`` a body, ``local::f`` a function, ``local::f/i.body``."""
    found: dict[str, GraphLike] = {}

    def add(path: str, graph: GraphLike) -> None:
        while path in found:
            path += "'"
        found[path] = graph
        for node in graph:
            for attribute in node.attributes.values():
                head = f"{path}/{label(node)}.{attribute.name}" if path else f"{node.name}.{attribute.name}"
                for number, body in enumerate(_bodies(attribute)):
                    add(head + (f"[{number}]" if attribute.type == ir.AttributeType.GRAPHS else ""), body)

    for graph in graph_likes(model):
        add("::".join(filter(None, graph.identifier())) if isinstance(graph, ir.Function) else "", graph)
    return found


def place_of_nodes(model: ir.Model) -> dict[ir.Node, str]:
    """Node → path of the graph it stands in, in the order of the file."""
    return {node: path for path, graph in places(model).items() for node in graph}


def _bodies(attribute: ir.Attr) -> list[ir.Graph]:
    if attribute.is_ref():
        return []
    if attribute.type == ir.AttributeType.GRAPH:
        return [attribute.as_graph()]
    return list(attribute.as_graphs()) if attribute.type == ir.AttributeType.GRAPHS else []

"""Which graph stands inside which, and what of one can be seen from another."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from qdq_passes.graph.uses import all_nodes, is_standard


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

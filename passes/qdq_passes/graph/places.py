"""Where things stand: the main graph, a body of control flow, a local function; and how a person would call that place."""

from __future__ import annotations

import onnx_ir as ir

from qdq_passes.graph.uses import GraphLike, graph_likes, label


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

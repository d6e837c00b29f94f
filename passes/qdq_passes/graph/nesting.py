"""Where nodes stand: which graph inside which, what of one can be seen from another, how a person would call each place; and
scopes, the module path of a node, from exporter metadata or from its name.

Dynamo exports carry the path in ``pkg.torch.onnx.name_scopes`` (a printed Python list, outermost first, the operator last);
TorchScript exports in node names such as ``/model/layers.0/self_attn/q_proj/MatMul``."""

from __future__ import annotations

import re

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.uses import GraphLike, all_nodes, graph_likes, is_standard, label
from qdq_passes.numerics.documents import literal_of


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


#: Where a scope may stand in a node's metadata; the first that is present wins.
NAME_SCOPES = "pkg.torch.onnx.name_scopes"
NAMESPACE = "namespace"
SCOPE = "qdqtool.scope"
#: Metadata keys a new node inherits from the node it replaces.
INHERITED_KEYS = (SCOPE, NAME_SCOPES, "pkg.torch.onnx.class_hierarchy", NAMESPACE)


def scope_of(node: ir.Node) -> str:
    """Module path of ``node``, dotted (``model.layers.0.self_attn``); empty when nothing tells it."""
    props = node.metadata_props
    if SCOPE in props:
        return props[SCOPE]
    if NAME_SCOPES in props:
        return _from_name_scopes(props[NAME_SCOPES])
    if NAMESPACE in props:
        return _from_namespace(props[NAMESPACE])
    return _from_name(node.name or "")


def _from_name_scopes(text: str) -> str:
    """``"['', 'model', 'model.layers.0', 'linear']"`` → ``model.layers.0``; the last entry is the operator itself."""
    try:
        entries = literal_of(text)
    except ValueError:
        return ""
    if not isinstance(entries, list) or not all(isinstance(e, str) for e in entries):
        return ""
    modules = [e for e in entries[:-1] if e]
    return modules[-1] if modules else ""


def _from_namespace(text: str) -> str:
    """``": Net/layers.0: Block/linear: aten.linear"`` → ``layers.0``: names before each colon, the operator left out."""
    parts = [part.split(":")[0].strip() for part in text.split("/")]
    modules = [part for part in parts[:-1] if part]
    return modules[-1] if modules else ""


def _from_name(name: str) -> str:
    parts = [part for part in name.split("/") if part]
    return ".".join(parts[:-1])


def ancestors(scope: str) -> list[str]:
    """``a.b.c`` → ``["a", "a.b", "a.b.c"]``."""
    parts = scope.split(".") if scope else []
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def layer_of(node: ir.Node) -> int | None:
    """Index of the layer ``node`` belongs to: the first component of its scope that is a number (``layers.3``) or that ends in
    one after the word layer or block (``layer3``, ``block_3``). None outside of any layer."""
    for part in scope_of(node).split("."):
        if part.isdigit():
            return int(part)
        if match := re.fullmatch(r"(?:layers?|blocks?|stages?|h)_?(\d+)", part, re.IGNORECASE):
            return int(match[1])
    return None

"""Groups of nodes between values: what computes one value from others, and whether anyone else looks inside."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir

from qdq_passes.graph.uses import is_constant, is_standard, label

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

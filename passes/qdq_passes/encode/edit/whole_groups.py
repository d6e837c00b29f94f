"""Whole groups: nodes that compute one operator together, left as they are and marked, so that nothing comes between them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.encode.look.demands import Role
from qdq_passes.graph.annotate import FUSED, PART, Fused, Part
from qdq_passes.graph.uses import is_constant, is_standard, label, main_nodes


@dataclass(frozen=True)
class Entering:
    """A value that a group reads.

    Args:
        value: the value.
        role: what it is to the operator.
        node: node of the group that reads it.
        index: as which of its inputs.
    """

    value: ir.Value
    role: Role
    node: ir.Node
    index: int


@dataclass(frozen=True)
class WholeGroup:
    """Nodes that compute one operator together.

    Args:
        name: name of the first node.
        operator: the ONNX operator they compute.
        nodes: the nodes, in the order of the graph.
        entering: what they read from outside, one entry a use; of constants only the operator's weight and bias.
        leaving: what others read of what they write, graph outputs too.
    """

    name: str
    operator: str
    nodes: tuple[ir.Node, ...]
    entering: tuple[Entering, ...]
    leaving: tuple[ir.Value, ...]


def mark_group(
    nodes: Sequence[ir.Node], operator: str, weight: ir.Value | None = None, bias: ir.Value | None = None
) -> str:
    """Mark ``nodes`` and the values between them as one ``operator``; returns the group's name, that of its first node.

    Args:
        nodes: the nodes; none of the values they write, other than the last one's output, is read elsewhere.
        operator: the ONNX operator they compute.
        weight: the constant that is the operator's scale.
        bias: the constant that is its bias.
    """
    name = label(nodes[0])
    for node in nodes:
        adds = is_standard(node, "Add", "Sub")  # one initializer may be both
        of = bias if adds else weight
        index = next((i for i, value in enumerate(node.inputs) if value is not None and value is of), None)
        PART.set(node, Part(name, operator, bias=index) if adds else Part(name, operator, weight=index))
        for value in node.outputs:
            if node is not nodes[-1] and value.name:
                FUSED.set(value, Fused(name, whole=True))
    return name


def whole_groups(model: ir.Model) -> list[WholeGroup]:
    """The whole groups of the main graph, in its order. One of which a node or a value was changed since is none any more."""
    members: dict[str, list[ir.Node]] = {}
    for node in main_nodes(model):
        part = PART.get(node)
        if part is not None:
            members.setdefault(part.of, []).append(node)
    return [group for nodes in members.values() if (group := _group(nodes)) is not None]


def group_nodes(value: ir.Value) -> list[ir.Node]:
    """The nodes that write or read a value with the mark of ``value``, as far as they hang together."""
    mark, found, todo = FUSED.get(value), dict[ir.Node, None](), [value]
    while todo:
        for node in touched_by(todo.pop()):
            if node not in found:
                found[node] = None
                todo += [v for v in (*node.inputs, *node.outputs) if v is not None and FUSED.get(v) == mark]
    return list(found)


def is_inside_whole(value: ir.Value, wanted: Collection[ir.Node] | None = None) -> bool:
    """Whether ``value`` is inside a group that computes one operator, all nodes of which are ``wanted`` (any, by default).

    A group that lost a member, or that another node has come to look into, is none any more; who asks for a shape does not count.
    """
    mark = FUSED.get(value)
    if mark is None or not mark.whole or value.is_graph_output():
        return False
    nodes = [node for node in group_nodes(value) if not is_standard(node, "Shape")]
    parts = {None if (part := PART.get(node)) is None else part.of for node in nodes}
    return parts in ({mark.group}, {None}) and (wanted is None or all(node in wanted for node in nodes))


def touched_by(value: ir.Value) -> list[ir.Node]:
    """The nodes that write or read ``value``."""
    return [node for node in (value.producer(), *value.consumers()) if node is not None]


def _group(nodes: list[ir.Node]) -> WholeGroup | None:
    first, inside = PART.get(nodes[0]), set(nodes)
    assert first is not None
    entering, leaving = list[Entering](), list[ir.Value]()
    for node in nodes:
        part = PART.get(node)
        if part is None or part.operator != first.operator:
            return None
        for written in node.outputs:
            mark, outside = FUSED.get(written), _is_taken(written, inside)
            if (mark is not None and mark.whole and mark.group == first.of) == outside:
                return None
            leaving += [written] if outside else []
        for index, value in enumerate(node.inputs):
            if value is None or value.producer() in inside:
                continue
            mark = FUSED.get(value)
            if mark is not None and mark.whole and mark.group == first.of:
                return None
            if not is_constant(value):
                entering.append(Entering(value, "activation", node, index))
            elif index in (part.weight, part.bias):
                entering.append(Entering(value, "weight" if index == part.weight else "bias", node, index))
    return WholeGroup(first.of, first.operator, tuple(nodes), tuple(entering), tuple(leaving)) if leaving else None


def _is_taken(value: ir.Value, inside: Collection[ir.Node]) -> bool:
    """Whether anyone but ``inside`` takes ``value``; who asks for its shape alone does not."""
    users = (user for user in value.consumers() if user not in inside)
    return value.is_graph_output() or any(not is_standard(user, "Shape") for user in users)

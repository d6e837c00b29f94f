"""Groups of nodes that change their precision together, because no pair stands between them or because they compute nothing.

A fused group (a Conv and its Relu, a norm spelt out) moves as one. In a search for precisions what only moves values (Reshape,
Transpose) goes with the node that computes them, so that the values have one type on their way."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.encode.edit.whole_groups import touched_by
from qdq_passes.graph.annotate import FUSED, PART
from qdq_passes.graph.convex import DisjointSets
from qdq_passes.graph.nesting import layer_of, scope_of
from qdq_passes.graph.operators.macs import macs_in, macs_of
from qdq_passes.graph.uses import SHARING, is_standard, label, main_nodes
from qdq_passes.qdq.look.weighted_layers import weighted_layers

from qdqtool.quantization.plan import Plan

By = Literal["node", "layer", "scope", "type"]

#: What belongs to no layer, or has no scope, by that.
OUTSIDE = "(none)"


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """Nodes that change precision together.

    Args:
        name: of the node that does most of the work: the one that multiplies, else the first.
        op: its operator type.
        scope: its module path, empty where nothing tells it.
        nodes: names of the nodes, in the order of the graph.
        macs: their multiply-accumulates in one inference.
    """

    name: str
    op: str
    scope: str
    nodes: tuple[str, ...]
    macs: int


def node_groups(model: ir.Model, plan: Plan, *, follow: bool = False) -> list[NodeGroup]:
    """The groups of the prepared ``model`` that ``plan`` quantizes, in the order of the graph.

    Args:
        model: the model, the passes of ``plan.prepare`` behind it.
        plan: the plan.
        follow: what only moves values goes with the node that writes what it reads.
    """
    demands = plan.annotate.demands(model)
    quantized = {name for names in demands.nodes.values() for name in names}
    found = []
    for nodes in _together(main_nodes(model), follow=follow):
        if any(node.name in quantized for node in nodes):
            found.append(_node_group(nodes))
    return found


def weight_sizes(model: ir.Model) -> dict[str, int]:
    """How many numbers the weight of each layer of ``model`` has, by the name of the layer's node."""
    return {layer.name: math.prod(layer.form.sizes) for layer in weighted_layers(model)}


def merged(found: Sequence[NodeGroup], model: ir.Model, by: By) -> list[NodeGroup]:
    """``found`` put together by layer, by scope or by operator type; as they are by node."""
    if by == "node":
        return list(found)
    nodes = {node.name or "": node for node in main_nodes(model)}
    buckets: dict[str, list[NodeGroup]] = {}
    for group in found:
        layer = layer_of(nodes[group.name])
        key = {"layer": OUTSIDE if layer is None else str(layer), "scope": group.scope or OUTSIDE, "type": group.op}[by]
        buckets.setdefault(key, []).append(group)
    return [union(key, each) for key, each in buckets.items()]


def union(name: str, found: Sequence[NodeGroup]) -> NodeGroup:
    """Several as one, called ``name``."""
    ops, scopes = {group.op for group in found}, {group.scope for group in found}
    return NodeGroup(
        name=name,
        op=ops.pop() if len(ops) == 1 else "",
        scope=scopes.pop() if len(scopes) == 1 else "",
        nodes=tuple(dict.fromkeys(node for group in found for node in group.nodes)),
        macs=sum(group.macs for group in found),
    )


def touching_nodes(found: Sequence[NodeGroup], nodes: Iterable[ir.Node]) -> list[NodeGroup]:
    """Those of ``found`` that hold one of ``nodes``."""
    names = {node.name for node in nodes}
    return [group for group in found if names.intersection(group.nodes)]


def tails(model: ir.Model, found: Sequence[NodeGroup]) -> list[tuple[NodeGroup, ...]]:
    """Per graph output what computes it without multiplying, from the output back to the last layers (a detector's decoding, and
    the Concat of its boxes and scores); and of that the node that writes the output with those before it, one more each."""
    by_node = {name: group for group in found for name in group.nodes}
    made: dict[tuple[NodeGroup, ...], None] = {}
    for output in model.graph.outputs:
        near: dict[NodeGroup, None] = {}
        front = [output.producer()]
        seen: set[ir.Node] = set()
        while front:
            behind: list[ir.Node | None] = []
            for node in front:
                if node is None or node in seen or macs_of(node) != 0:
                    continue
                seen.add(node)
                group = by_node.get(node.name or "")
                if group is not None and group.macs == 0:
                    near[group] = None
                behind += [value.producer() for value in node.inputs if value is not None]
            if len(near) > 1:
                made[tuple(group for group in found if group in near)] = None
            front = behind
    return list(made)


def neighbours(model: ir.Model, found: Sequence[NodeGroup]) -> list[tuple[NodeGroup, NodeGroup]]:
    """(writer, reader) of the values that one of ``found`` writes and another reads, in the order of the graph."""
    by_node = {name: group for group in found for name in group.nodes}
    pairs: dict[tuple[NodeGroup, NodeGroup], None] = {}
    for node in main_nodes(model):
        reader = by_node.get(node.name or "")
        for value in node.inputs:
            producer = value.producer() if value is not None else None
            writer = by_node.get(producer.name or "") if producer is not None else None
            if reader is not None and writer is not None and reader is not writer:
                pairs[writer, reader] = None
    return list(pairs)


def between(model: ir.Model, found: Sequence[NodeGroup]) -> list[tuple[NodeGroup, ...]]:
    """What hangs together between layers and does not multiply: the residual stream with its norms, an activation spelt out."""
    parent = {group: group for group in found if group.macs == 0}

    def root(group: NodeGroup) -> NodeGroup:
        while parent[group] is not group:
            group = parent[group]
        return group

    for writer, reader in neighbours(model, found):
        if writer in parent and reader in parent:
            parent[root(reader)] = root(writer)
    regions: dict[NodeGroup, list[NodeGroup]] = {}
    for group in parent:
        regions.setdefault(root(group), []).append(group)
    return [tuple(region) for region in regions.values() if len(region) > 1]


def alike(found: Sequence[NodeGroup]) -> list[tuple[NodeGroup, ...]]:
    """All that do not multiply, of one operator type each: the Softmaxes, the norms."""
    types: dict[str, list[NodeGroup]] = {}
    for group in found:
        if group.macs == 0:
            types.setdefault(group.op, []).append(group)
    return [tuple(each) for each in types.values() if len(each) > 1]


def _together(nodes: list[ir.Node], *, follow: bool) -> list[list[ir.Node]]:
    """``nodes`` in groups, in the order of their first node."""
    sets = DisjointSets(nodes)

    def join(a: ir.Node, b: ir.Node | None) -> None:
        if a in sets and b is not None and b in sets:
            sets.join(a, b)

    parts: dict[str, ir.Node] = {}
    for node in nodes:
        part = PART.get(node)
        if part is not None:
            join(parts.setdefault(part.of, node), node)
        for value in node.outputs:
            if FUSED.get(value) is not None and not value.is_graph_output():
                for other in touched_by(value):
                    join(node, other)
        first = node.inputs[0] if node.inputs else None
        if follow and is_standard(node, *SHARING) and first is not None:
            join(node, first.producer())
    return sets.groups()


def _node_group(nodes: list[ir.Node]) -> NodeGroup:
    computing = [node for node in nodes if not is_standard(node, *SHARING)] or nodes
    core = max(computing, key=lambda node: macs_of(node) or 0)  # the first of equals
    return NodeGroup(
        name=label(core),
        op=core.op_type,
        scope=scope_of(core),
        nodes=tuple(label(node) for node in nodes),
        macs=macs_in(nodes),
    )

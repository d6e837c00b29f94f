"""Where the operators of a simulated model run: what onnxruntime says, with the reasons of the partitioner."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir
from qdq_passes.graph.uses import main_nodes
from qdq_passes.npu.partitions.partitions import Partitioning
from qdq_passes.npu.units.verdict import CPU

from qdqtool.npu.compile import is_operator
from qdqtool.npu.simulated import Placement
from qdqtool.record.record import NodeRecord
from qdqtool.runtime.plugin import CPU_PROVIDER, Assigned

_UNCOUNTED = frozenset({"QuantizeLinear", "DequantizeLinear", "Constant"})
#: Names in a note.
SHOWN = 3


def predicted_placement(model: ir.Model, plan: Partitioning) -> Placement:
    """What the partitioner says of the operators of ``model``."""
    nodes = [_predicted(node, plan) for node in main_nodes(model) if is_operator(node)]
    return Placement(source="partitioner", nodes=tuple(nodes), partitions=len(plan.partitions))


def reported_placement(assigned: Sequence[Assigned], model: ir.Model, plan: Partitioning | None) -> Placement:
    """What onnxruntime says, in the order of ``model``; device names and reasons are those of ``plan``.

    Args:
        assigned: onnxruntime's word of a session on ``model``, every node of which has a name of its own.
        model: the model.
        plan: what the partitioner says; None for providers that are not ours.
    """
    places = {node.name: index for index, node in enumerate(main_nodes(model))}
    nodes = {node.name: node for node in [*(plan.inner if plan is not None else ()), *main_nodes(model)]}
    numbers: dict[int, int] = {}
    found = []
    for entry in sorted(assigned, key=lambda a: places.get(a.name, len(places))):
        if entry.provider != CPU_PROVIDER:
            numbers.setdefault(entry.group, len(numbers))
        if entry.op in _UNCOUNTED:
            continue
        node = nodes.get(entry.name)
        mine = _predicted(node, plan) if node is not None and plan is not None else None
        name, on_npu = entry.name, entry.provider != CPU_PROVIDER
        if mine is not None and on_npu == (mine.partition is not None):
            number = numbers[entry.group] if on_npu else None
            found.append(dataclasses.replace(mine, name=name, op=entry.op, partition=number))
        elif on_npu:
            found.append(NodeRecord(name=name, op=entry.op, device=entry.provider, partition=numbers[entry.group]))
        else:
            found.append(NodeRecord(name=name, op=entry.op, verdict="fallback", device=CPU))
    return Placement(source="onnxruntime", nodes=tuple(found), partitions=len(numbers))


def unexpected_placements(said: Placement, expected: Placement) -> str | None:
    """In words, operators that run elsewhere than the partitioner says; None when there are none."""
    mine = {node.name: node.partition is not None for node in expected.nodes}
    other = [n.name for n in said.nodes if n.name in mine and mine[n.name] != (n.partition is not None)]
    if not other:
        return None
    shown = ", ".join(other[:SHOWN]) + (f" and {len(other) - SHOWN} more" if len(other) > SHOWN else "")
    return f"onnxruntime placed otherwise than predicted: {shown}"


def why_nothing_on_npu(placement: Placement) -> str | None:
    """Why nothing runs on the NPU, by the most frequent reason; None when something does."""
    groups = placement.reasons()
    if placement.npu_nodes or not groups or not groups[0][0].reason:
        return None
    head = "nothing runs on the NPU: the CPU is compared with itself"
    return f"{head}; {len(groups[0])} of {len(placement.nodes)} operators: {groups[0][0].why}"


def _predicted(node: ir.Node, plan: Partitioning) -> NodeRecord:
    part, verdict = plan.partition_of.get(node), plan.verdict_of.get(node)
    if verdict is None:
        return NodeRecord(
            name=node.name or "", op=node.op_type, device=CPU if part is None else part.engine,
            partition=None if part is None else part.id,
        )  # fmt: skip
    kind = "fallback" if part is None and verdict.is_npu else verdict.kind
    return NodeRecord(
        name=node.name or "", op=node.op_type, verdict=kind, rule=verdict.rule, reason=verdict.reason,
        suggestion=verdict.suggestion, device=CPU if part is None else verdict.engine,
        partition=None if part is None else part.id,
    )  # fmt: skip

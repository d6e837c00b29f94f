"""What runs each node, Q and DQ nodes and bodies included, in words that a report shows."""

from __future__ import annotations

import onnx_ir as ir

from qdq_passes.analysis.partitions import Partition
from qdq_passes.analysis.qdq_ops import is_quantize
from qdq_passes.analysis.uses import is_standard
from qdq_passes.core.annotate import Placement
from qdq_passes.core.partitions import CPU, Partitioning
from qdq_passes.core.verdict import Verdict

#: Rules of Q and DQ nodes, which belong to what stands beside them.
PAIR, GRAPH_INPUT, GRAPH_OUTPUT, BESIDE_CPU, SHARED_PAIR = (
    "pair",
    "graph-input",
    "graph-output",
    "beside-cpu",
    "shared-pair",
)


def placements(model: ir.Model, found: Partitioning) -> dict[ir.Node, Placement]:
    """The placement of every node of the main graph and of its bodies, Constants left out; in the order of the file."""
    holders: dict[ir.Node, list[Partition]] = {}
    for partition in found.partitions:
        for node in partition.copies:
            holders.setdefault(node, []).append(partition)
    placed: dict[ir.Node, Placement] = {}
    for node in model.graph.all_nodes():
        if is_standard(node, "Constant"):
            continue
        owner, verdict = found.partition_of.get(node), found.verdict_of.get(node)
        if verdict is not None:
            placed[node] = _of_verdict(verdict, owner)
        elif owner is not None:
            placed[node] = Placement(device=owner.engine, verdict="npu-int", rule=PAIR, partition=owner.id)
        elif node in holders:
            placed[node] = _of_copies(node, holders[node], found)
        else:
            placed[node] = _outside(node, found)
    return placed


def _of_verdict(verdict: Verdict, partition: Partition | None) -> Placement:
    return Placement(
        device=verdict.engine,
        verdict=verdict.kind,
        rule=verdict.rule,
        reason=verdict.reason,
        suggestion=verdict.suggestion,
        partition=None if partition is None else partition.id,
    )


def _of_copies(node: ir.Node, holders: list[Partition], found: Partitioning) -> Placement:
    held = {reader for partition in holders for reader in (*partition.nodes, *partition.copies)}
    alone = all(use.node in held for use in node.outputs[0].uses()) and not node.outputs[0].is_graph_output()
    numbers = " and ".join(str(partition.id) for partition in holders)
    reason = (
        f"partition{'s' if len(holders) > 1 else ''} {numbers} {'have copies' if len(holders) > 1 else 'has a copy'}"
    )
    if not alone:
        return _on_cpu(SHARED_PAIR, f"is read on the CPU too; {reason}")
    first = holders[0]
    return Placement(device=first.engine, verdict="npu-int", rule=SHARED_PAIR, reason=reason, partition=first.id)


def _outside(node: ir.Node, found: Partitioning) -> Placement:
    """A Q or DQ node that is in no partition."""
    source, written = node.inputs[0] if node.inputs else None, node.outputs[0]
    if is_quantize(node):
        if source is not None and source.is_graph_input():
            return _on_cpu(GRAPH_INPUT, "quantizes a graph input, before the NPU", "an integer input, or boundary npu")
        before = source.producer() if source is not None else None
        if before is not None:
            return _on_cpu(BESIDE_CPU, f"quantizes what {before.name or before.op_type} writes on the CPU")
        return _on_cpu(BESIDE_CPU, "quantizes what only the CPU reads")
    readers = {use.node: found.partition_of.get(use.node) for use in written.uses()}
    partitions = sorted({partition.id for partition in readers.values() if partition is not None})
    if len(partitions) > 1:
        reason = f"partitions {' and '.join(map(str, partitions))} read it, so it is in none"
        return _on_cpu(SHARED_PAIR, reason, "qdqtool qdq dedicate")
    if written.is_graph_output():
        return _on_cpu(GRAPH_OUTPUT, "dequantizes a graph output, behind the NPU", "an integer output, or boundary npu")
    on_cpu = next((reader for reader, partition in readers.items() if partition is None), None)
    if on_cpu is None:
        return _on_cpu(BESIDE_CPU, "has no reader")
    return _on_cpu(BESIDE_CPU, f"{on_cpu.name or on_cpu.op_type} reads it on the CPU")


def _on_cpu(rule: str, reason: str, suggestion: str = "") -> Placement:
    return Placement(device=CPU, verdict="fallback", rule=rule, reason=reason, suggestion=suggestion)

"""What runs each node, Q and DQ nodes and bodies included, in words that a report shows."""

from __future__ import annotations

import shlex

import onnx_ir as ir

from qdq_passes.graph.annotate import Placement
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantize
from qdq_passes.graph.uses import is_standard, label
from qdq_passes.npu.partitions.partitions import Partitioning
from qdq_passes.npu.units.partition_graph import Partition
from qdq_passes.npu.units.verdict import CPU, Verdict
from qdq_passes.qdq.look.pairs import pair_of

#: Rules of Q and DQ nodes, which belong to what stands beside them.
PAIR, GRAPH_INPUT, GRAPH_OUTPUT, BESIDE_CPU, SHARED_PAIR = (
    "pair",
    "graph-input",
    "graph-output",
    "beside-cpu",
    "shared-pair",
)

#: What lets the NPU run the Q and DQ at float ends of the graph, where it can.
_INSIDE = "let the NPU do it, where it can: `qdqtool analyze --boundary npu`"


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
            placed[node] = Placement(
                device=_engine(node, owner, found), verdict="npu-int", rule=PAIR, partition=owner.id
            )
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


def _engine(node: ir.Node, owner: Partition, found: Partitioning) -> str:
    """The engine of the operator that a Q or DQ node in a partition belongs to: a Q to what it quantizes, a DQ to its reader."""
    source = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
    readers = [use.node for value in node.outputs for use in value.uses()]
    behind = [use.node for reader in readers if is_dequantize(reader) for use in reader.outputs[0].uses()]
    around = [source, *readers, *behind] if is_quantize(node) else [*readers, source]
    verdicts = [
        found.verdict_of.get(other) for other in around if other is not None and found.partition_of.get(other) is owner
    ]
    return next((verdict.engine for verdict in verdicts if verdict is not None), owner.engine)


def _of_copies(node: ir.Node, holders: list[Partition], found: Partitioning) -> Placement:
    held = {reader for partition in holders for reader in (*partition.nodes, *partition.copies)}
    alone = all(use.node in held for use in node.outputs[0].uses()) and not node.outputs[0].is_graph_output()
    numbers = " and ".join(str(partition.id) for partition in holders)
    reason = (
        f"partition{'s' if len(holders) > 1 else ''} {numbers} {'have copies' if len(holders) > 1 else 'has a copy'}"
    )
    if not alone:
        return _on_cpu(SHARED_PAIR, f"is read on the CPU too; {reason}", "nothing to mend: the NPU has a copy")
    first = holders[0]
    return Placement(device=first.engine, verdict="npu-int", rule=SHARED_PAIR, reason=reason, partition=first.id)


def _outside(node: ir.Node, found: Partitioning) -> Placement:
    """A Q or DQ node that is in no partition."""
    source, written = node.inputs[0] if node.inputs else None, node.outputs[0]
    if is_quantize(node):
        if source is not None and source.is_graph_input():
            integers = _at_the_edge("--inputs", node, source, written)
            return _on_cpu(GRAPH_INPUT, "quantizes a graph input, before the NPU", f"{integers}, or {_INSIDE}")
        before = source.producer() if source is not None else None
        if before is not None:
            name = label(before)
            return _on_cpu(BESIDE_CPU, f"quantizes what {name} writes on the CPU", _goes_with(name))
        return _on_cpu(BESIDE_CPU, "quantizes what only the CPU reads", "nothing to mend: it goes with what reads it")
    readers = {use.node: found.partition_of.get(use.node) for use in written.uses()}
    partitions = sorted({partition.id for partition in readers.values() if partition is not None})
    if len(partitions) > 1:
        reason = f"partitions {' and '.join(map(str, partitions))} read it, so it is in none"
        pairs = (
            f"give each a pair of its own: `qdqtool qdq dedicate --select {shlex.quote(f'tensor:{_float_name(node)}')}`"
        )
        return _on_cpu(SHARED_PAIR, reason, pairs)
    if written.is_graph_output():
        integers = _at_the_edge("--outputs", node, written, source)
        return _on_cpu(GRAPH_OUTPUT, "dequantizes a graph output, behind the NPU", f"{integers}, or {_INSIDE}")
    on_cpu = next((reader for reader, partition in readers.items() if partition is None), None)
    if on_cpu is None:
        return _on_cpu(BESIDE_CPU, "has no reader", "drop it: `qdqtool opt -p remove-unused`")
    name = label(on_cpu)
    return _on_cpu(BESIDE_CPU, f"{name} reads it on the CPU", _goes_with(name))


def _at_the_edge(option: str, node: ir.Node, end: ir.Value, integers: ir.Value | None) -> str:
    """What makes ``integers`` an end of the graph in place of the float ``end``."""
    graph = node.graph
    ends = () if not isinstance(graph, ir.Graph) else graph.inputs if option == "--inputs" else graph.outputs
    names = [value.name or "" for v in ends if (value := integers if v is end else v) is not None]
    return f"let integers cross the edge of the graph: `qdqtool extract {option} {shlex.quote(','.join(names))}`"


def _goes_with(name: str) -> str:
    return f"nothing to mend here: it runs where {name} does"


def _float_name(dequantize: ir.Node) -> str:
    """Name of the value that the pair of ``dequantize`` stands on, as selectors know it."""
    pair = pair_of(dequantize)
    return pair.tensor if pair is not None else dequantize.outputs[0].name or ""


def _on_cpu(rule: str, reason: str, suggestion: str = "") -> Placement:
    return Placement(device=CPU, verdict="fallback", rule=rule, reason=reason, suggestion=suggestion)

"""Who runs what: verdicts on units, what a target's policy makes of them, and the partitions that are left for the NPU;
and what runs each node, in words that a report shows (`placements`)."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.annotate import Placement
from qdq_passes.graph.convex import DisjointSets
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantize
from qdq_passes.graph.uses import bodies_of, dtype_of, has_body, is_standard, label, main_nodes
from qdq_passes.npu.partitions.behind import behind_declined
from qdq_passes.npu.partitions.partition_graph import Partition, compute_nodes, group_units, make_partitions, with_data
from qdq_passes.npu.program.operators import why_not_computable, why_not_moved
from qdq_passes.npu.units.units import Unit, UnitGraph, unit_graph, units_of
from qdq_passes.npu.units.verdict import CPU, CUT_BEFORE, NOTHING_TO_MEND, Boundary, Policy, TargetRules, Verdict
from qdq_passes.qdq.look.pairs import pair_of

#: Rule of what a target takes and the simulated NPU does not compute.
NOT_SIMULATED = "not-simulated"
#: What leaves no body, by the operator that holds it.
WAYS_OUT = {
    "If": "where its condition is constant, `qdqtool simplify` leaves one branch; else no pass is known that takes the If away: "
    "export each branch as a model of its own",
    "Loop": "no pass is known that unrolls a Loop: unroll it where the model is exported",
    "Scan": "no pass is known that unrolls a Scan: unroll it where the model is exported",
}
#: What may be done about a body of another operator.
NO_WAY_OUT = "no pass is known that takes the body away: export the model without it"
#: Types of integers that stand for data; shapes and indices are wider.
_DATA_INTEGERS = frozenset({ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT8, ir.DataType.UINT8})


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


@dataclass(frozen=True, eq=False, kw_only=True)
class Partitioning:
    """Who runs what.

    Args:
        units: the units of the main graph.
        verdicts: what becomes of each, in the same order, after policy and group size; not of nodes beside them.
        partitions: what the NPU runs, in an order in which they can be run one after the other.
        inner: nodes in bodies of control flow; they run where their If or Loop does.
    """

    units: tuple[Unit, ...]
    verdicts: tuple[Verdict, ...]
    partitions: tuple[Partition, ...]
    inner: Mapping[ir.Node, Verdict]

    @cached_property
    def partition_of(self) -> dict[ir.Node, Partition]:
        """Node → its partition; nodes on the CPU are missing."""
        return {node: partition for partition in self.partitions for node in partition.nodes}

    @cached_property
    def verdict_of(self) -> dict[ir.Node, Verdict]:
        """Node of a unit, or of a body → its verdict; Q and DQ nodes beside them have none."""
        of_units = {
            node: verdict
            for unit, verdict in zip(self.units, self.verdicts, strict=True)
            for node in unit.nodes
        }  # fmt: skip
        return {**of_units, **self.inner}

    @property
    def boundary_bytes(self) -> int:
        """Bytes that cross the edges of partitions in one inference, each time they do."""
        return sum(partition.boundary_bytes for partition in self.partitions)


def partitions(
    nodes: Sequence[ir.Node],
    units: Sequence[Unit],
    verdicts: Sequence[Verdict],
    policy: Policy,
    boundary: Boundary,
    minimum_group: int = 1,
    lacking: Mapping[Unit, str] | None = None,
    *,
    join_siblings: bool = False,
) -> Partitioning:
    """Partition a main graph.

    Args:
        nodes: its nodes, in the order of the file; If, Loop and Scan are declined, and their bodies with them.
        units: all its units, from `units_of`.
        verdicts: what the target says to each.
        policy: what one unsupported unit costs beside itself.
        boundary: where the Q and DQ nodes at float ends of the graph run.
        minimum_group: fewest compute nodes of a partition.
        lacking: units that run on the CPU although the target takes them, and why (`not_simulated`): they keep the kind of their
            verdict, and cost nothing but themselves.
        join_siblings: whether groups that wait for the same operators are one partition.
    """
    graph = unit_graph(nodes, units)
    judged = {unit: _of_holder(unit, verdict) for unit, verdict in zip(units, verdicts, strict=True)}
    settled = _settle(graph, judged, policy)
    for unit, why in (lacking or {}).items():
        if settled[unit].is_npu:
            settled[unit] = replace(settled[unit], engine=CPU, rule=NOT_SIMULATED, reason=why)
    offered = {unit for unit, verdict in settled.items() if verdict.is_npu and verdict.engine != CPU}
    taken = with_data(graph, offered)
    settled |= {unit: _too_small(graph, (unit,), settled, minimum_group) for unit in offered - taken}
    groups = []
    for members in group_units(graph, taken, join_siblings=join_siblings):
        if compute_nodes(members) >= max(minimum_group, 1):
            groups.append(members)
        else:
            settled |= dict.fromkeys(members, _too_small(graph, members, settled, minimum_group))
    engines = {unit: verdict.engine for unit, verdict in settled.items()}
    return Partitioning(
        units=tuple(units),
        verdicts=tuple(settled[unit] for unit in units),
        partitions=tuple(make_partitions(nodes, graph, groups, engines, ends_inside=boundary == "npu")),
        inner=_inner(nodes),
    )


def partition_for(
    model: ir.Model, target: TargetRules, boundary: Boundary | None = None, *, simulated: bool = True
) -> Partitioning:
    """Partition the main graph of ``model`` for ``target``.

    Args:
        model: the model, with inferred shapes.
        target: the target.
        boundary: where the Q and DQ nodes at float ends of the graph run, where not as the target says.
        simulated: as on the simulated NPU, which leaves to the CPU what it has no kernel for.
    """
    units = units_of(model)
    verdicts = [target.judge(unit) for unit in units]
    lacking = not_simulated(units, verdicts, target) if simulated else {}
    return partitions(
        main_nodes(model), units, verdicts, target.policy, boundary or target.boundary, target.minimum_group, lacking,
        join_siblings=target.join_siblings,
    )  # fmt: skip


def not_simulated(units: Sequence[Unit], verdicts: Sequence[Verdict], target: TargetRules) -> dict[Unit, str]:
    """The units that ``target`` takes and the simulated NPU does not compute, and why, in words."""
    found: dict[Unit, str] = {}
    for unit, verdict in zip(units, verdicts, strict=True):
        if verdict.is_npu:
            in_float = verdict.kind == "npu-float"
            if unit.is_compute or in_float:
                why = why_not_computable(unit, target.arithmetic, in_float=in_float)
            else:
                why = why_not_moved(unit)
            if why is not None:
                found[unit] = f"is not simulated: {why}"
    return found


def _of_holder(unit: Unit, verdict: Verdict) -> Verdict:
    """``verdict``, but no NPU computes what has bodies."""
    if not verdict.is_npu or not has_body(unit.core):
        return verdict
    way_out = WAYS_OUT.get(unit.core.op_type, NO_WAY_OUT)
    return _fallback("inner-graph", "holds bodies, which run on the CPU", way_out)


def _too_small(graph: UnitGraph, members: Sequence[Unit], settled: Mapping[Unit, Verdict], minimum: int) -> Verdict:
    count = compute_nodes(members)
    if not count:
        return _no_data(members)
    reason = f"would be in a partition of {count} operator{'s' if count > 1 else ''}, fewer than {minimum}"
    beside = next((unit for unit in _beside(graph, set(members)) if not settled[unit].is_npu), None)
    if beside is None:
        return _fallback("minimum-group", reason, "nothing to mend: the model has no more operators for the NPU here")
    mend = (settled[beside].suggestion or settled[beside].reason).partition(CUT_BEFORE)[
        0
    ]  # there, it would still be alone
    if mend.startswith(NOTHING_TO_MEND):
        return _fallback(
            "minimum-group",
            reason,
            f"nothing to mend at {_shown(beside)} beside it: {mend.removeprefix(NOTHING_TO_MEND)}",
        )
    return _fallback("minimum-group", reason, f"mend {_shown(beside)} beside it, so that they run together: {mend}")


def _no_data(members: Sequence[Unit]) -> Verdict:
    """Of units that no operator on data goes with."""
    read = [operand.value for unit in members for operand in unit.operands if operand.value is not None]
    if any(dtype_of(value) in _DATA_INTEGERS for value in read):
        reason = "moves integers that stand for data, with no pair around that tells how"
        return _fallback("no-data", reason, "turn integer operators into pairs: `qdqtool qdq convert --qoperators`")
    reason = "works on shapes and indices alone, with no data that the NPU has"
    return _fallback("no-data", reason, "nothing to mend: the CPU computes shapes and indices")


def _beside(graph: UnitGraph, members: Collection[Unit]) -> Iterator[Unit]:
    """Units that compute on data beside ``members``: what they read of, then what reads of them."""
    inside = {number for number, item in enumerate(graph.items) if item in members}
    read = sorted({other for number in inside for other in graph.before[number]} - inside)
    behind = [n for n, before in enumerate(graph.before) if n not in inside and not inside.isdisjoint(before)]
    for number in (*read, *behind):
        item = graph.items[number]
        if isinstance(item, Unit) and item.is_compute:
            yield item


def _shown(unit: Unit) -> str:
    name, op_type = unit.core.name, unit.core.op_type
    return f"{name} ({op_type})" if name else op_type


def _settle(graph: UnitGraph, verdicts: Mapping[Unit, Verdict], policy: Policy) -> dict[Unit, Verdict]:
    """Verdicts after ``policy``."""
    settled = dict(verdicts)
    if policy == "node":
        return settled
    if policy == "region":
        settled |= behind_declined(graph, verdicts)
    if policy == "whole-model":
        regions = [[item for item in graph.items if isinstance(item, Unit)]]
        culprits = [unit for unit in regions[0] if unit.is_compute and not verdicts[unit].is_npu]
    else:
        regions = _regions(graph, verdicts)
        culprits = [unit for region in regions for unit in region if not verdicts[unit].is_npu]
    guilty = set(culprits)
    for region in regions:
        blamed = [unit for unit in region if unit in guilty]
        for unit in region if blamed else ():
            if verdicts[unit].is_npu:
                settled[unit] = _because_of(blamed, verdicts[blamed[0]], policy)
    return settled


def _regions(graph: UnitGraph, verdicts: Mapping[Unit, Verdict]) -> list[list[Unit]]:
    """Connected sets of units that are quantized, or run on the NPU all the same; others bound them, as does what makes floats of
    masks and indices: a conversion of inputs."""
    units = {
        i: u
        for i, u in enumerate(graph.items)
        if isinstance(u, Unit) and (verdicts[u].is_npu or (u.is_quantized and u.is_compute))
    }
    sets = DisjointSets(units)
    for item in units:
        for other in graph.before[item]:
            if other in sets:
                sets.join(other, item)
    return [[units[item] for item in group] for group in sets.groups()]


def _because_of(culprits: Sequence[Unit], verdict: Verdict, policy: Policy) -> Verdict:
    others = f" and {len(culprits) - 1} more" if len(culprits) > 1 else ""
    where = "the model has" if policy == "whole-model" else "is in one region with"
    reason = f"{where} {_shown(culprits[0])}{others}, which the NPU does not take: {verdict.reason}"
    blamed = tuple(culprit.core.name or "" for culprit in culprits)
    return replace(_fallback(policy, reason, verdict.suggestion), blamed=blamed)


def _fallback(rule: str, reason: str, suggestion: str = "") -> Verdict:
    return Verdict(kind="fallback", engine=CPU, rule=rule, reason=reason, suggestion=suggestion)


def _inner(nodes: Iterable[ir.Node]) -> dict[ir.Node, Verdict]:
    found: dict[ir.Node, Verdict] = {}
    for holder in nodes:
        bodies = bodies_of(holder)
        reason = f"is in a body of {label(holder)}, and bodies run on the CPU"
        verdict = _fallback("inner-graph", reason, WAYS_OUT.get(holder.op_type, NO_WAY_OUT))
        for graph in bodies:
            found |= dict.fromkeys(graph.all_nodes(), verdict)
    return found


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

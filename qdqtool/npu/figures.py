"""Count the operators, groups, crossings and broken rules of a report, from where each operator runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir
from qdq_passes.graph.annotate import Placement
from qdq_passes.graph.nesting import scope_of
from qdq_passes.graph.operators.macs import macs_in, macs_of
from qdq_passes.graph.operators.qdq_ops import is_qdq
from qdq_passes.graph.sizes import static_sizes
from qdq_passes.graph.uses import (
    bodies_of,
    constant_array,
    dtype_of,
    input_at,
    integer_of,
    integers_of,
    is_standard,
    op_type_of,
)
from qdq_passes.npu.partitions.partition_graph import Partition, bytes_of, weight_bytes
from qdq_passes.npu.partitions.partitions import Partitioning
from qdq_passes.npu.units.units import Unit
from qdq_passes.npu.units.verdict import VERDICT_KINDS, Verdict

from qdqtool.npu.report import After, BrokenRule, Crossing, PartitionReport
from qdqtool.npu.shares import NodeReport, Refusal, group_of
from qdqtool.targets.target import Target


def node_reports(placed: dict[ir.Node, Placement], found: Partitioning) -> tuple[NodeReport, ...]:
    """A report of each node that is placed."""
    computing = {node for unit in found.units if counts(unit) for node in unit.nodes} | set(inner_operators(found))
    cores = {node: op_type_of(unit.core) for unit in found.units for node in unit.tail}
    repeats = _repeats(placed)
    return tuple(
        NodeReport(
            name=node.name or "",
            op=op_type_of(node),
            scope=scope_of(node),
            placement=placement,
            kind="pair" if is_qdq(node) else "compute" if node in computing else "steering",
            macs=_times(macs_of(node), repeats.get(node, 1)),
            core=cores.get(node) or op_type_of(node),
        )
        for node, placement in placed.items()
    )


def _repeats(nodes: Iterable[ir.Node]) -> dict[ir.Node, int | None]:
    """How often operators in the bodies of Loop, Scan and SequenceMap run at most, those of an If once; None where that hangs on
    the data."""
    found: dict[ir.Node, int | None] = {}
    for holder in nodes:  # outer ones first
        if holder.op_type in ("If", "Loop", "Scan", "SequenceMap"):
            times = _times(found.get(holder, 1), 1 if holder.op_type == "If" else _trips(holder))
            found |= dict.fromkeys((node for body in bodies_of(holder) for node in body), times)
    return found


def _trips(node: ir.Node) -> int | None:
    """Runs of the body of ``node``, at most."""
    if node.op_type == "Scan":
        first, axis = (
            len(node.inputs) - integer_of(node, "num_scan_inputs", 1),
            (*integers_of(node, "scan_input_axes"), 0)[0],
        )
        sizes = static_sizes(input_at(node, max(first, 0)))
        return sizes[axis] if sizes is not None and -len(sizes) <= axis < len(sizes) else None
    trips = constant_array(input_at(node, 0)) if node.op_type == "Loop" else None
    return int(trips.ravel()[0]) if trips is not None and trips.size == 1 else None


def _times(a: int | None, b: int | None) -> int | None:
    """a·b, 0 where one of them is 0, else None where one is not known."""
    return 0 if 0 in (a, b) else None if a is None or b is None else a * b


def refusals_of(reports: Sequence[NodeReport], found: Partitioning) -> tuple[Refusal, ...]:
    """What keeps operators off the NPU: by the rule, and by the operator where the rule looks at that; first what costs most
    multiply-accumulates, then most operators. What a policy leaves to the CPU counts with the first operator that it blames."""
    named = {report.name: report for report in reports}
    blamed = {node.name: verdict.blamed for node, verdict in found.verdict_of.items() if verdict.blamed}
    groups: dict[tuple[str, str], list[tuple[NodeReport, NodeReport]]] = {}
    for report in reports:
        if report.is_compute and not report.is_npu:
            culprit = named[blamed[report.name][0]] if report.name in blamed else report
            groups.setdefault(group_of(culprit.core, culprit.placement.rule), []).append((culprit, report))
    return tuple(sorted(map(_refusal, groups.values()), key=lambda r: (-r.macs, -len(r.nodes) - r.pulled, r.rule)))


def _refusal(group: Sequence[tuple[NodeReport, NodeReport]]) -> Refusal:
    culprits = tuple({culprit.name: culprit for culprit, _ in group}.values())
    return Refusal(
        rule=culprits[0].placement.rule,
        nodes=tuple(culprit.name for culprit in culprits),
        ops=tuple(dict.fromkeys(culprit.op for culprit in culprits)),
        pulled=sum(report is not culprit for culprit, report in group),
        macs=sum(report.macs or 0 for _, report in group),
        reason=culprits[0].placement.reason,
        suggestion=culprits[0].placement.suggestion,
    )


def partition_report(partition: Partition) -> PartitionReport:
    """``partition`` in figures."""
    return PartitionReport(
        id=partition.id,
        nodes=tuple(node.name or "" for node in partition.nodes),
        inputs=tuple(_crossing(value) for value in partition.inputs),
        outputs=tuple(_crossing(value) for value in partition.outputs),
        macs=macs_in(partition.nodes),
        weight_bytes=weight_bytes(partition.units),
    )


def _crossing(value: ir.Value) -> Crossing:
    dtype = dtype_of(value)
    shape = None if value.shape is None else tuple(d if isinstance(d, int) else d.value for d in value.shape)
    return Crossing(
        name=value.name or "",
        dtype=None if dtype is None else dtype.name.lower(),
        shape=shape,
        bytes=bytes_of(value),
    )


def inner_operators(found: Partitioning) -> list[ir.Node]:
    """Operators in bodies, which the CPU runs; all of them count as operators that compute or move data."""
    return [node for node in found.inner if not (is_qdq(node) or is_standard(node, "Constant"))]


def counts(unit: Unit) -> bool:
    """Whether the nodes of ``unit`` count as operators that compute or move data."""
    return unit.is_compute and not unit.is_requantization


def after(found: Partitioning) -> After:
    """The figures of ``found``."""
    operators = sum(len(unit.nodes) for unit in found.units if counts(unit))
    return After(
        npu_compute_nodes=sum(partition.compute_nodes for partition in found.partitions),
        compute_nodes=operators + len(inner_operators(found)),
        partitions=len(found.partitions),
        boundary_tensors=sum(len(p.inputs) + len(p.outputs) for p in found.partitions),
        boundary_bytes=found.boundary_bytes,
    )


def broken_rules(units: Sequence[Unit], target: Target) -> tuple[BrokenRule, ...]:
    """The rules of ``target`` that ``units`` do not keep, whatever decides on its nodes: where one refused node refuses
    the model, the rule that decides hides the others, and what is mended by one fails by the next.

    Rules that look at an operator alone come once for each operator; the worst verdict first, of each the most frequent.
    """
    groups: dict[tuple[str, ...], list[tuple[Unit, Verdict]]] = {}
    for unit in units:
        for verdict in target.broken(unit) if counts(unit) else ():
            groups.setdefault((verdict.kind, *group_of(op_type_of(unit.core), verdict.rule)), []).append(
                (unit, verdict)
            )
    found = [_rule([unit for unit, _ in group], group[0][1]) for group in groups.values()]
    kinds: tuple[str, ...] = VERDICT_KINDS
    return tuple(sorted(found, key=lambda rule: (-kinds.index(rule.verdict), -len(rule.nodes), rule.rule)))


def _rule(units: Sequence[Unit], first: Verdict) -> BrokenRule:
    return BrokenRule(
        rule=first.rule,
        verdict=first.kind,
        nodes=tuple(unit.core.name or "" for unit in units),
        ops=tuple(dict.fromkeys(op_type_of(unit.core) for unit in units)),
        reason=first.reason,
        suggestion=first.suggestion,
    )

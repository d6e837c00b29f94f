"""What each engine does in one run of a graph, by the estimate: partitions of the NPU, and the CPU between them.

    partition      as `qdqtool.npu.estimate` has it: dispatch, transfers, its nodes one after the other
    unit on CPU    multiply-accumulates / cpu_macs_per_us + element operations / cpu_elements_per_us

The CPU's share is rougher still than the NPU's: its operators are counted as if each read and wrote memory once."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.edit import copy_model
from qdq_passes.npu.partitions.partitions import Partitioning
from qdq_passes.npu.units.units import Unit, units_of
from qdq_passes.npu.units.verdict import CPU, PlacedUnit
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.npu.estimate import estimate
from qdqtool.npu.figures import counts
from qdqtool.npu.resident import cache_note, cache_on_device
from qdqtool.npu.work import work_of
from qdqtool.targets.cost import Cost
from qdqtool.targets.target import Target


@dataclass(frozen=True, kw_only=True)
class GraphTimes:
    """One run of a graph.

    Args:
        units: its operators, those on shapes and indices alone left out.
        partitions: microseconds of each partition, by its id; the engines of an NPU work on one partition at a time.
        cpu_us: name of a node on the CPU → microseconds.
        unknown: names of nodes whose time is not known: a shape is not static; they count as 0.
        notes: what is assumed.
    """

    units: tuple[PlacedUnit, ...]
    partitions: tuple[float, ...]
    cpu_us: Mapping[str, float]
    unknown: tuple[str, ...]
    notes: tuple[str, ...] = ()


def all_on_cpu(model: ir.Model, target: Target | None) -> GraphTimes:
    """What the CPU beside the NPU of ``target`` does in one run of ``model``, all of it; without a target one of default speed.
    The model is not changed."""
    cost = Cost() if target is None else target.cost
    copy = copy_model(model)
    run_pipeline(copy, "infer-shapes,lift-constants")
    units = units_of(copy)
    times = {unit.core.name or "": cpu_us(unit, cost) for unit in units}
    return GraphTimes(
        units=tuple(
            PlacedUnit(name=unit.core.name or "", op=unit.core.op_type, engine=CPU, macs=_macs(unit))
            for unit in units
            if counts(unit)
        ),
        partitions=(),
        cpu_us={name: us or 0.0 for name, us in times.items()},
        unknown=tuple(name for name, us in times.items() if us is None),
    )


def times_in(found: Partitioning, target: Target) -> GraphTimes:
    """What engines do in one run of the model that ``found`` is the partitioning of."""
    estimated = estimate(target, found)
    part_of = {unit: part for part in found.partitions for unit in part.units}
    unknown = [node.name for node in estimated.nodes if node.partition is not None and node.us is None]
    cpu: dict[str, float] = {}
    units = []
    for unit, verdict in zip(found.units, found.verdicts, strict=True):
        name, part = unit.core.name or "", part_of.get(unit)
        if part is None:
            us = cpu_us(unit, target.cost)
            cpu[name] = us or 0.0
            unknown += [name] if us is None else []
        if not counts(unit):
            continue
        why = ("", "", "") if part is not None else (verdict.rule, verdict.reason, verdict.suggestion)
        engine = CPU if part is None else verdict.engine
        units.append(
            PlacedUnit(
                name=name, op=unit.core.op_type, engine=engine, macs=_macs(unit), rule=why[0], reason=why[1], suggestion=why[2]
            )
        )  # fmt: skip
    return GraphTimes(
        units=tuple(units),
        partitions=tuple(part.us or 0.0 for part in estimated.partitions),
        cpu_us=cpu,
        unknown=tuple(unknown),
        notes=tuple(cache_note(found.partitions, cache_on_device(found.units))),
    )


def cpu_us(unit: Unit, cost: Cost) -> float | None:
    """Microseconds of ``unit`` on the CPU beside the NPU; None where a shape is not static."""
    work = work_of(unit)
    if isinstance(work, str):
        return None
    return work.macs / cost.cpu_macs_per_us.value + work.element_ops / cost.cpu_elements_per_us.value


def _macs(unit: Unit) -> int:
    work = work_of(unit)
    return 0 if isinstance(work, str) else work.macs

"""`simulate`: a quantized model on the simulated NPU, beside the reference, the QDQ model and the float model."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.clean.fix_shapes import FixShapes
from qdq_passes.errors import UsageError
from qdq_passes.graph.edit import copy_model
from qdq_passes.npu.partitions.partitions import Partitioning, partition_for
from qdq_passes.npu.program import DOMAIN
from qdq_passes.npu.units.verdict import Boundary
from qdq_passes.pipeline.pipeline import Pipeline, run_pipeline

from qdqtool.io.feeds.array_store import joined, write_npz
from qdqtool.io.feeds.feeds import open_feeds
from qdqtool.io.feeds.spec import input_specs
from qdqtool.io.files.atomic import write_whole
from qdqtool.io.files.progress import Warn, pass_on
from qdqtool.io.models.working import ModelOrPath, opened, repair
from qdqtool.npu.analyzing import unbound_batch
from qdqtool.npu.compiled import headers, refuse_stale_programs
from qdqtool.npu.devices import Device, is_simulated_npu, other_provider, simulated_npu
from qdqtool.npu.estimate import estimate
from qdqtool.npu.jit import boundary_of
from qdqtool.npu.placement import predicted_placement, reported_placement, unexpected_placements, why_nothing_on_npu
from qdqtool.npu.programs import is_context
from qdqtool.npu.runs import Runs
from qdqtool.npu.simulated import Placement, Simulation
from qdqtool.npu.trace import trace as trace_of
from qdqtool.record.record import NOTHING
from qdqtool.runtime.plugin import assignment
from qdqtool.targets.loading import load_target
from qdqtool.targets.target import Target
from qdqtool.verbs.work.chip_times import estimated_on_chip
from qdqtool.verbs.work.records import graph_record, simulation_record

if TYPE_CHECKING:
    from qdqtool.verbs.npu.simulate import Simulate

#: Names in a note.
SHOWN = 3


def simulated(asked: Simulate) -> Simulation:
    """``asked``, on the simulated NPU or another execution provider."""
    is_other = asked.ep_library is not None or asked.ep_name is not None
    foreign = is_other and not is_simulated_npu(asked.ep_library, asked.ep_name)
    options, target, boundary = dict(asked.ep_options or {}), asked.target, asked.boundary
    if not foreign:
        target = _one("target", None if target is None else os.fspath(target), options)
        boundary = boundary_of(_one("boundary", boundary, options))
    work = _named(asked.model, asked.warn)
    compiled = any(is_context(node) for node in work.graph)
    if any(node.domain == DOMAIN for node in work.graph):
        hint = "give the model that it was lowered from, or what `qdqtool compile` makes of that"
        raise UsageError("is a lowered model, of integer operators", hint=hint)
    _refuse(compiled=compiled, foreign=foreign, target=target, against=asked.against, trace=asked.trace)
    if boundary is not None and compiled and asked.against is None:
        raise UsageError("a compiled model has its boundary", hint="compile it again with --boundary")
    chip = None if target is None else load_target(target)
    if chip is not None:
        refuse_stale_programs(work, chip)
    source = _named(asked.against, asked.warn) if asked.against is not None else None if compiled else work
    feeds = open_feeds(asked.data, input_specs(work), samples=asked.samples, seed=asked.seed, image=asked.image)
    planned = None if source is None or chip is None else _planned(source, chip, boundary)
    device = _device(asked, work, target, boundary, options, foreign=foreign)
    runs = Runs(work, device)
    if source is not None:
        if planned is not None and chip is not None and not foreign and (asked.reference or device.session is None):
            runs.add_reference(planned.model, planned.simulated, chip)
        runs.add_others(source, None if asked.float_model is None else opened(asked.float_model)[0])
    figures = runs.over(feeds, keep=asked.output is not None, progress=asked.progress)
    check = not (foreign or asked.optimize or compiled)
    placement, notes = _placement(device, work, planned, check=check, foreign=foreign)
    found = None
    if planned is not None and chip is not None:
        run_pipeline(planned.model, Pipeline((FixShapes(shapes=runs.shapes),)))
        found = estimate(chip, planned.target)
        notes += planned.notes
        notes += [f"{finding.message}; {finding.hint}" for finding in unbound_batch(work, chip)]
    pass_on(feeds.warnings, asked.warn)
    name = next((header.target for _, header in headers(work)), "") if chip is None else chip.name
    if compiled and source is None:
        notes.append("a compiled model says nothing of what it was made from: --against QDQ compares it with that")
    result = runs.result(figures, target=name, placement=placement, estimate=found, notes=notes)
    time = None
    if source is not None:
        cpu = [] if found is None else [node.name for node in found.nodes if node.partition is None]
        parts = 0 if found is None else len(found.partitions)
        time = estimated_on_chip(source, asked, on_cpu=cpu, crossings=parts)
    graph = NOTHING if source is None else graph_record(source)
    record = simulation_record(result, graph, time, is_float_given=asked.float_model is not None)
    result = replace(result, chip_time=None if time is None else time.to_json(), record=record)
    if asked.trace is not None and found is not None:
        written = json.dumps(trace_of(found, result.chip_time), allow_nan=False, ensure_ascii=False)
        write_whole(asked.trace, written.encode(), overwrite=asked.overwrite)
    if asked.output is not None:
        write_npz(asked.output, joined(result.values), overwrite=asked.overwrite)
    return result


def _device(
    asked: Simulate,
    model: ir.Model,
    target: str | os.PathLike[str] | None,
    boundary: Boundary | None,
    options: dict[str, str],
    *,
    foreign: bool,
) -> Device:
    """What runs ``model``."""
    if foreign:
        return other_provider(
            model, asked.ep_library, asked.ep_name, options, optimize=asked.optimize, threads=asked.threads
        )
    return simulated_npu(
        model,
        target,
        boundary,
        options=options,
        library=asked.ep_library,
        optimize=asked.optimize,
        threads=asked.threads,
    )


def _one(name: str, given: str | None, options: dict[str, str]) -> str | None:
    """An argument that may also stand among the provider's options, from where it is taken.

    Raises:
        UsageError: both are given, and differ.
    """
    other = options.pop(name, None)
    if given is not None and other not in (None, given):
        raise UsageError(f"{name} is {given!r}, and {other!r} among the provider's options", hint="give one of them")
    return given if other is None else other


def _refuse(*, compiled: bool, foreign: bool, target: object, against: object, trace: object) -> None:
    """Refuse what cannot be, before any work is done.

    Raises:
        UsageError: an option lacks another.
    """
    if target is None and not foreign and not compiled:
        raise UsageError(
            "no target", hint="give --target (see `qdqtool list targets`), or --ep-name for another provider"
        )
    if against is not None and not compiled:
        raise UsageError("the model holds no compiled programs", hint="--against is for what `qdqtool compile` wrote")
    if trace is not None and target is None:
        raise UsageError("a timeline is of the estimate, which needs a target", hint="give --target")
    if trace is not None and compiled and against is None:
        raise UsageError(
            "a timeline is of the estimate, which needs the QDQ model", hint="give --against, or the model itself"
        )


def _named(model: ModelOrPath, warn: Warn | None) -> ir.Model:
    """A copy in which nodes are in order and each has a name that onnxruntime hears, which places them by name; without local
    functions, which it takes apart as well."""
    work, _ = opened(model)
    repair(work, warn)
    run_pipeline(work, "inline-functions,give-names" if work.functions else "give-names")
    return work


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """Who runs what.

    Args:
        model: a copy with types, shapes and constants as the partitioner reads them.
        simulated: on the simulated NPU.
        target: on the target, which may take more.
    """

    model: ir.Model
    simulated: Partitioning
    target: Partitioning

    @property
    def notes(self) -> list[str]:
        """What the target computes and the simulated NPU does not."""
        there, here = (predicted_placement(self.model, plan).nodes for plan in (self.target, self.simulated))
        lacking = [
            a.name or a.op for a, b in zip(there, here, strict=True) if b.partition is None and a.partition is not None
        ]
        if not lacking:
            return []
        shown = ", ".join(lacking[:SHOWN]) + (f" and {len(lacking) - SHOWN} more" if len(lacking) > SHOWN else "")
        return [f"the target takes what the simulated NPU leaves to the CPU: {shown}; the estimate is of the target"]


def _planned(model: ir.Model, target: Target, boundary: Boundary | None) -> _Plan:
    copy = copy_model(model)
    run_pipeline(copy, "infer-shapes,lift-constants")
    on_target = partition_for(copy, target, boundary, simulated=False)
    return _Plan(model=copy, simulated=partition_for(copy, target, boundary), target=on_target)


def _placement(
    device: Device, model: ir.Model, planned: _Plan | None, *, check: bool, foreign: bool
) -> tuple[Placement | None, list[str]]:
    """Where the operators run, and what is to be said of that.

    Args:
        device: what ran; onnxruntime is asked about its session.
        model: what it ran.
        planned: what the partitioner says.
        check: whether onnxruntime ought to say the same.
        foreign: whether it is another provider, which has reasons of its own.
    """
    expected = None if planned is None else predicted_placement(planned.model, planned.simulated)
    assigned = None if device.session is None else assignment(device.session)
    if assigned is not None:
        known = None if planned is None or foreign else planned
        said = (
            reported_placement(assigned, known.model, known.simulated)
            if known is not None
            else reported_placement(assigned, model, None)
        )
        notes = [
            unexpected_placements(said, expected) if check and expected is not None else None,
            why_nothing_on_npu(said),
        ]
        return said, [note for note in notes if note is not None]
    if expected is None:
        return None, []
    older = "placement is the partitioner's word: onnxruntime tells its own from 1.24 on"
    notes = [None if device.session is None else older, why_nothing_on_npu(expected)]
    return expected, [note for note in notes if note is not None]

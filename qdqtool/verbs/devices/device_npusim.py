"""The simulated NPU of a target: a stage for each partition, and for what the CPU runs between them."""

from __future__ import annotations

import os
from collections import Counter

import onnx_ir as ir
from qdq_passes.errors import UsageError
from qdq_passes.npu.partitions.partitions import partition_for
from qdq_passes.npu.units.verdict import CPU
from qdq_passes.pipeline.pipeline import run_pipeline

import qdqtool.npu
from qdqtool.io.models.load import load
from qdqtool.llm.folder.manifest import StaticModel
from qdqtool.llm.run.devices import DeviceOptions, GraphPlacement, OpenedPart, Piece, Stage
from qdqtool.llm.run.stages import StageGraph, cut_stages
from qdqtool.npu.analyzing import linear_arrangement
from qdqtool.npu.compile import compile_partitions
from qdqtool.npu.engines import GraphTimes, times_in
from qdqtool.npu.estimate import assumptions
from qdqtool.npu.programs import is_context, program_number
from qdqtool.runtime.provider import open_session as open_on_npu
from qdqtool.runtime.session import Session, open_session
from qdqtool.targets.loading import load_target

#: Row of the timeline for all engines of the NPU: they work on one partition at a time.
NPU = "NPU"
#: Names in a note.
SHOWN = 3


class NpuDevice:
    """Compiles each graph for the target when it is opened.

    Args:
        options: the target is needed.

    Raises:
        UsageError: no target.
        SetupError: the library of the simulated NPU was not built, or onnxruntime is older than 1.23.
    """

    def __init__(self, options: DeviceOptions) -> None:
        if options.target is None:
            raise UsageError("the simulated NPU needs a target", hint="give --target (see `qdqtool list targets`)")
        self._options = options
        self._target = load_target(options.target)
        qdqtool.npu.register()

    def open(self, path: str, model: StaticModel, part: int) -> OpenedPart:
        """The graph in stages, or, where these run one after the other anyway, as one session."""
        source = load(path)
        run_pipeline(
            source, "give-names,lift-constants" if _is_typed(source) else "give-names,infer-shapes,lift-constants"
        )
        arrange = self._options.arrange or self._target.arrange
        target = linear_arrangement(source, self._target) if arrange == "linear" else self._target
        found = partition_for(source, target)
        times = times_in(found, target)
        compiled = compile_partitions(source, found, target).model
        prefix = f"part_{part + 1}/" if len(model.parts) > 1 else ""
        stages = self._stages(compiled, times, prefix)
        placement = GraphPlacement(
            graph=os.path.basename(path),
            phase=model.phase,
            units=times.units,
            stages=sum(len(stage.pieces) for stage in stages),
            notes=tuple(_notes(times)),
        )
        figures = tuple(figure.to_json() for figure in assumptions(self._target, with_cpu=True))
        return OpenedPart(stages=stages, placement=placement, assumptions=figures)

    def _stages(self, compiled: ir.Model, times: GraphTimes, prefix: str) -> tuple[Stage, ...]:
        if self._options.schedule == "sequential":
            whole = self._session(compiled, is_npu=any(is_context(node) for node in compiled.graph))
            cut = cut_stages(compiled, is_context, prefix)
            return (Stage(session=whole, pieces=tuple(_piece(stage, times, prefix) for stage in cut)),)
        cut = cut_stages(compiled, is_context, prefix)
        return tuple(
            Stage(
                session=self._session(stage.model, is_npu=stage.node is not None),
                pieces=(_piece(stage, times, prefix),),
            )
            for stage in cut
        )

    def _session(self, model: ir.Model, *, is_npu: bool) -> Session:
        if is_npu:
            return open_on_npu(model, threads=self._options.threads)  # compiled a moment ago: nothing to compare
        return open_session(model, threads=self._options.threads)


def _is_typed(model: ir.Model) -> bool:
    """Whether all values of ``model`` have types and static shapes, as in what `quantize` writes."""
    values = [value for node in model.graph for value in node.outputs if value.name]
    return all(v.dtype is not None and v.shape is not None and v.shape.is_static() for v in values)


def _piece(stage: StageGraph, times: GraphTimes, prefix: str) -> Piece:
    if stage.node is None:
        us = sum(times.cpu_us.get(name, 0.0) for name in stage.nodes)
        return Piece(name=f"{prefix}{stage.name}", engine=CPU, us=us)
    return Piece(name=f"{prefix}{stage.name}", engine=NPU, us=times.partitions[program_number(stage.node)])


def _notes(times: GraphTimes) -> list[str]:
    found = []
    if not times.partitions:
        why = Counter((unit.reason, unit.suggestion) for unit in times.units if unit.reason).most_common(1)
        found.append(": ".join(("nothing of it runs on the NPU", *(f"{reason}; {mend}" for (reason, mend), _ in why))))
    if times.unknown:
        more = f" and {len(times.unknown) - SHOWN} more" if len(times.unknown) > SHOWN else ""
        found.append(f"not in the estimate: {', '.join(times.unknown[:SHOWN])}{more}")
    return [*found, *times.notes]


device = NpuDevice

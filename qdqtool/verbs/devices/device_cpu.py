"""onnxruntime's CPU provider, a graph a session; a target says how fast the CPU beside its NPU is."""

from __future__ import annotations

import os
from dataclasses import replace

from qdq_passes.npu.units.verdict import CPU

from qdqtool.io.models.load import load
from qdqtool.llm.folder.manifest import StaticModel
from qdqtool.llm.run.devices import DeviceOptions, GraphPlacement, OpenedPart, Piece, Stage
from qdqtool.npu.engines import all_on_cpu
from qdqtool.runtime.bound import open_file
from qdqtool.targets.loading import load_target
from qdqtool.targets.target import Target

RULE = "device"
REASON = "the graph was given to the CPU"


class CpuDevice:
    """Opens graphs on the CPU, without onnxruntime's optimizations: the numbers of the graph as it is.

    Args:
        options: the target says how fast the CPU beside its NPU is; none takes the defaults.
    """

    def __init__(self, options: DeviceOptions) -> None:
        self._threads = options.threads
        self._target: Target | None = None if options.target is None else load_target(options.target)

    def open(self, path: str, model: StaticModel, part: int) -> OpenedPart:
        """The graph as one session."""
        session = open_file(path, threads=self._threads, optimize=False)
        found = all_on_cpu(load(path), self._target)
        units = tuple(replace(unit, rule=RULE, reason=REASON) for unit in found.units)
        name = os.path.basename(path).removesuffix(".onnx")
        piece = Piece(name=f"{name} whole", engine=CPU, us=sum(found.cpu_us.values()))
        placement = GraphPlacement(graph=os.path.basename(path), phase=model.phase, units=units, stages=1)
        return OpenedPart(stages=(Stage(session=session, pieces=(piece,)),), placement=placement)


device = CpuDevice

"""The verb `memory_plan`: what the graphs of a model, or of a folder that `split` wrote, need of a target's memory."""

from __future__ import annotations

import os
from dataclasses import field, replace
from typing import TYPE_CHECKING, Literal, get_args

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.options import metadata_of, option
from qdqtool.verbs.groups import MODEL, Path
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    from qdqtool.io.models.working import ModelOrPath
    from qdqtool.npu.memory import GraphMemory, MemoryPlan
    from qdqtool.targets.target import Target

Arrangement = Literal["whole", "linear"]


@dataclass(frozen=True, kw_only=True)
class MemoryPlanOf(Verb["MemoryPlan"]):
    """What MODEL needs of the memory that the NPU of a target addresses, and in how many parts it fits."""

    model: ModelOrPath = field(kw_only=False, metadata=MODEL)
    target: Path = field(
        metadata=metadata_of("The NPU.", value="NAME|FILE", use="read", listed_by="targets", required=True)
    )
    arrange: Arrangement | None = option(None, "The NPU takes what it can, or linear layers; else as the target says.")

    def run(self) -> MemoryPlan:
        """The plan.

        Raises:
            QdqError: bad model, folder or target; see each class's exit code.
        """
        import onnx_ir as ir
        from qdq_passes.errors import UsageError
        from qdq_passes.pipeline.pipeline import run_pipeline

        from qdqtool.io.models.working import opened
        from qdqtool.npu.analyzing import linear_arrangement
        from qdqtool.npu.memory import graph_memory, plan_of
        from qdqtool.targets.loading import load_target

        if self.arrange not in (None, *get_args(Arrangement)):
            hint = f"it is {' or '.join(get_args(Arrangement))}"
            raise UsageError(f"--arrange cannot be {self.arrange!r}", hint=hint)
        chip = load_target(self.target)
        is_linear = (self.arrange or chip.arrange) == "linear"
        if not isinstance(self.model, ir.Model) and os.path.isdir(self.model):
            return plan_of(chip, _of_folder(os.fspath(self.model), chip, is_linear=is_linear))
        work, _ = opened(self.model)
        run_pipeline(work, "give-names")
        name = "model.onnx" if isinstance(self.model, ir.Model) else os.path.basename(os.fspath(self.model))
        return plan_of(chip, [graph_memory(work, linear_arrangement(work, chip) if is_linear else chip, name=name)])


def _of_folder(folder: str, target: Target, *, is_linear: bool) -> list[GraphMemory]:
    from qdq_passes.errors import UsageError
    from qdq_passes.pipeline.pipeline import run_pipeline

    from qdqtool.io.models.load import load
    from qdqtool.llm.folder.manifest import MANIFEST, read_manifest
    from qdqtool.npu.analyzing import linear_arrangement
    from qdqtool.npu.memory import graph_memory

    if not os.path.isfile(os.path.join(folder, MANIFEST)):
        raise UsageError("is no folder that `qdqtool split` wrote", where=folder, hint="give such a folder, or a model")
    found = []
    for static in read_manifest(folder).models:
        pasts = {name: tensor.past for tensor in static.decoder.cache for name in (tensor.past, tensor.present)}
        parts = []
        for part in static.parts:
            work = load(os.path.join(folder, part.file))
            run_pipeline(work, "give-names")
            chip = linear_arrangement(work, target) if is_linear else target
            parts.append(graph_memory(work, chip, name=part.file, cache=pasts))
        found += _in_all(parts)
    return found


def _in_all(parts: list[GraphMemory]) -> list[GraphMemory]:
    """``parts`` of one model; those that do not fit say how many parts the model needs, not each of them."""
    each = [graph.parts for graph in parts]
    known = [count for count in each if count is not None]
    total = sum(known) if len(known) == len(each) else None
    return [graph if graph.parts in (1, None) else replace(graph, parts=total) for graph in parts]


memory_plan = function_of(MemoryPlanOf)

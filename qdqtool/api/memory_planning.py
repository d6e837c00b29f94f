"""The verb `memory_plan`: what the graphs of a model, or of a folder that `split` wrote, need of a target's memory."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import get_args

import onnx_ir as ir
from qdq_passes.errors import UsageError
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.io.models.load import load
from qdqtool.io.models.working import ModelOrPath, opened
from qdqtool.llm.folder.manifest import MANIFEST, read_manifest
from qdqtool.llm.run.devices import Arrangement
from qdqtool.npu.arranging import linear_arrangement
from qdqtool.npu.memory import GraphMemory, MemoryPlan, graph_memory, plan_of
from qdqtool.targets.loading import load_target
from qdqtool.targets.target import Target


def memory_plan(model: ModelOrPath, *, target: str | os.PathLike[str], arrange: str | None = None) -> MemoryPlan:
    """What ``model`` needs of the memory that the NPU of ``target`` addresses, and in how many parts it fits.

    Args:
        model: path, a model in memory (which stays as it is), or a folder that `split` wrote.
        target: name or file of the target.
        arrange: ``"whole"`` or ``"linear"``; what the target says by default.

    Raises:
        QdqError: bad model, folder or target; see each class's exit code.
    """
    if arrange not in (None, *get_args(Arrangement)):
        raise UsageError(f"arrange is {arrange!r}", hint=", ".join(get_args(Arrangement)))
    chip = load_target(target)
    is_linear = (arrange or chip.arrange) == "linear"
    if not isinstance(model, ir.Model) and os.path.isdir(model):
        return plan_of(chip, _of_folder(os.fspath(model), chip, is_linear=is_linear))
    work, _ = opened(model)
    run_pipeline(work, "give-names")
    name = "model.onnx" if isinstance(model, ir.Model) else os.path.basename(os.fspath(model))
    return plan_of(chip, [graph_memory(work, linear_arrangement(work, chip) if is_linear else chip, name=name)])


def _of_folder(folder: str, target: Target, *, is_linear: bool) -> list[GraphMemory]:
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

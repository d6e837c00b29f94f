"""Recovery of accuracy in a folder: what the layers of all graphs are fed is summed up, and every graph is treated alike."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.moments import LayerStatistics, merged
from qdq_passes.pipeline.pipeline import Hook
from qdq_passes.qdq.look.weighted_layers import weighted_layers
from qdq_passes.recover.round_weights import RoundWeights

from qdqtool.calibrate.layer_sums import Wanted, collect_statistics
from qdqtool.calibrate.statistics import Statistics, combined
from qdqtool.io.files.progress import StageProgress
from qdqtool.llm.folder.manifest import StaticModel
from qdqtool.llm.run.calibration import Windows
from qdqtool.quantization.plan import Plan
from qdqtool.quantization.recovery import STATISTICS, Recovering


@dataclass(frozen=True)
class GraphFeeds:
    """What one graph reads while windows of a text run, window by window; can be read again.

    Args:
        windows: the runner.
        file: the graph.
    """

    windows: Windows
    file: str

    def __iter__(self) -> Iterator[Mapping[str, Array]]:
        held: list[dict[str, Array]] = []

        def watch(model: StaticModel, part: int, feed: Mapping[str, Array]) -> None:
            if model.parts[part].file == self.file:
                held.append({name: np.array(array) for name, array in feed.items()})

        for task in self.windows.tasks:
            self.windows.run(task, watch)
            yield from held
            held.clear()


def needs_statistics(plan: Plan) -> bool:
    """Whether a pass of ``plan`` reads ``@statistics``."""
    return STATISTICS in plan.recover.needs() or STATISTICS in plan.materialise.needs()


def recover_folder(
    folder: str | os.PathLike[str],
    prepared: Mapping[str, ir.Model],
    plan: Plan,
    recovering: Recovering,
    ids: Sequence[int],
    *,
    samples: int | None = None,
    hooks: Iterable[Hook] = (),
    progress: StageProgress | None = None,
) -> Statistics | None:
    """Run what ``plan`` recovers with before calibration on all ``prepared`` graphs, in place, with statistics of all of them.

    Args:
        folder: what `split` wrote, verified.
        prepared: its graphs, by file.
        plan: the plan of all.
        recovering: statistics that are given, and where to write those that are not.
        ids: the text; not needed with given statistics.
        samples: windows of it.
        hooks: pipeline hooks.
        progress: called with (stage, done, total).

    Returns:
        What the passes behind the pairs read; None where nothing reads any.
    """
    hooks = list(hooks)
    found = recovering.given
    if found is None and STATISTICS in plan.recover.needs():
        found = _collected(folder, prepared, ["magnitudes"], "measuring channels", ids, samples, progress)
    for model in prepared.values():
        inputs = {} if found is None else {STATISTICS: found.layers}
        if plan.recover.passes:
            plan.recover.run(model, inputs=inputs, hooks=hooks)
    if recovering.given is None and STATISTICS in plan.materialise.needs():
        rounds = any(isinstance(p, RoundWeights) for p in plan.materialise.passes)
        wanted: list[Wanted] = ["means", "moments"] if rounds else ["means"]
        new = _collected(folder, prepared, wanted, "collecting moments", ids, samples, progress)
        found = new if found is None else combined(found, new)
    if recovering.file is not None and found is not None:
        found.write(recovering.file)
    return found


def _collected(
    folder: str | os.PathLike[str],
    prepared: Mapping[str, ir.Model],
    wanted: Sequence[Wanted],
    stage: str,
    ids: Sequence[int],
    samples: int | None,
    progress: StageProgress | None,
) -> Statistics:
    """Statistics of the layers of all graphs: a layer of one name is one layer, its vectors are those of every run."""
    total: dict[str, LayerStatistics] = {}
    last: Statistics | None = None
    count = 0
    with_layers = {file: model for file, model in prepared.items() if weighted_layers(model)}
    for number, (file, model) in enumerate(with_layers.items()):
        if progress is not None:
            progress(stage, number, len(with_layers))
        feeds = GraphFeeds(Windows(folder, ids, samples=samples), file)
        last = collect_statistics(model, feeds, wanted=wanted)
        count += last.samples
        for name, one in last.layers.items():
            total[name] = merged(total[name], one) if name in total else one
    assert last is not None  # a decoder multiplies
    return Statistics.of(total, samples=count, model_sha256=last.model_sha256, data_sha256=last.data_sha256)

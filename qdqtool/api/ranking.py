"""The verb `sensitivity`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from qdqtool.api.quantizing import DEFAULT_PRESET
from qdqtool.api.searching import Job, close_journal, open_journal
from qdqtool.calibrate.ranges import Ranges
from qdqtool.calibrate.statistics import Statistics
from qdqtool.io.feeds.feeds import FeedSpec
from qdqtool.io.feeds.images import ImageOptions
from qdqtool.io.files.artifacts import write_json
from qdqtool.io.files.atomic import refuse_existing, write_whole
from qdqtool.io.files.progress import StageProgress, Warn, stage
from qdqtool.io.models.working import ModelOrPath, opened
from qdqtool.presets.preset import Preset
from qdqtool.search.measuring import Measurements
from qdqtool.search.node_groups import By
from qdqtool.search.sensitivity import Mode, Sensitivity, sensitivity_of
from qdqtool.search.sensitivity_plot import sensitivity_svg
from qdqtool.workers.cluster import open_workers


def sensitivity(
    model: ModelOrPath,
    data: FeedSpec | None = None,
    output: str | os.PathLike[str] | None = None,
    *,
    preset: str | Preset = DEFAULT_PRESET,
    target: str | None = None,
    metric: str = "sqnr",
    by: By = "node",
    mode: Mode = "both",
    select: Sequence[str] = (),
    samples: int | None = None,
    seed: int = 0,
    image: ImageOptions | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    eval_data: FeedSpec | None = None,
    eval_samples: int | None = None,
    ranges: Ranges | str | os.PathLike[str] | None = None,
    statistics: Statistics | str | os.PathLike[str] | None = None,
    allow_empty: bool = False,
    resume: str | os.PathLike[str] | None = None,
    plot: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    cache: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    cluster: str | None = None,
    progress: StageProgress | None = None,
    warn: Warn | None = None,
    **options: object,
) -> Sensitivity:
    """Measure of every node what the model is worth when only it is quantized, and when only it is left float.

    Args:
        model: path, or a model in memory (which stays as it is).
        data: calibration samples in any form of ``--data``.
        output: where to write the result as JSON. What was measured so far stands beside it, in ``OUTPUT.partial``.
        preset: name, file or `Preset`.
        target: target whose operator list is quantized.
        metric: ``sqnr``, ``cosine``, ``accuracy``, or ``module:function``; see `qdqtool.search.metrics`.
        by: what is measured together: a node (with what is fused with it), layer, scope or operator type.
        mode: which of the two.
        select: selectors of the nodes to measure.
        samples: take the first so many samples.
        seed: seed of random data.
        image: how images become inputs.
        tokenizer: a tokenizer.json, or a folder with one, for a text as data; by default beside the model.
        eval_data: samples to judge on, instead of ``data``.
        eval_samples: take the first so many of these; ``samples`` by default, else a few for SQNR and all for another metric.
        ranges: ranges found before, instead of calibrating.
        statistics: statistics of the layers' inputs found before, for ``smooth`` and the like, instead of collecting them.
        allow_empty: a selector that matches nothing is a warning.
        resume: file of an interrupted run to go on with, or to begin.
        plot: where to draw the figures, as SVG.
        overwrite: replace existing files.
        cache: folder for ranges.
        jobs: processes; the figures do not depend on their number.
        cluster: address of a Dask scheduler instead.
        progress: called with (stage, done, total).
        warn: called with each warning.
        options: any other argument of `quantize` that says what to quantize and how: ``exclude``, ``method``, ``weights``, …

    Raises:
        QdqError: bad model, data or options; see each class's exit code.
    """
    for file in (output, plot):
        if file is not None:
            refuse_existing(os.path.abspath(file), overwrite=overwrite)
    work, _ = opened(model)
    job = Job(
        preset=preset, target=target, options=options, data=data, samples=samples, seed=seed, image=image,
        tokenizer=tokenizer, eval_data=eval_data, eval_samples=eval_samples, metric=metric, ranges=ranges, statistics=statistics,
        allow_empty=allow_empty, cache=cache,
    )  # fmt: skip
    with open_workers(jobs, cluster, warn=warn) as workers:
        setting, judge = job.begin(work, model, workers, progress=progress, warn=warn)
        journal = open_journal("sensitivity", setting, output=output, resume=resume, overwrite=overwrite)
        found = sensitivity_of(
            setting,
            Measurements(baseline=setting.baseline, workers=workers, journal=journal),
            metric=judge,
            by=by,
            mode=mode,
            select=select,
            progress=stage(progress, "measuring"),
        )
    if plot is not None:
        write_whole(plot, sensitivity_svg(found).encode(), overwrite=overwrite)
    if output is not None:
        write_json(output, kind="sensitivity", version=1, payload=found.to_json(), overwrite=overwrite)
    close_journal(journal, output)
    return found

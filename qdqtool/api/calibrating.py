"""The verb `calibrate`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from qdqtool.api.texts import with_texts
from qdqtool.calibrate.observer import Option
from qdqtool.calibrate.ranges import Ranges
from qdqtool.io.feeds.feeds import FeedSpec, open_feeds
from qdqtool.io.feeds.images import ImageOptions
from qdqtool.io.feeds.spec import input_specs
from qdqtool.io.files.progress import StageProgress, Warn, pass_on, stage
from qdqtool.io.models.load import load
from qdqtool.io.models.working import ModelOrPath
from qdqtool.quantization.calibrating import collect_finite
from qdqtool.runtime.taps import float_tensors
from qdqtool.workers.cluster import open_workers


def calibrate(
    model: ModelOrPath,
    data: FeedSpec,
    *,
    method: str = "minmax",
    method_options: Mapping[str, Option] | None = None,
    samples: int | None = None,
    seed: int = 0,
    image: ImageOptions | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    tensors: Sequence[str] | None = None,
    statistics: bool = False,
    cache: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    cluster: str | None = None,
    progress: StageProgress | None = None,
    warn: Warn | None = None,
) -> Ranges:
    """Ranges of the float tensors of ``model`` over ``data``; all of them, or those named in ``tensors``.

    Args:
        model: path, or a model in memory (which stays as it is).
        data: samples in any form of ``--data``.
        method: calibration method.
        method_options: its options, ``{"percentile": 99.99}``.
        samples: take the first so many.
        seed: seed of random data.
        image: how images become inputs.
        tokenizer: a tokenizer.json, or a folder with one, for a text; by default beside the model.
        tensors: names of float graph inputs and node outputs of the main graph.
        statistics: every range has a histogram, also of methods that need none.
        cache: folder for ranges: found again for the same model, data, tensors and method; an interrupted run goes on there.
        jobs: processes of this machine that run the model; the ranges are the same to the last bit whatever their number.
        cluster: address of a Dask scheduler, whose workers run the model instead.
        progress: called with (stage, done, total).
        warn: called with each warning.

    Raises:
        QdqError: bad model, data or options; see each class's exit code.
    """
    graph = model if isinstance(model, ir.Model) else load(model)
    data = with_texts(data, graph, model, tokenizer=tokenizer, samples=samples)
    feeds = open_feeds(data, input_specs(graph), samples=samples, seed=seed, image=image)
    with open_workers(jobs, cluster, warn=warn) as workers:
        found = collect_finite(
            graph,
            feeds,
            method,
            float_tensors(graph) if tensors is None else tensors,
            options=method_options,
            statistics=statistics,
            cache=cache,
            way_out=lambda bad: f"leave it out with --select {shlex.quote(' & '.join(f'!tensor:{n}' for n in bad))}",
            workers=workers,
            progress=stage(progress, "calibrating", feeds.count),
        )
    pass_on(feeds.warnings, warn)
    return found

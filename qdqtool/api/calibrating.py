"""The verb `calibrate`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from qdqtool.api.ticking import Warn, pass_on, stage
from qdqtool.calibrate.observer import Option
from qdqtool.calibrate.ranges import Ranges
from qdqtool.io.feed_spec import input_specs
from qdqtool.io.feeds import FeedSpec, open_feeds
from qdqtool.io.images import ImageOptions
from qdqtool.io.load import load
from qdqtool.io.progress import StageProgress
from qdqtool.io.working import ModelOrPath
from qdqtool.quantization.calibrating import collect_finite
from qdqtool.runtime.taps import float_tensors


def calibrate(
    model: ModelOrPath,
    data: FeedSpec,
    *,
    method: str = "minmax",
    method_options: Mapping[str, Option] | None = None,
    samples: int | None = None,
    seed: int = 0,
    image: ImageOptions | None = None,
    tensors: Sequence[str] | None = None,
    statistics: bool = False,
    cache: str | os.PathLike[str] | None = None,
    jobs: int = 1,
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
        tensors: names of float graph inputs and node outputs of the main graph.
        statistics: every range has a histogram, also of methods that need none.
        cache: folder for ranges: found again for the same model, data, tensors and method; an interrupted run goes on there.
        jobs: threads inside an operator; the figures are those of so many threads, to the last bit.
        progress: called with (stage, done, total).
        warn: called with each warning.

    Raises:
        QdqError: bad model, data or options; see each class's exit code.
    """
    graph = model if isinstance(model, ir.Model) else load(model)
    feeds = open_feeds(data, input_specs(graph), samples=samples, seed=seed, image=image)
    found = collect_finite(
        graph,
        feeds,
        method,
        float_tensors(graph) if tensors is None else tensors,
        options=method_options,
        statistics=statistics,
        cache=cache,
        way_out=lambda bad: f"leave it out with --select {shlex.quote(' & '.join(f'!tensor:{name}' for name in bad))}",
        threads=jobs,
        progress=stage(progress, "calibrating", feeds.count),
    )
    pass_on(feeds.warnings, warn)
    return found

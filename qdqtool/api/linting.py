"""The verb `lint`: what `check --data` says of the values that a model takes."""

from __future__ import annotations

import os
from collections.abc import Sequence

import onnx_ir as ir
from qdq_passes.core.findings import Finding
from qdq_passes.graph.edit import copy_model
from qdq_passes.qdq.look.pairs import half_pairs, qdq_pairs

from qdqtool.api.quantizing import planned
from qdqtool.api.texts import with_texts
from qdqtool.io.feeds.feeds import FeedSpec, open_feeds
from qdqtool.io.feeds.images import ImageOptions
from qdqtool.io.feeds.spec import input_specs
from qdqtool.io.files.progress import StageProgress, Warn, pass_on, stage
from qdqtool.io.models.load import load
from qdqtool.io.models.working import ModelOrPath
from qdqtool.lints.find import find_lints
from qdqtool.lints.observe import context_of_float, context_of_quantized
from qdqtool.presets.preset import Preset

#: Whose grids a float model is looked at on.
PRESET = "xint8"


def lint(
    model: ModelOrPath,
    data: FeedSpec | None = None,
    *,
    preset: str | Preset | None = None,
    exclude: Sequence[str] = (),
    samples: int | None = None,
    seed: int = 0,
    image: ImageOptions | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    progress: StageProgress | None = None,
    warn: Warn | None = None,
) -> list[Finding]:
    """Where a grid of integers hurts: Concats of unlike branches, functions too steep, slices that become constants.

    Args:
        model: a float model, looked at on the grids that ``preset`` would give it; or one with QDQ pairs, on its own.
        data: samples in any form of ``--data``; None: only weights are looked at.
        preset: name, file or `Preset`; `PRESET` by default. Of no use for a model with pairs.
        exclude: selectors of nodes that would stay float.
        samples: take the first so many.
        seed: seed of random data.
        image: how images become inputs.
        tokenizer: a tokenizer.json, or a folder with one, for a text as ``data``; by default beside the model.
        jobs: threads inside an operator.
        progress: called with (stage, done, total).
        warn: called with each warning.

    Raises:
        QdqError: bad model, data or preset; see each class's exit code.
    """
    work = copy_model(model) if isinstance(model, ir.Model) else load(model)
    feeds = None
    if data is not None:
        given = with_texts(data, work, model, tokenizer=tokenizer, samples=samples)
        feeds = open_feeds(given, input_specs(work), samples=samples, seed=seed, image=image)
    ticks = stage(progress, "observing", None if feeds is None else feeds.count)
    if has_grids(work):
        if (preset is not None or exclude) and warn is not None:
            warn("the model has pairs: its own grids are looked at, not those of a preset")
        context = context_of_quantized(work, feeds, threads=jobs, progress=ticks)
    else:
        context = context_of_float(
            work, planned(preset or PRESET, exclude=exclude), feeds, threads=jobs, progress=ticks
        )
    if feeds is not None:
        pass_on(feeds.warnings, warn)
    return find_lints(context)


def has_grids(model: ir.Model) -> bool:
    """Whether ``model`` is quantized, so that its own grids are looked at."""
    return bool(qdq_pairs(model) or half_pairs(model))

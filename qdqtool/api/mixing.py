"""The verb `mixed_precision`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from qdq_passes.errors import UsageError

from qdqtool.api.quantizing import DEFAULT_PRESET, Quantized, quantize
from qdqtool.api.replaying import defaults_of
from qdqtool.api.searching import Job, close_journal, open_journal
from qdqtool.calibrate.fingerprint import model_sha256
from qdqtool.calibrate.ranges import Ranges
from qdqtool.calibrate.statistics import Statistics
from qdqtool.io.feeds.feeds import FeedSpec
from qdqtool.io.feeds.images import ImageOptions
from qdqtool.io.files.atomic import refuse_existing
from qdqtool.io.files.progress import StageProgress, Warn
from qdqtool.io.models.working import ModelOrPath, opened
from qdqtool.presets.preset import Preset
from qdqtool.search.allowed_precisions import allowed_precisions
from qdqtool.search.measuring import Measurements, Setting
from qdqtool.search.mixed_precision import Mixed
from qdqtool.search.node_groups import node_groups
from qdqtool.search.precision_search import Search
from qdqtool.search.recipe import OptionValue, Recipe
from qdqtool.search.variants import RAISED
from qdqtool.workers.cluster import open_workers

#: What nodes may be raised to unless it is said.
TYPES = ("int16", "fp16", "float")


@dataclass(frozen=True, kw_only=True)
class MixedPrecision:
    """What a search found, and what was made of it.

    Args:
        mixed: the search.
        recipe: what makes the chosen point again.
        quantized: the chosen point; None where the bound is not met.
    """

    mixed: Mixed
    recipe: Recipe
    quantized: Quantized | None

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; the keys of the command's contract."""
        return {"preset": self.recipe.preset, **self.mixed.to_json(), "ranges_sha256": self.recipe.ranges_sha256}


def mixed_precision(
    model: ModelOrPath,
    data: FeedSpec | None = None,
    output: str | os.PathLike[str] | None = None,
    *,
    min_sqnr: float | None = None,
    metric: str = "sqnr",
    min_metric: float | None = None,
    types: Sequence[str] = TYPES,
    preset: str | Preset = DEFAULT_PRESET,
    target: str | None = None,
    samples: int | None = None,
    seed: int = 0,
    image: ImageOptions | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    eval_data: FeedSpec | None = None,
    eval_samples: int | None = None,
    ranges: Ranges | str | os.PathLike[str] | None = None,
    statistics: Statistics | str | os.PathLike[str] | None = None,
    allow_empty: bool = False,
    recipe: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    allow_findings: bool = False,
    overwrite: bool = False,
    no_provenance: bool = False,
    cache: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    cluster: str | None = None,
    progress: StageProgress | None = None,
    warn: Warn | None = None,
    **options: object,
) -> MixedPrecision:
    """Raise as few nodes out of 8 bit as hold a bound, at the least cost; quantize like that.

    Args:
        model: path, or a model in memory (which stays as it is).
        data: calibration samples in any form of ``--data``.
        output: where to write the quantized model; not written where the bound cannot be met.
        min_sqnr: bound on the SQNR of the worst output, in dB.
        metric: with ``min_metric``, what judges; see `qdqtool.search.metrics`.
        min_metric: bound on the figure of ``metric``.
        types: what nodes may be raised to: ``int16``, ``fp16``, ``bf16``, ``float``.
        preset: name, file or `Preset`.
        target: target whose operator list is quantized; nodes are raised only to what it takes of them.
        samples: take the first so many samples.
        seed: seed of random data.
        image: how images become inputs.
        tokenizer: a tokenizer.json, or a folder with one, for a text as data; by default beside the model.
        eval_data: samples to judge on, instead of ``data``.
        eval_samples: take the first so many of these; ``samples`` by default, else a few for SQNR and all for another metric.
        ranges: ranges found before, instead of calibrating.
        statistics: statistics of the layers' inputs found before, for ``smooth`` and the like, instead of collecting them.
        allow_empty: a selector that matches nothing is a warning.
        recipe: where to write what `quantize` replays.
        resume: file of an interrupted search to go on with, or to begin.
        allow_findings: save although the model has errors that it came with.
        overwrite: replace existing files.
        no_provenance: leave out the metadata entry.
        cache: folder for ranges.
        jobs: processes; the result does not depend on their number.
        cluster: address of a Dask scheduler instead.
        progress: called with (stage, done, total).
        warn: called with each warning.
        options: any other argument of `quantize` that says what to quantize and how: ``exclude``, ``method``, ``weights``, …

    Raises:
        UsageError: no bound, or two; an option that there is not.
        QdqError: bad model, data or options; see each class's exit code.
    """
    bound, judge_name = _bound(min_sqnr, metric, min_metric)
    for file in (output, recipe):
        if file is not None:
            refuse_existing(os.path.abspath(file), overwrite=overwrite)
    asked = _types(types)
    work, _ = opened(model)
    fingerprint = model_sha256(work)
    job = Job(
        preset=preset, target=target, options=options, data=data, samples=samples, seed=seed, image=image,
        tokenizer=tokenizer, eval_data=eval_data, eval_samples=eval_samples, metric=judge_name, ranges=ranges,
        statistics=statistics, allow_empty=allow_empty, cache=cache,
    )  # fmt: skip
    with open_workers(jobs, cluster, warn=warn) as workers:
        setting, judge = job.begin(work, model, workers, precisions=asked, progress=progress, warn=warn)
        journal = open_journal("mixed-precision", setting, output=output, resume=resume, overwrite=overwrite)
        allowed = allowed_precisions(
            setting.baseline, node_groups(setting.model, setting.plan, follow=True), asked, job.chip()
        )
        found = Search(
            setting=setting,
            measurements=Measurements(baseline=setting.baseline, workers=workers, journal=journal),
            metric=judge,
            bound=bound,
            precisions=asked,
            allowed=allowed,
            progress=progress,
        ).run()
    said = {**options, "target": target, "samples": samples, "seed": seed}
    made = _recipe(found, job, said, setting, fingerprint)
    if not found.met:
        return MixedPrecision(mixed=found, recipe=made, quantized=None)
    given = setting.baseline.ranges if ranges is not None else None
    done = quantize(
        model, output, recipe=made, preset=preset, data=data, image=image, tokenizer=tokenizer, ranges=given,
        statistics=statistics, allow_empty=allow_empty, allow_findings=allow_findings, overwrite=overwrite,
        no_provenance=no_provenance, cache=cache, progress=progress, warn=warn,
    )  # fmt: skip
    made = replace(made, ranges_sha256=done.quantization.ranges.sha256)
    if recipe is not None:
        made.write(recipe, overwrite=overwrite)
    close_journal(journal, output)
    return MixedPrecision(mixed=found, recipe=made, quantized=done)


def _bound(min_sqnr: float | None, metric: str, min_metric: float | None) -> tuple[float, str]:
    """The bound, and the name of the metric that it is on."""
    if min_sqnr is not None and (min_metric is not None or metric != "sqnr"):
        hint = "a search has one bound: --min-sqnr, or --metric and --min-metric"
        raise UsageError("--min-sqnr and --metric together", hint=hint)
    bound = min_sqnr if min_sqnr is not None else min_metric
    if bound is None:
        raise UsageError("no bound to hold", hint="give --min-sqnr DB, or --metric module:function and --min-metric X")
    if bound != bound:
        raise UsageError("the bound is no number", hint="give for example --min-sqnr 30")
    return bound, metric


def _types(types: Sequence[str]) -> tuple[str, ...]:
    """``types``, cheapest first."""
    for name in types:
        if name not in RAISED:
            raise UsageError(f"nothing is raised to {name!r}", where="--types", hint=f"it takes {', '.join(RAISED)}")
    if not types:
        raise UsageError("no types to raise nodes to", where="--types", hint=f"it takes {', '.join(RAISED)}")
    return tuple(name for name in RAISED if name in types)


def _recipe(found: Mixed, job: Job, said: dict[str, Any], setting: Setting, fingerprint: str) -> Recipe:
    preset = job.preset.name if isinstance(job.preset, Preset) else str(job.preset)
    chosen = found.chosen
    return Recipe(
        preset=preset,
        options={name: _option(name, value) for name, value in said.items() if not _is_default(name, value)},
        nodes=dict(chosen.point.raised),
        metric=found.metric.name,
        bound=found.bound,
        figure=chosen.measured.figure,
        cost=chosen.measured.cost.total,
        share_8_bit=chosen.measured.cost.share_8_bit,
        crossings=chosen.measured.cost.crossings,
        model_sha256=fingerprint,
        preset_sha256=setting.plan.preset.sha256,
    )


def _option(name: str, value: Any) -> OptionValue:
    """An argument of `quantize` as a recipe writes it.

    Raises:
        UsageError: it is a function, which a file cannot hold.
    """
    items = list(value) if isinstance(value, list | tuple) else [value]
    if any(callable(item) for item in items):
        raise UsageError("a recipe cannot hold a function", where=name, hint="give it as module:function")
    return tuple(value) if isinstance(value, list | tuple) else value


def _is_default(name: str, value: Any) -> bool:
    if isinstance(value, list | tuple | dict) and not value:
        return True
    defaults = defaults_of(quantize)
    return name in defaults and value == defaults[name]

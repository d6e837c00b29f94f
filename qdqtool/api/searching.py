"""What the verbs that measure many variants have in common: options, data to calibrate and to judge on, a file to go on from."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from qdq_passes.errors import UsageError

from qdqtool.api.texts import is_text, with_texts
from qdqtool.calibrate.ranges import Ranges
from qdqtool.calibrate.statistics import Statistics
from qdqtool.io.feeds.feeds import FeedSpec, open_feeds
from qdqtool.io.feeds.images import ImageOptions
from qdqtool.io.feeds.spec import input_specs
from qdqtool.io.files.journal import Journal
from qdqtool.io.files.progress import StageProgress, Warn, pass_on, stage
from qdqtool.io.models.working import ModelOrPath
from qdqtool.presets.loading import load_preset
from qdqtool.presets.preset import Preset
from qdqtool.quantization.calibrating import sqnr_samples
from qdqtool.quantization.options import Options
from qdqtool.quantization.recovery import Recovering
from qdqtool.search.measuring import Setting, set_up
from qdqtool.search.metrics import Metric, open_metric
from qdqtool.search.precision_cost import Prices
from qdqtool.search.variants import Scheme
from qdqtool.targets.loading import load_target
from qdqtool.targets.target import Target
from qdqtool.workers.cluster import Workers

#: What is put behind the name of an output for the file that an interrupted run leaves.
PARTIAL = ".partial"


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a search is made from.

    Args:
        preset: name, file or `Preset`.
        target: name or file of the target.
        options: what else is said to `quantize`, by the names of its arguments.
        data: calibration samples, in any form of ``--data``.
        samples: take the first so many of them.
        seed: seed of random data.
        image: how images become inputs.
        tokenizer: a tokenizer.json, or a folder with one, for a text; by default beside the model.
        eval_data: samples to judge on; ``data`` where None.
        eval_samples: take the first so many of them; ``samples`` where None, else as many as the metric asks for.
        metric: name of the metric.
        ranges: ranges found before, instead of calibrating.
        statistics: statistics of the layers' inputs found before.
        allow_empty: a selector that matches nothing is a warning.
        cache: folder of ranges found before.
    """

    preset: str | Preset
    target: str | None
    options: Mapping[str, object]
    data: FeedSpec | None
    samples: int | None
    seed: int
    image: ImageOptions | None
    tokenizer: str | os.PathLike[str] | None
    eval_data: FeedSpec | None
    eval_samples: int | None
    metric: str
    ranges: Ranges | str | os.PathLike[str] | None
    statistics: Statistics | str | os.PathLike[str] | None
    allow_empty: bool
    cache: str | os.PathLike[str] | None

    def chip(self) -> Target | None:
        """The target."""
        return load_target(self.target) if self.target else None

    def scheme(self) -> Scheme:
        """What the variants have in common.

        Raises:
            UsageError: an option that there is not.
        """
        given = self._given_ranges()
        options = {**self.options, **({} if given is None else {"method": given.method})}
        if options.get("bound_masks", False) is None:
            options["bound_masks"] = is_text(self.data)
        chosen = self.preset if isinstance(self.preset, Preset) else load_preset(self.preset)
        chip = self.chip()
        return Scheme(
            preset=chosen,
            options=Options.of(options),
            ops=chip.quantized_ops() if chip else (),
            legalization=chip.legalization if chip else None,
        )

    def begin(
        self,
        model: ir.Model,
        source: ModelOrPath,
        workers: Workers,
        *,
        precisions: Sequence[str] = (),
        progress: StageProgress | None = None,
        warn: Warn | None = None,
    ) -> tuple[Setting, Metric]:
        """Prepare and calibrate ``model`` (edited in place), which came from ``source``; run it on what is judged on before."""
        if self.data is None and (self.ranges is None or self.eval_data is None):
            raise UsageError("no data", hint="give --data: samples to calibrate and to judge on")
        metric, chip, specs = open_metric(self.metric), self.chip(), input_specs(model)
        judged_on: Any = self.data if self.eval_data is None else self.eval_data
        count = self.samples if self.eval_samples is None else self.eval_samples
        if count is None and not metric.needs_labels:
            count = sqnr_samples(model)
        judged_on = self._feeds_of(judged_on, model, source, count)
        judged = open_feeds(
            judged_on, specs, samples=count, seed=self.seed, image=self.image, extras=metric.needs_labels
        )
        feeds = None
        if self.ranges is None:
            assert self.data is not None
            given = self._feeds_of(self.data, model, source, self.samples)
            feeds = open_feeds(given, specs, samples=self.samples, seed=self.seed, image=self.image)
        setting = set_up(
            model,
            self.scheme(),
            workers,
            metric=metric,
            judged=list(itertools.islice(judged, count)),
            feeds=feeds,
            recovering=Recovering(given=self._given_statistics(), progress=progress, warn=warn),
            ranges=self._given_ranges(),
            precisions=precisions,
            prices=None if chip is None else Prices.of(chip.cost),
            allow_empty=self.allow_empty,
            cache=self.cache,
            progress=stage(progress, "calibrating", None if feeds is None else feeds.count),
            warn=warn,
        )
        pass_on([*judged.warnings, *(feeds.warnings if feeds is not None else ())], warn)
        return setting, metric

    def _feeds_of(self, data: FeedSpec, model: ir.Model, source: ModelOrPath, samples: int | None) -> FeedSpec:
        return with_texts(data, model, source, tokenizer=self.tokenizer, samples=samples)

    def _given_ranges(self) -> Ranges | None:
        return Ranges.read(self.ranges) if isinstance(self.ranges, str | os.PathLike) else self.ranges

    def _given_statistics(self) -> Statistics | None:
        return Statistics.read(self.statistics) if isinstance(self.statistics, str | os.PathLike) else self.statistics


def open_journal(
    kind: str,
    setting: Setting,
    *,
    output: str | os.PathLike[str] | None,
    resume: str | os.PathLike[str] | None,
    overwrite: bool,
) -> Journal | None:
    """The file that keeps what was measured: ``resume``, else one beside ``output``; None without either.

    Raises:
        UsageError: an interrupted run left the one beside ``output``, or ``resume`` is of something else.
    """
    if resume is not None:
        return Journal(os.fspath(resume), kind=kind, of=setting.of, resume=True)
    if output is None:
        return None
    partial = f"{os.fspath(output)}{PARTIAL}"
    if os.path.exists(partial) and not overwrite:
        hint = f"--resume {shlex.quote(partial)} goes on with it, --overwrite begins anew"
        raise UsageError("is left of a run that was interrupted or missed its bound", where=partial, hint=hint)
    return Journal(partial, kind=kind, of=setting.of, overwrite=overwrite)


def close_journal(journal: Journal | None, output: str | os.PathLike[str] | None) -> None:
    """Take the file beside ``output`` away, now that this is written; one that the user named stays."""
    if journal is not None and output is not None and journal.path == os.path.abspath(f"{os.fspath(output)}{PARTIAL}"):
        journal.remove()

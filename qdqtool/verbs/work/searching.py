"""What the verbs that measure many variants have in common: data to calibrate and to judge on, a file to go on from."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import onnx_ir as ir
from qdq_passes.errors import UsageError

from qdqtool.calibrate.ranges import Ranges
from qdqtool.calibrate.statistics import Statistics
from qdqtool.io.feeds.feeds import Feeds, FeedSpec, open_feeds
from qdqtool.io.feeds.sources import Part
from qdqtool.io.feeds.spec import input_specs
from qdqtool.io.files.journal import Journal
from qdqtool.io.files.progress import pass_on, stage
from qdqtool.io.models.working import ModelOrPath
from qdqtool.options import changed
from qdqtool.presets.loading import load_preset
from qdqtool.presets.preset import Preset
from qdqtool.quantization.calibrating import angles, sqnr_samples
from qdqtool.quantization.recovery import Recovering
from qdqtool.record.record import Record
from qdqtool.search.measuring import Setting, set_up
from qdqtool.search.metrics import Metric, open_metric
from qdqtool.search.node_groups import NodeGroup
from qdqtool.search.precision_cost import Prices
from qdqtool.search.recipe import Recipe, option_value, replayed_kinds
from qdqtool.search.variants import Measured, Point, Scheme
from qdqtool.targets.loading import load_target
from qdqtool.targets.target import Target
from qdqtool.verbs.groups import PARTIAL
from qdqtool.verbs.planned import DEFAULT_PRESET, Planned
from qdqtool.verbs.work.bounds.holding_out import again_and_again, held_out, learns
from qdqtool.verbs.work.texts import is_text, with_texts
from qdqtool.workers.cluster import Workers

if TYPE_CHECKING:
    from qdqtool.verbs.mixed_precision import MixedPrecision
    from qdqtool.verbs.sensitivity import Sensitivity


S = TypeVar("S", bound="Sensitivity | MixedPrecision")


def begin(
    asked: S, model: ir.Model, source: ModelOrPath, workers: Workers, *, precisions: Sequence[str] = ()
) -> tuple[S, Setting, Metric]:
    """Prepare and calibrate ``model`` (edited in place), which came from ``source``; run it on what is judged on before.

    ``asked`` is returned with what is held out: where weights are learned, nothing is judged on samples that they are of."""
    if asked.data is None and (asked.ranges is None or asked.eval_data is None):
        raise UsageError("no data", hint="give --data: samples to calibrate and to judge on")
    metric, chip, specs = open_metric(asked.metric), chip_of(asked), input_specs(model)
    if metric.is_lower:
        hint = "`quantize --goal` takes it"
        raise UsageError("the lower the better: not here", where=f"--metric {asked.metric}", hint=hint)
    count = asked.samples if asked.eval_samples is None else asked.eval_samples
    if count is None and not metric.needs_labels:
        count = sqnr_samples(model)

    tokenizer, seed, image = asked.tokenizer, asked.seed, asked.image

    def feeds_of(data: FeedSpec, samples: int | None, *, extras: bool = False, part: Part | None = None) -> Feeds:
        given = with_texts(data, model, source, tokenizer=tokenizer, samples=samples)
        return open_feeds(given, specs, samples=samples, seed=seed, image=image, extras=extras, part=part)

    eval_data = asked.eval_data
    if asked.data is not None:
        asked = replace(asked, data=again_and_again(asked.data))
    every, kept = asked.hold_out or 0, None
    if eval_data is None:
        assert asked.data is not None
        if every or learns(asked):
            every = held_out(asked.hold_out, feeds_of(asked.data, asked.samples))
            kept = Part(every, is_held_out=True)
        judged = feeds_of(asked.data, count if kept is None else asked.samples, extras=metric.needs_labels, part=kept)
    else:
        judged = feeds_of(eval_data, count, extras=metric.needs_labels)
    asked = replace(asked, hold_out=every)
    ranges, rest = Ranges.given(asked.ranges), Part(every, is_held_out=False) if every else None
    feeds = feeds_of(asked.data, asked.samples, part=rest) if ranges is None and asked.data is not None else None
    setting = set_up(
        model,
        scheme_of(asked, model, asked.data),
        workers,
        metric=metric,
        judged=list(itertools.islice(judged, count)),
        feeds=feeds,
        recovering=Recovering(given=Statistics.given(asked.statistics), progress=asked.progress, warn=asked.warn),
        ranges=ranges,
        precisions=precisions,
        prices=None if chip is None else Prices.of(chip.cost),
        allow_empty=asked.allow_empty,
        cache=asked.cache,
        progress=stage(asked.progress, "calibrating", None if feeds is None else feeds.count),
        warn=asked.warn,
    )
    pass_on([*judged.warnings, *(feeds.warnings if feeds is not None else ())], asked.warn)
    return asked, setting, metric


def scheme_of(asked: Planned, model: ir.Model, data: FeedSpec | None) -> Scheme:
    """What variants of ``model`` have in common, as `quantize` makes them of ``data``: a text leaves rotary angles float."""
    found = asked.settled(is_text=is_text(data)).scheme()
    if not is_text(data):
        return found
    return replace(found, options=replace(found.options, exclude=(*found.options.exclude, *angles(model))))


def chip_of(asked: Sensitivity | MixedPrecision) -> Target | None:
    """The target."""
    return load_target(asked.target) if asked.target else None


def priced_record(given: Record | str | os.PathLike[str], groups: Sequence[NodeGroup]) -> Record:
    """The record that is given, which says what nodes of ``groups`` cost.

    Raises:
        UsageError: it does not.
        ModelError: the file has no record that can be read.
    """
    found = given if isinstance(given, Record) else Record.read(given)
    where = None if isinstance(given, Record) else os.fspath(given)
    priced = {one.node for one in found.tensors if one.price} | {one.name for one in found.nodes if one.price}
    if not priced:
        raise UsageError(
            "the record has no prices", where=where, hint="`explain QUANTIZED --data D --json-out FILE` finds them"
        )
    if priced.isdisjoint(name for group in groups for name in group.nodes):
        raise UsageError(
            "the record is of another model", where=where, hint="explain the plain quantization of this one"
        )
    return found


def open_journal(
    kind: str,
    of: Mapping[str, str],
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
        return Journal(os.fspath(resume), kind=kind, of=of, resume=True)
    if output is None:
        return None
    partial = f"{os.fspath(output)}{PARTIAL}"
    if os.path.exists(partial) and not overwrite:
        hint = f"--resume {shlex.quote(partial)} goes on with it, --overwrite begins anew"
        raise UsageError("is left of a run that was interrupted or missed its goal", where=partial, hint=hint)
    return Journal(partial, kind=kind, of=of, overwrite=overwrite)


def close_journal(journal: Journal | None, output: str | os.PathLike[str] | None) -> None:
    """Take the file beside ``output`` away, now that this is written; one that the user named stays."""
    if journal is not None and output is not None and journal.path == os.path.abspath(f"{os.fspath(output)}{PARTIAL}"):
        journal.remove()


def recipe_of(
    asked: Planned, point: Point, measured: Measured, *, metric: str, bound: float, model_sha256: str
) -> Recipe:
    """What makes a variant again: what ``asked`` says, with the options and the nodes of ``point``.

    Raises:
        UsageError: a function is said, which a file cannot hold.
    """
    said = {**changed(asked), **dict(point.options)}
    if not said.get("hold_out"):  # a recipe that says nothing holds nothing out
        said.pop("hold_out", None)
    preset = said.pop("preset", None) or asked.wanted_preset() or DEFAULT_PRESET
    loaded = preset if isinstance(preset, Preset) else load_preset(preset)
    return Recipe(
        preset=loaded.name if isinstance(preset, Preset) else os.fspath(preset),
        options={name: option_value(name, value) for name, value in said.items() if name in replayed_kinds()},
        nodes=dict(point.raised), metric=metric, bound=bound, figure=measured.figure, cost=measured.cost.total,
        share_8_bit=measured.cost.share_8_bit, crossings=measured.cost.crossings, model_sha256=model_sha256,
        preset_sha256=loaded.sha256,
    )  # fmt: skip

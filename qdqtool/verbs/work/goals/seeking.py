"""`quantize --goal`: data and float figures of it, the search, and what is made of the chosen trial."""

from __future__ import annotations

import itertools
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.calibrate.fingerprint import model_sha256
from qdqtool.chips.loading import load_chip
from qdqtool.io.feeds.feeds import Feeds, FeedSpec, open_feeds
from qdqtool.io.feeds.hashes import EMPTY, add_feed
from qdqtool.io.feeds.sources import Part
from qdqtool.io.feeds.spec import input_specs
from qdqtool.io.files.artifacts import sha256_of_json
from qdqtool.io.files.atomic import write_whole
from qdqtool.io.files.journal import Journal
from qdqtool.io.files.progress import Warn, pass_on
from qdqtool.io.files.read import sha256_of_file
from qdqtool.io.models.working import opened
from qdqtool.options import changed, part_of
from qdqtool.quantization.calibrating import sqnr_samples
from qdqtool.search.goal.chance import on_others
from qdqtool.search.goal.goal import Goal
from qdqtool.search.goal.goal_page import goal_page
from qdqtool.search.goal.seeking import Seeking
from qdqtool.search.goal.standing import Fresh
from qdqtool.search.goal.trials import Trial, why_lost
from qdqtool.search.measuring import references_of
from qdqtool.search.metrics import Arrays, Metric, open_metric
from qdqtool.search.recipe import Recipe, replayed_kinds
from qdqtool.search.variants import Measured, outputs_of
from qdqtool.targets.loading import load_target
from qdqtool.verbs.groups import OnChip
from qdqtool.verbs.work.bounds.holding_out import ENOUGH, again_and_again, apart, held_out
from qdqtool.verbs.work.command_lines import command_line
from qdqtool.verbs.work.goals.folders import FolderSubject, hash_of, surprises_of_float, windows_of
from qdqtool.verbs.work.goals.graphs import GraphSubject
from qdqtool.verbs.work.quantizing import Quantized, fingerprint_of
from qdqtool.verbs.work.searching import close_journal, open_journal, recipe_of
from qdqtool.verbs.work.texts import is_folder, with_texts
from qdqtool.workers.cluster import Workers, open_workers

if TYPE_CHECKING:
    from qdqtool.verbs.goals.quantize_to_goal import QuantizeToGoal

#: Of what a journal holds of a trial: one of another form is not gone on with.
FORM = 4


@dataclass(frozen=True, kw_only=True)
class Sought:
    """What a search for a goal found.

    Args:
        goal: the goal.
        floating: figure of the float model on what was judged on; None where the goal does not ask for it.
        trials: all that was tried, in order; the plain quantization first.
        chosen: the best.
        units: what all took, in full quantizations.
        samples: number of those that trials were judged on.
        max_ms: what a run may take; None where nothing is said.
        reachable: the float model reaches it.
        capped: the data may hold more samples than were judged on, as nothing was said of their number.
        resume: the file that keeps what was tried, where the goal is not met; empty without one.
        recipe: what makes the chosen one again.
        hold_out: the samples are each so-many-th of the data; 0 where they are others.
    """

    goal: Goal
    floating: float | None
    trials: tuple[Trial, ...]
    chosen: Trial
    units: float
    samples: int
    max_ms: float | None
    reachable: bool
    capped: bool
    resume: str
    recipe: Recipe | None = None
    hold_out: int = 0

    @property
    def is_met(self) -> bool:
        """Whether the goal is met, and not by chance."""
        return self.chosen.is_met

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the figure on as many other samples of the same kind; None where it is not known."""
        return None if self.chosen.fresh is None else self.chosen.fresh.interval

    @property
    def measured(self) -> Measured:
        """What the chosen one is worth: by the samples that it was not chosen by, where there are such."""
        measured, fresh = self.chosen.measured, self.chosen.fresh
        return measured if fresh is None else replace(measured, figure=fresh.figure)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        plain, fresh = self.trials[0], self.chosen.fresh
        floating = self.floating if fresh is None else fresh.floating
        return {
            "goal": self.goal.text, "metric": self.goal.metric, "met": self.is_met, "float": floating,
            "bound": self.goal.bound(floating), "samples": self.samples, "units": self.units,
            "figure": self.measured.figure, "figure_samples": 0 if fresh is None else fresh.samples,
            "chosen": self.trials.index(self.chosen), "max_ms": self.max_ms, "reachable": self.reachable,
            "capped": self.capped, "resume": self.resume, "hold_out": self.hold_out, "interval": self.interval,
            "trials": [
                {**trial.to_json(), "lost": why_lost(trial, self.chosen, plain)}
                for trial in self.trials
            ],
        }  # fmt: skip


def sought(asked: QuantizeToGoal) -> Quantized:
    """See `qdqtool.verbs.goals.quantize_to_goal.QuantizeToGoal.run`: the chosen quantization, written where an output is named.

    Raises:
        UsageError: no data, a recipe beside the goal, or no goal that can be judged.
    """
    assert asked.goal is not None
    goal = Goal.of(asked.goal, asked.metric)
    _refuse(asked)
    metric = open_metric(goal.metric)
    with open_workers(asked.jobs, asked.cluster, warn=asked.warn) as workers, ExitStack() as ended:
        subject = _folder(asked, goal, metric) if is_folder(asked.model) else _graph(asked, goal, metric, workers)
        ended.callback(subject.close)
        floating = metric.measure(subject.references, subject.feeds, subject.references)
        figure = floating if goal.is_relative else None
        if figure == 0 and not goal.is_lower:
            hint = "do the labels, and the boxes of a detector, fit what it gives? docs/goal.md has the forms"
            raise UsageError(
                f"the float model's {goal.metric} is 0: nothing of it can be lost", where="--goal", hint=hint
            )
        most = math.inf if asked.max_ms is None else asked.max_ms
        samples, reachable = len(subject.feeds), goal.margin(floating, floating) >= 0
        if not reachable:
            above = f"the float model does not reach {goal.text} itself ({floating:.6g}): more bits are not tried"
            pass_on([above], asked.warn)
        seeking = Seeking(
            subject, budget=asked.budget, most_ms=most, progress=asked.progress, samples=samples, reachable=reachable
        )
        _run(seeking, subject.journal, asked.warn)
        done = _finished(subject, seeking)
    chosen, journal = seeking.best, subject.journal
    found = Sought(
        goal=goal, floating=figure, trials=tuple(seeking.trials), chosen=chosen, units=seeking.units,
        samples=samples, max_ms=asked.max_ms, hold_out=subject.asked.hold_out or 0,
        reachable=reachable, capped=asked.eval_samples is None and not metric.needs_labels and not is_folder(asked.model),
        resume="" if journal is None or chosen.is_met else journal.path,
    )  # fmt: skip
    recipe = recipe_of(
        subject.asked, chosen.candidate.point, found.measured, metric=goal.metric, bound=goal.bound(figure),
        model_sha256=subject.fingerprint,
    )  # fmt: skip
    recipe = replace(recipe, ranges_sha256=done.quantization.ranges.sha256)
    found = replace(found, recipe=recipe)
    if asked.save_recipe is not None and chosen.is_met:
        recipe.write(asked.save_recipe, overwrite=asked.overwrite)
    if asked.page is not None:
        name = "model" if isinstance(asked.model, ir.Model) else os.path.basename(os.path.normpath(asked.model))
        command = command_line("quantize", replace(subject.quantizing(chosen.candidate.point), output=asked.output))
        page = goal_page(found.to_json(), name, [command])
        write_whole(asked.page, page.encode(), overwrite=asked.overwrite)
    if chosen.is_met:
        close_journal(journal, asked.output)
    return replace(done, sought=found, missed=())  # the goal says what is required


def _run(seeking: Seeking, journal: Journal | None, warn: Warn | None) -> None:
    """Search; whoever interrupts is told of the best so far."""
    try:
        seeking.run()
    except KeyboardInterrupt:
        if seeking.trials and journal is not None:
            best, kept = seeking.best.candidate.text, shlex.quote(journal.path)
            pass_on([f"the best so far, which does not meet the goal: {best}; --resume {kept} goes on"], warn)
        raise
    if seeking.stopped:
        pass_on([f"{seeking.stopped}: the best so far, which meets the goal, is written"], warn)


def _finished(subject: GraphSubject | FolderSubject, seeking: Seeking) -> Quantized:
    """The best trial made once more, and written where it meets the goal.

    It is what was judged: where it is not, bit for bit, it is judged again. The next best is made where it falls short then, or
    on the samples that it was not chosen by."""
    while True:
        best = seeking.best
        point, done = best.candidate.point, None
        seeking.units += subject.writing(point)
        if isinstance(subject, FolderSubject):
            again = subject.again(best)
        else:
            done, measured = subject.again(point, best.measured, is_met=best.is_met)
            again = replace(best, measured=measured, fresh=_fresh(subject, done.model))
        seeking.trials[seeking.trials.index(best)] = again
        if seeking.best.candidate == best.candidate:
            if isinstance(subject, FolderSubject):
                return subject.finished(point, is_met=again.is_met)
            assert done is not None
            if again.is_met:
                subject.write(point, done)
            return done


def _fresh(subject: GraphSubject, model: ir.Model) -> Fresh | None:
    """How ``model`` stands on the samples that it was not chosen by; None where there are none."""
    others = subject.test_feeds
    if not others:
        return None
    references = references_of(subject.model, others)
    return on_others(subject.goal, subject.metric, outputs_of(model, others), others, references)


def _graph(asked: QuantizeToGoal, goal: Goal, metric: Metric, workers: Workers) -> GraphSubject:
    """The model that is quantized, with its data and what the float model makes of them."""
    work, _ = opened(asked.model)
    assert asked.data is not None
    data = again_and_again(asked.data)
    eval_data = None if asked.eval_data is None else again_and_again(asked.eval_data)
    asked = replace(asked, data=data, eval_data=eval_data)
    feeds = _feeds(asked, data, work, asked.samples)
    every = held_out(asked.hold_out, feeds, 2 * ENOUGH) if asked.eval_data is None else asked.hold_out or 0
    asked = replace(asked, hold_out=every)
    judged, others = _judged(asked, work, metric)
    if every:
        feeds = _feeds(asked, data, work, asked.samples, part=Part(every, is_held_out=False))
    calibration, count = EMPTY, 0
    for feed in feeds:
        calibration, count = add_feed(calibration, feed), count + 1
    return GraphSubject(
        asked=asked, goal=goal, metric=metric, model=work, feeds=judged, references=references_of(work, judged),
        test_feeds=others, calibrated=count, calibration=feeds, workers=workers,
        journal=_journal(asked, model_sha256(work), calibration, judged, goal),
    )  # fmt: skip


def _folder(asked: QuantizeToGoal, goal: Goal, metric: Metric) -> FolderSubject:
    """The folder that is quantized, with the windows of its text."""
    judged, others = windows_of(asked, metric)
    data = asked.data
    assert data is not None
    assert isinstance(asked.model, str | os.PathLike)
    if isinstance(data, Mapping):
        calibration = add_feed(EMPTY, data)
    elif isinstance(data, str | os.PathLike) and os.path.isfile(data):
        calibration = sha256_of_file(data)
    else:
        calibration = str(data)  # random:N, which says it all
    return FolderSubject(
        asked=asked, goal=goal, metric=metric, feeds=judged, references=surprises_of_float(asked.model, judged),
        test_feeds=others,
        journal=_journal(asked, fingerprint_of(asked.model), calibration, judged, goal),
    )  # fmt: skip


def _refuse(asked: QuantizeToGoal) -> None:
    if asked.recipe is not None:
        raise UsageError("--goal searches, --recipe says what was found", hint="leave one of them out")
    if asked.data is None:
        raise UsageError("--goal calibrates", hint="give --data, and --eval-data to judge on other samples")
    if asked.eval_data is not None and _is_same(asked.data, asked.eval_data):
        raise UsageError("--eval-data are --data", hint="leave --eval-data out: a part of --data is held out then")
    if asked.ranges is not None or asked.statistics is not None:
        raise UsageError("--goal calibrates in several ways", hint="leave --ranges and --statistics out")
    if asked.max_ms is not None and not asked.is_on_chip:
        raise UsageError("--max-ms is of a chip", hint="give --chip NAME (qdqtool list chips)")
    if is_folder(asked.model) and asked.is_on_chip:
        raise UsageError("--chip tells the time of one graph", hint="`qdqtool plan` tells that of a folder")


def _is_same(data: FeedSpec, eval_data: FeedSpec) -> bool:
    """Whether both are one file, one folder, or one object."""
    if isinstance(data, str | os.PathLike) and isinstance(eval_data, str | os.PathLike):
        return os.path.abspath(data) == os.path.abspath(eval_data)
    return data is eval_data


def _feeds(
    asked: QuantizeToGoal,
    data: FeedSpec,
    model: ir.Model,
    samples: int | None,
    *,
    extras: bool = False,
    part: Part | None = None,
) -> Feeds:
    given = with_texts(data, model, asked.model, tokenizer=asked.tokenizer, samples=samples)
    return open_feeds(
        given, input_specs(model), samples=samples, seed=asked.seed, image=asked.image, extras=extras, part=part
    )


def _judged(asked: QuantizeToGoal, model: ir.Model, metric: Metric) -> tuple[list[Arrays], list[Arrays]]:
    """The samples that every trial is judged on, and those that the figure of the chosen one is of."""
    data, count = asked.eval_data, asked.eval_samples
    if count is None and not metric.needs_labels:
        count = sqnr_samples(model)
    most = None if count is None else 2 * count
    if data is not None:
        feeds = _feeds(asked, data, model, most, extras=metric.needs_labels)
    else:
        assert asked.data is not None
        assert asked.hold_out is not None
        part = Part(asked.hold_out, is_held_out=True)
        feeds = _feeds(asked, asked.data, model, asked.samples, extras=metric.needs_labels, part=part)
    found: list[Arrays] = list(itertools.islice(feeds, most))
    pass_on(feeds.warnings, asked.warn)
    return apart(found, count)


def _journal(
    asked: QuantizeToGoal, model: str, calibration: str, judged: Sequence[Arrays], goal: Goal
) -> Journal | None:
    said: Mapping[str, Any] = {name: str(value) for name, value in changed(asked).items() if name in replayed_kinds()}
    options = {**said, "preset": asked.loaded_preset().sha256, "goal": goal.text, "metric": goal.metric, "form": FORM}
    if asked.target is not None:
        options["target"] = load_target(asked.target).sha256
    if asked.chip is not None:
        options["chip"] = f"{part_of(OnChip, asked)} {load_chip(asked.chip)}"
    of = {
        "model": model,
        "goal, metric, preset, target, chip or options": sha256_of_json(options),
        "calibration": calibration,
        "data": hash_of(judged),
    }
    return open_journal("goal", of, output=asked.output, resume=asked.resume, overwrite=asked.overwrite)

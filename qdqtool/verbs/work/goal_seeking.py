"""How `quantize --goal` searches: the plain quantization, single mends of its dearest causes, what of these goes together, then
nodes out of 8 bit, the dearest first; every trial a whole quantization, judged on all samples and by the target.

Nothing depends on time: a trial counts in model runs, one unit being what the plain quantization took."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
from qdq_passes.errors import QdqError, UsageError
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.select.globs import literal

from qdqtool.calibrate.fingerprint import model_sha256
from qdqtool.comparison.prices.pricing import priced
from qdqtool.comparison.prices.subjects import record_of, subjects_of
from qdqtool.comparison.sides import Sides
from qdqtool.io.feeds.feeds import Feeds, FeedSpec, open_feeds
from qdqtool.io.feeds.hashes import EMPTY, add_feed
from qdqtool.io.feeds.spec import input_specs
from qdqtool.io.files.artifacts import sha256_of_json
from qdqtool.io.files.journal import Journal
from qdqtool.io.files.progress import pass_on
from qdqtool.io.models.working import opened
from qdqtool.options import changed
from qdqtool.presets.preset import Preset
from qdqtool.quantization.calibrating import sqnr_samples
from qdqtool.search.goal.chance import standing
from qdqtool.search.goal.goal import Goal
from qdqtool.search.goal.proposals import dearest_nodes, proposals
from qdqtool.search.goal.trials import Candidate, Trial, best_of, why_lost
from qdqtool.search.metrics import Arrays, Metric, open_metric
from qdqtool.search.precision_cost import Prices, cost_of
from qdqtool.search.recipe import Recipe, replayed_kinds
from qdqtool.search.variants import outputs_of
from qdqtool.targets.loading import load_target
from qdqtool.verbs.groups import PARTIAL
from qdqtool.verbs.planned import DEFAULT_PRESET
from qdqtool.verbs.quantize import Quantize
from qdqtool.verbs.work.quantizing import Quantized, quantized
from qdqtool.verbs.work.texts import with_texts

if TYPE_CHECKING:
    from qdqtool.record.record import Record
    from qdqtool.verbs.goals.quantize_to_goal import QuantizeToGoal

#: Samples that causes are priced on.
PRICED = 8
#: What nodes are raised to, the cheapest first.
RAISED = ("int16", "float")


@dataclass(frozen=True, kw_only=True)
class Sought:
    """What a search for a goal found.

    Args:
        goal: the goal.
        floating: figure of the float model; None where the goal does not ask for it.
        trials: all that was tried, in order; the plain quantization first.
        chosen: the best.
        units: what all took, in full quantizations.
        samples: that were judged on.
        recipe: what makes the chosen one again.
    """

    goal: Goal
    floating: float | None
    trials: tuple[Trial, ...]
    chosen: Trial
    units: float
    samples: int
    recipe: Recipe

    @property
    def is_met(self) -> bool:
        """Whether the goal is met, and not by chance."""
        return self.chosen.is_met

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        plain = self.trials[0]
        return {
            "goal": self.goal.text, "metric": self.goal.metric, "met": self.is_met, "float": self.floating,
            "bound": self.goal.bound(self.floating), "samples": self.samples, "units": self.units,
            "chosen": self.trials.index(self.chosen),
            "trials": [
                {**trial.to_json(), "text": trial.candidate.text, "lost": why_lost(trial, self.chosen, plain)}
                for trial in self.trials
            ],
        }  # fmt: skip


@dataclass
class _Seeking:
    """One search."""

    asked: QuantizeToGoal
    goal: Goal
    metric: Metric
    feeds: Sequence[Arrays]
    references: Sequence[Arrays]
    calibrated: int
    journal: Journal | None
    trials: list[Trial] = field(default_factory=list)
    units: float = 0.0
    kept: dict[str, Quantized] = field(default_factory=dict)  # by key: of the plain and of the best trial

    def run(self) -> Trial:
        """Search; the best."""
        plain = self._try(Candidate(options={}, nodes={}, why="as it is said"))
        assert plain is not None
        if plain.reason:
            raise UsageError(f"the plain quantization cannot be made: {plain.reason}")
        if plain.is_met or not self._affords(self._pricing):
            return plain
        done = self.made(plain)
        record = self._record(done)
        causes = proposals(record, done.quantization.plan, changed(self.asked))
        singles = [trial for each in causes if (trial := self._try(each)) is not None]
        self._together(plain, singles)
        best = best_of(self.trials, plain)
        if not best.is_met:
            self._raised(best, plain, dearest_nodes(record))
        return best_of(self.trials, plain)

    def _together(self, plain: Trial, singles: Sequence[Trial]) -> None:
        """Add to the best mend the next ones, each kept where it brings more."""
        better = sorted(
            (one for one in singles if one.margin > plain.margin and one.unwanted <= plain.unwanted),
            key=lambda one: -one.margin,
        )
        best = better[0] if better else plain
        for other in better[1:]:
            if any(trial.is_met for trial in self.trials):
                return
            if any(name in best.candidate.options for name in other.candidate.options):
                continue
            made = Candidate(
                options={**best.candidate.options, **other.candidate.options}, nodes={},
                why=f"{best.candidate.text} with {other.candidate.text}",
            )  # fmt: skip
            trial = self._try(made)
            if trial is not None and trial.margin > best.margin and trial.unwanted <= plain.unwanted:
                best = trial

    def _raised(self, best: Trial, plain: Trial, dear: Sequence[str]) -> None:
        """Raise the dearest nodes of the best, twice as many each time, until the goal is met; then lower what need not be.

        Behind those that are dear in the best come those that were ``dear`` in the plain quantization: mends that change weights
        between layers may leave noise that no single node answers for.
        """
        own = dearest_nodes(self._record(self.made(best))) if self._affords(self._pricing) else []
        names = list(dict.fromkeys([*own, *dear]))
        for precision in RAISED:
            count = 1
            while True:
                chosen = tuple(names[:count])
                made = replace(best.candidate, nodes={precision: chosen}, why=f"{_dearest(len(chosen))} in {precision}")
                trial = self._try(made)
                if trial is None:
                    return
                if trial.is_met and trial.unwanted <= plain.unwanted:
                    self._lowered(trial, precision, plain)
                    return
                if trial.unwanted > plain.unwanted or count >= len(names):
                    break
                count *= 2

    def _lowered(self, met: Trial, precision: str, plain: Trial) -> None:
        """Lower single nodes again, the cheapest first."""
        best = met
        for name in reversed(met.candidate.nodes[precision]):
            rest = tuple(one for one in best.candidate.nodes[precision] if one != name)
            if not rest:
                return
            trial = self._try(replace(best.candidate, nodes={precision: rest}, why=f"without {name}"))
            if trial is None:
                return
            if trial.is_met and trial.unwanted <= plain.unwanted:
                best = trial

    def made(self, trial: Trial) -> Quantized:
        """The quantization of a trial; made again where it was tried by a run that was killed."""
        key = trial.candidate.key
        if key not in self.kept:
            self.kept[key] = quantized(self.options(trial.candidate), compares=False)
        return self.kept[key]

    def options(self, candidate: Candidate) -> Quantize:
        """What is asked for, with what ``candidate`` says besides."""
        raised: dict[str, Any] = {
            p: (*getattr(self.asked, p), *map(literal, names)) for p, names in candidate.nodes.items()
        }
        own = {each.name: getattr(self.asked, each.name) for each in fields(Quantize)}
        own |= {"output": None, "report": None, "save_statistics": None, "warn": None, "progress": None}
        return Quantize(**{**own, **candidate.options, **raised})

    def _try(self, candidate: Candidate) -> Trial | None:
        """Quantize and judge; None where that was tried, or where nothing is left of the budget."""
        if any(trial.candidate.key == candidate.key for trial in self.trials):
            return None
        units = self.units_of(candidate)
        if self.trials and not self._affords(units, candidate):
            return None
        known = self.journal.results.get(candidate.key) if self.journal is not None else None
        trial = self._measured(candidate, units) if known is None else Trial.from_json(known)
        if known is None and self.journal is not None:
            self.journal.add(candidate.key, trial.to_json())
        self.units += trial.units
        self.trials.append(trial)
        needed = {one.candidate.key for one in (self.trials[0], best_of(self.trials, self.trials[0]))}
        self.kept = {key: done for key, done in self.kept.items() if key in needed}
        if self.asked.progress is not None:
            best = best_of(self.trials, self.trials[0])
            self.asked.progress(f"searching, best {best.candidate.text}", round(self.units), self.asked.budget)
        return trial

    def _affords(self, units: float, candidate: Candidate | None = None) -> bool:
        """Whether so much more fits, and behind it once more any of the trials: the chosen one is made again to be written."""
        tried = [trial.candidate for trial in self.trials] + ([candidate] if candidate is not None else [])
        return self.units + units + max(map(self.units_of, tried)) <= self.asked.budget

    def units_of(self, candidate: Candidate) -> float:
        """Model runs over those of the plain quantization: calibration, moments of the layers' inputs, and the judged samples."""
        judged = len(self.feeds)
        more = sum(bool(candidate.options.get(name)) for name in ("round_weights", "correct_bias", "smooth")) > 0
        return (self.calibrated * (2 if more else 1) + judged) / (self.calibrated + judged)

    def _measured(self, candidate: Candidate, units: float) -> Trial:
        try:
            done = quantized(self.options(candidate), compares=False)
        except QdqError as error:
            return Trial(candidate=candidate, standing=None, cost=None, refused=0, units=units, reason=str(error))
        self.kept[candidate.key] = done
        found = standing(self.goal, self.metric, outputs_of(done.model, self.feeds), self.feeds, self.references)
        prices = Prices() if self.asked.target is None else Prices.of(load_target(self.asked.target).cost)
        refused = 0 if done.placed is None else done.placed.compute_nodes - done.placed.npu_compute_nodes
        return Trial(
            candidate=candidate, standing=found, cost=cost_of(done.model, prices), refused=refused, units=units
        )

    @property
    def _pricing(self) -> float:
        """What pricing takes: both models, on a few samples."""
        return 2 * len(self.feeds[:PRICED]) / (self.calibrated + len(self.feeds))

    def _record(self, done: Quantized) -> Record:
        """Prices of a quantization by cause."""
        source = opened(self.asked.model)[0]
        sides = Sides.of(source, done.model, done.quantization.ranges)
        specs = input_specs(source)
        names = {spec.name for spec in specs}
        few = [{name: array for name, array in feed.items() if name in names} for feed in self.feeds[:PRICED]]
        prices = priced(sides, open_feeds(few, specs), threads=1)
        self.units += self._pricing
        return record_of(sides, prices, subjects_of(sides, prices), "", {})


def sought(asked: QuantizeToGoal) -> Quantized:
    """See `qdqtool.verbs.goals.quantize_to_goal.QuantizeToGoal.run`: the chosen quantization, written where an output is named.

    Raises:
        UsageError: no data, a recipe beside the goal, or no goal that can be judged.
    """
    assert asked.goal is not None
    goal = Goal.of(asked.goal, asked.metric)
    _refuse(asked)
    work, _ = opened(asked.model)
    fingerprint = model_sha256(work)
    metric = open_metric(goal.metric)
    judged = _judged(asked, work, metric)
    floating = run_pipeline(work, "give-names", copy=True).model
    references = outputs_of(floating, judged)
    figure = metric.measure(references, judged, references) if goal.is_relative else None
    assert asked.data is not None
    calibration, count = EMPTY, 0
    for feed in _feeds(asked, asked.data, work, asked.samples):
        calibration, count = add_feed(calibration, feed), count + 1
    journal = _journal(asked, fingerprint, calibration, judged, goal)
    seeking = _Seeking(
        asked=asked, goal=goal, metric=metric, feeds=judged, references=references, calibrated=count, journal=journal
    )
    chosen = seeking.run()
    preset = asked.wanted_preset() or DEFAULT_PRESET
    said = {**changed(asked), **chosen.candidate.options}
    assert chosen.cost is not None
    recipe = Recipe(
        preset=preset.name if isinstance(preset, Preset) else os.fspath(preset),
        options={name: value for name, value in said.items() if name in replayed_kinds()},
        nodes=dict(chosen.candidate.nodes), metric=goal.metric, bound=goal.bound(figure),
        figure=None if chosen.standing is None else chosen.standing.figure, cost=chosen.cost.total,
        share_8_bit=chosen.cost.share_8_bit, crossings=chosen.cost.crossings, model_sha256=fingerprint,
        preset_sha256=asked.loaded_preset().sha256,
    )  # fmt: skip
    if chosen.is_met:
        final = replace(seeking.options(chosen.candidate), warn=asked.warn, progress=asked.progress)
        done = quantized(
            replace(final, output=asked.output, report=asked.report, save_statistics=asked.save_statistics)
        )
        seeking.units += seeking.units_of(chosen.candidate)
    else:
        done = seeking.made(chosen)
    recipe = replace(recipe, ranges_sha256=done.quantization.ranges.sha256)
    if asked.save_recipe is not None and chosen.is_met:
        recipe.write(asked.save_recipe, overwrite=asked.overwrite)
    found = Sought(
        goal=goal, floating=figure, trials=tuple(seeking.trials), chosen=chosen, units=seeking.units, samples=len(judged),
        recipe=recipe,
    )  # fmt: skip
    if journal is not None and asked.resume is None and chosen.is_met:
        journal.remove()
    return replace(done, sought=found)


def _refuse(asked: QuantizeToGoal) -> None:
    if asked.recipe is not None:
        raise UsageError("--goal searches, --recipe says what was found", hint="leave one of them out")
    if asked.data is None:
        raise UsageError("--goal calibrates", hint="give --data, and --eval-data to judge on other samples")
    if asked.ranges is not None or asked.statistics is not None:
        raise UsageError("--goal calibrates in several ways", hint="leave --ranges and --statistics out")
    if isinstance(asked.model, str | os.PathLike) and os.path.isdir(asked.model):
        raise UsageError("--goal is of one model, not of a folder of graphs", where=os.fspath(asked.model))


def _feeds(
    asked: QuantizeToGoal, data: FeedSpec, model: ir.Model, samples: int | None, *, extras: bool = False
) -> Feeds:
    given = with_texts(data, model, asked.model, tokenizer=asked.tokenizer, samples=samples)
    return open_feeds(given, input_specs(model), samples=samples, seed=asked.seed, image=asked.image, extras=extras)


def _judged(asked: QuantizeToGoal, model: ir.Model, metric: Metric) -> list[Arrays]:
    """The samples that every trial is judged on."""
    data = asked.eval_data if asked.eval_data is not None else asked.data
    assert data is not None
    count = asked.eval_samples
    if count is None and not metric.needs_labels:
        count = sqnr_samples(model)
    feeds = _feeds(asked, data, model, count, extras=metric.needs_labels)
    found: list[Arrays] = list(itertools.islice(feeds, count))
    pass_on(feeds.warnings, asked.warn)
    return found


def _journal(
    asked: QuantizeToGoal, model: str, calibration: str, judged: Sequence[Arrays], goal: Goal
) -> Journal | None:
    data = EMPTY
    for feed in judged:
        data = add_feed(data, feed)
    said: Mapping[str, Any] = {name: str(value) for name, value in changed(asked).items() if name in replayed_kinds()}
    options = {**said, "preset": asked.loaded_preset().sha256, "goal": goal.text}
    of = {"model": model, "goal, preset or options": sha256_of_json(options), "calibration": calibration, "data": data}
    if asked.resume is not None:
        return Journal(os.fspath(asked.resume), kind="goal", of=of, resume=True)
    if asked.output is None:
        return None
    partial = f"{os.fspath(asked.output)}{PARTIAL}"
    if os.path.exists(partial) and not asked.overwrite:
        hint = f"--resume {shlex.quote(partial)} goes on with it, --overwrite begins anew"
        raise UsageError("is left of a run that was interrupted or missed its goal", where=partial, hint=hint)
    return Journal(partial, kind="goal", of=of, overwrite=asked.overwrite)


def _dearest(count: int) -> str:
    return "the dearest node" if count == 1 else f"the {count} dearest nodes"

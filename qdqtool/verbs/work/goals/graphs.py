"""One model on the way to a goal: what its candidates are, what they are worth, and what they take.

A candidate whose options change what is calibrated is prepared and calibrated by itself; ranges and statistics that options leave
as they are serve all of these, and are paid once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from typing import TYPE_CHECKING

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import QdqError, UsageError
from qdq_passes.graph.edit import copy_model
from qdq_passes.graph.uses import all_nodes
from qdq_passes.select.globs import literal

from qdqtool.calibrate.fingerprint import model_sha256
from qdqtool.calibrate.observer import counts, observers
from qdqtool.calibrate.ranges import Ranges
from qdqtool.calibrate.statistics import Statistics
from qdqtool.comparison.prices.pricing import priced
from qdqtool.comparison.prices.subjects import record_of, subjects_of
from qdqtool.comparison.sides import Sides
from qdqtool.io.feeds.feeds import Feeds, open_feeds
from qdqtool.io.feeds.spec import input_specs
from qdqtool.io.files.journal import Journal
from qdqtool.io.files.progress import stage
from qdqtool.options import changed, part_of
from qdqtool.quantization.calibrating import sqnr_samples
from qdqtool.quantization.eight_bit_weights import has_narrow_weights
from qdqtool.quantization.plan import Plan
from qdqtool.quantization.recovery import STATISTICS, Recovering, learning_runs, wanted_behind
from qdqtool.record.record import Record
from qdqtool.search.allowed_precisions import allowed_precisions
from qdqtool.search.goal.goal import Goal
from qdqtool.search.goal.proposals import dearest_sets, proposals
from qdqtool.search.goal.subject import Raise
from qdqtool.search.goal.trials import Candidate
from qdqtool.search.measuring import Measurements, Setting, set_up
from qdqtool.search.metrics import Arrays, Metric
from qdqtool.search.node_groups import node_groups, tails, weight_sizes
from qdqtool.search.precision_cost import Prices
from qdqtool.search.variants import FAILED, NARROW, Baseline, Measured, Point
from qdqtool.targets.loading import load_target
from qdqtool.targets.target import Target
from qdqtool.verbs.groups import OnChip
from qdqtool.verbs.quantize import Quantize
from qdqtool.verbs.work.goals.folder_causes import PRICED
from qdqtool.verbs.work.goals.judging import GoalBaseline, judged, made, weighed
from qdqtool.verbs.work.goals.presets import other_presets
from qdqtool.verbs.work.quantizing import Quantized, write
from qdqtool.verbs.work.quantizing import made as quantized_once
from qdqtool.verbs.work.searching import scheme_of
from qdqtool.verbs.work.texts import is_text
from qdqtool.workers.cluster import Workers

if TYPE_CHECKING:
    from qdqtool.verbs.goals.quantize_to_goal import QuantizeToGoal

#: What nodes are raised to, the cheapest first.
RAISED = ("int16", "fp16", "float")
#: Options that act behind calibration: the ranges are the same with them, and without.
LATE = frozenset({"round_weights", "correct_bias", "learn_rounding", "search_scales", "tune_weights"})
#: Options that say how ranges are found of what is observed.
METHOD = frozenset({"method", "method_options"})
#: Statistics that have those of one kind among them.
STATISTICS_WITH = {
    "moments": ("moments",),
    "means": ("means", "moments"),
    "magnitudes": ("magnitudes", "means", "moments"),
}
#: How often what a target takes no more beside raised nodes is raised with them.
ROUNDS = 4
#: How many prepared models are kept.
KEPT = 16


@dataclass
class GraphSubject:
    """One model.

    Args:
        asked: the command.
        goal: what is to be reached.
        metric: what judges.
        model: the float model.
        feeds: samples to judge on.
        references: outputs of the float model for them.
        test_feeds: samples that the figure of the chosen one is of.
        calibrated: number of samples that are calibrated on.
        calibration: opens them.
        workers: who works.
        journal: keeps what was measured.
    """

    asked: QuantizeToGoal
    goal: Goal
    metric: Metric
    model: ir.Model
    feeds: Sequence[Arrays]
    references: Sequence[Arrays]
    test_feeds: Sequence[Arrays]
    calibrated: int
    calibration: Feeds
    workers: Workers
    journal: Journal | None
    _kept: dict[Point, tuple[Setting, GoalBaseline]] = field(default_factory=dict)
    _ranges: dict[Point, Ranges] = field(default_factory=dict)
    _statistics: dict[tuple[str, Point], Statistics] = field(default_factory=dict)
    _paid: set[tuple[str, Point]] = field(default_factory=set)
    _records: dict[Point, Record] = field(default_factory=dict)
    _plans: dict[Point, Plan] = field(default_factory=dict)
    _alive: list[Recovering] = field(default_factory=list)  # what they keep in files lasts as long as they do

    def __post_init__(self) -> None:
        self.measurements = Measurements(
            baseline=self.baseline, workers=self.workers, journal=self.journal, judge=judged
        )
        self.target: Target | None = None if self.asked.target is None else load_target(self.asked.target)

    def quantizing(self, point: Point) -> Quantize:
        """The command that makes a candidate, without what is written where and who is told."""
        own = {each.name: getattr(self.asked, each.name) for each in fields(Quantize)}
        own |= {"output": None, "report": None, "save_statistics": None, "warn": None, "progress": None}
        own |= {"keep_sigmoid": bool(self.asked.keep_sigmoid)}  # a candidate of its own, judged by the goal
        said = {p: (*getattr(self.asked, p), *map(literal, names)) for p, names in point.raised}
        return Quantize(**{**own, **dict(point.options), **said})

    def close(self) -> None:
        """Give back what statistics lie in."""
        for each in self._alive:
            each.close()

    @property
    def fingerprint(self) -> str:
        """Hex SHA-256 of what the float model computes."""
        return model_sha256(self.model)

    def again(self, point: Point, measured: Measured, *, is_met: bool) -> tuple[Quantized, Measured]:
        """A candidate made as `quantize` makes it, before it is written; and what it is worth, which was ``measured``. Of what is
        not written nobody is warned."""
        done = quantized_once(self._final(point) if is_met else self.quantizing(point))
        placing = measured.placing
        is_same = placing is None or model_sha256(done.model) == placing.sha256
        return done, measured if is_same else weighed(self.baseline(point), done.model, done.placed)

    def write(self, point: Point, done: Quantized) -> None:
        """Write what `again` made."""
        write(self._final(point), done)
        if self.asked.save_statistics is not None and done.quantization.statistics is not None:
            done.quantization.statistics.write(self.asked.save_statistics)

    def _final(self, point: Point) -> Quantize:
        asked = self.asked
        made = replace(self.quantizing(point), output=asked.output, report=asked.report, min_sqnr=-math.inf)
        return replace(made, warn=asked.warn, progress=asked.progress)

    def measure(self, points: Sequence[Point]) -> list[Measured]:
        """See `Subject.measure`: what cannot be planned or calibrated loses; of the plain quantization that is an error."""
        known = self.measurements.known
        unfit = {point: reason for point in points if point.key not in known and (reason := self._why_not(point))}
        fit = [point for point in points if point not in unfit]
        found = dict(zip(fit, self.measurements.of(fit), strict=True))
        failed = {point: Measured(figure=None, cost=FAILED, reason=reason) for point, reason in unfit.items()}
        return [(found | failed)[point] for point in points]

    def _why_not(self, point: Point) -> str:
        """Why a candidate cannot be prepared and calibrated; empty where it can, and of the plain one, which has to be."""
        if point == Point():
            return ""
        try:
            self.baseline(point)
        except QdqError as error:
            return str(error)
        return ""

    def whole(self, point: Point) -> Measured:
        """See `Subject.whole`."""
        return judged(replace(self.baseline(point), is_whole=True), point)

    def whole_units(self) -> float:
        """See `Subject.whole_units`."""
        return len(self.feeds) / self._plain

    def units(self, point: Point) -> float:
        """See `Subject.units`; nothing of what cannot be planned."""
        if self._plan(point) is None:
            return 0.0
        due = self._due(self._parts(point))
        return (due + self._learning(point) + len(self.feeds)) / self._plain

    def pay(self, point: Point, measured: Measured) -> float:
        """See `Subject.pay`: of a candidate that the first samples have refuted, no more were run."""
        if self._plan(point) is None:
            return 0.0
        parts = self._parts(point)
        due = self._due(parts)
        self._paid |= set(parts)
        judged = 0 if measured.standing is None else measured.standing.samples
        return (due + self._learning(point) + judged) / self._plain

    def writing(self, point: Point) -> float:
        """See `Subject.writing`: with the comparison that the summary shows, and the figure on the other samples."""
        if self._plan(point) is None:
            return 0.0
        compared = 2 * min(sqnr_samples(self.model), self.calibrated) + len(self.test_feeds)
        return (sum(self._parts(point).values()) + self._learning(point) + compared) / self._plain

    def pay_for_causes(self, point: Point) -> float:
        """See `Subject.pay_for_causes`: both models, on a few samples."""
        return 0.0 if point in self._records else 2 * len(self.feeds[:PRICED]) / self._plain

    def mends(self, point: Point) -> Iterable[Candidate]:
        """See `Subject.mends`; a decoder may be rotated."""
        plan = self.plan(point)
        found = proposals(
            self.record(point),
            plan,
            changed(self.asked),
            ops={node.op_type for node in all_nodes(self._set(point)[0].model)},
            is_spare=has_narrow_weights(plan.preset),
        )
        said = "rotate" in changed(self.asked) or plan.preset.recovery.rotate is not None
        may_turn = is_text(self.asked.data) and not said
        return [*found, Candidate.of("a decoder", {"rotate": True})] if may_turn else found

    def others(self) -> Iterable[Candidate]:
        """See `Subject.others`: presets of 8-bit activations that say no less."""
        return other_presets(self.asked, self.plan(Point()), bits=8, poorer=False)

    def last(self, *, wider: bool) -> Iterable[Candidate]:
        """See `Subject.last`: presets of 16-bit activations, and those in 8 bit that say less."""
        plain = self.plan(Point())
        more = other_presets(self.asked, plain, bits=16) if wider else ()
        return [*more, *other_presets(self.asked, plain, bits=8, poorer=True)]

    def raises(self, best: Point) -> Iterator[Raise]:
        """See `Subject.raises`; sets that multiply nothing, behind the last layers, are raised as one."""
        for precision in (*(NARROW if has_narrow_weights(self.plan(best).preset) else ()), *RAISED):
            if precision == "fp16" and self.target is None:
                continue
            try:
                setting, baseline = self._set(replace(best, raised=((precision, ()),)))
            except UsageError:  # the preset has no nodes of that precision: weights alone are not raised to int16
                continue
            groups = node_groups(setting.model, setting.plan, follow=True)
            allowed = allowed_precisions(baseline, groups, (precision,), self.target)
            taken = [group for group in groups if allowed.takes(group, precision)]
            is_narrow = precision in NARROW
            more, per = ((), weight_sizes(setting.model)) if is_narrow else (tails(setting.model, taken), None)
            found: dict[tuple[str, ...], None] = {}
            known = (point for point in (best, Point()) if point == best or point in self._records)
            for (
                point
            ) in known:  # mends may leave noise that no single node answers for, and the plain one then says more
                found |= dict.fromkeys(dearest_sets(self.record(point), taken, more, per=per))
            yield Raise(precision=precision, sets=tuple(found))

    def along(self, point: Point, refused: Iterable[str]) -> Point:
        """See `Subject.along`: the groups of those nodes, and of those behind them, until the target takes all; ``point`` where
        nothing would be left of a quantization. Verdicts do not hang on how weights are rounded, which takes model runs."""
        ((precision, names),) = point.raised
        if self.target is None or precision in NARROW:
            return point
        raised, light = set(names), replace(_without(point, LATE), raised=point.raised)
        setting, baseline = self._set(light)
        groups = [set(group.nodes) for group in node_groups(setting.model, setting.plan, follow=True)]
        for _ in range(ROUNDS):
            try:
                _, placed = made(baseline, light)
            except QdqError:  # `measure` says why
                return point
            beside = set(() if placed is None else placed.on_cpu).difference(refused, raised)
            more = {name for group in groups if group & beside for name in group}
            if more <= raised:
                break
            raised |= more
            light = Point.of(dict.fromkeys(sorted(raised), precision), dict(light.options))
        is_all = precision == "float" and all(group <= raised for group in groups)
        return point if is_all else Point.of(dict.fromkeys(sorted(raised), precision), dict(point.options))

    def record(self, point: Point) -> Record:
        """Prices of a candidate by cause."""
        if point not in self._records:
            baseline = self.baseline(point)
            variant, _ = made(baseline, point)
            sides = Sides.of(copy_model(self.model), variant.model, baseline.ranges)
            specs = input_specs(self.model)
            names = {spec.name for spec in specs}
            few = [{name: array for name, array in feed.items() if name in names} for feed in self.feeds[:PRICED]]
            prices = priced(sides, open_feeds(few, specs), threads=1)
            self._records[point] = record_of(sides, prices, subjects_of(sides, prices), "", {})
        return self._records[point]

    def _plan(self, point: Point) -> Plan | None:
        """What makes a candidate; None where its options do not go together."""
        try:
            return self.plan(point)
        except QdqError:
            if not point.options:
                raise
            return None  # `measure` says why

    def plan(self, point: Point) -> Plan:
        """What makes a candidate, but for its nodes: what a plan takes hangs on options alone."""
        options = _without(point, ())
        if options not in self._plans:
            self._plans[options] = scheme_of(self.quantizing(options), self.model, self.asked.data).plan()
        return self._plans[options]

    def baseline(self, point: Point) -> GoalBaseline:
        """What a candidate is made of."""
        return self._set(point)[1]

    @property
    def _plain(self) -> int:
        """Model runs of the plain quantization."""
        return self.calibrated + len(self.feeds)

    def _learning(self, point: Point) -> int:
        """Model runs that weights are learned by, anew of every candidate."""
        return learning_runs(self.plan(point).materialise, self.calibrated)

    def _parts(self, point: Point) -> Mapping[tuple[str, Point], int]:
        """What a candidate takes before it is judged: (what, options that change it) → model runs."""
        plan, early = self.plan(point), _without(point, LATE)
        parts: dict[tuple[str, Point], int] = {}
        before = _without(early, METHOD)
        if plan.observe.passes:  # of one histogram come the ranges of all methods that keep one
            is_counted = counts(observers(plan.method, plan.method_options)())
            parts["histograms" if is_counted else "ranges", before if is_counted else early] = self.calibrated
        if STATISTICS in plan.recover.needs():
            parts["magnitudes", before] = self.calibrated
        if wanted_behind(plan.materialise):
            parts[_sums(plan), before] = self.calibrated
        return parts

    def _counted(self, plan: Plan, before: Point) -> Ranges | None:
        """Ranges of histograms that a candidate with another method was calibrated to; None where there are none."""
        others = (found for early, found in self._ranges.items() if _without(early, METHOD) == before)
        return next((made for each in others if (made := each.by(plan.method, plan.method_options))), None)

    def _due(self, parts: Mapping[tuple[str, Point], int]) -> int:
        """Model runs of those parts that no candidate has paid for, neither alone nor as part of more."""
        return sum(
            runs for (what, options), runs in parts.items()
            if not any((more, options) in self._paid for more in STATISTICS_WITH.get(what, (what,)))
        )  # fmt: skip

    def _set(self, point: Point) -> tuple[Setting, GoalBaseline]:
        """The prepared and calibrated model that a candidate is made of."""
        precisions = tuple(precision for precision, _ in point.raised)
        key = replace(point, raised=tuple((precision, ()) for precision in precisions))
        if key not in self._kept:
            if len(self._kept) >= KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = self._prepared(replace(point, raised=()), precisions)
        return self._kept[key]

    def _prepared(self, point: Point, precisions: tuple[str, ...]) -> tuple[Setting, GoalBaseline]:
        asked, early = self.quantizing(point), _without(point, LATE)
        before = _without(early, METHOD)
        plan = self.plan(point)
        kinds = STATISTICS_WITH[_sums(plan)]
        given = next((found for kind in kinds if (found := self._statistics.get((kind, before)))), None)
        recovering, target = Recovering(given=given), self.target
        progress = self.asked.progress
        setting = set_up(
            copy_model(self.model), scheme_of(asked, self.model, self.asked.data), self.workers, metric=self.metric,
            judged=self.feeds, feeds=self.calibration, references=self.references, recovering=recovering,
            ranges=self._ranges.get(early) or self._counted(plan, before), precisions=precisions,
            prices=None if target is None else Prices.of(target.cost), allow_empty=self.asked.allow_empty,
            cache=self.asked.cache, progress=stage(progress, "calibrating", self.calibrated),
        )  # fmt: skip
        self._ranges[early] = setting.baseline.ranges
        self._alive.append(recovering)
        if recovering.statistics is not None:
            self._statistics[_sums(plan), before] = recovering.statistics
        own = {each.name: getattr(setting.baseline, each.name) for each in fields(Baseline)}
        target_name = None if self.asked.target is None else str(self.asked.target)
        return setting, GoalBaseline(**own, goal=self.goal, target=target_name, on_chip=part_of(OnChip, self.asked))


def _sums(plan: Plan) -> str:
    """What statistics the passes of ``plan`` behind calibration read; ``magnitudes`` where they read none."""
    wanted = wanted_behind(plan.materialise)
    return wanted[-1] if wanted else "magnitudes"


def _without(point: Point, names: Iterable[str]) -> Point:
    """The options of ``point`` that are not in ``names``, and no node."""
    return Point(options=tuple(item for item in point.options if item[0] not in names))

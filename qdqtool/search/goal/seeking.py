"""The search for a goal: the plain quantization, single mends of its dearest causes, what of these goes together, other schemes
that the target takes with them, mends of the causes that are left; then nodes out of 8 bit, the dearest first, as few as
are enough.

It says what is tried next; a `Subject` says what that is worth, and what it takes. Nothing depends on time: units are model runs
over those of the plain quantization."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.io.files.progress import StageProgress
from qdqtool.search.goal.proposals import go_together
from qdqtool.search.goal.subject import Raise, Subject
from qdqtool.search.goal.trials import Candidate, Trial, are_alike, best_of
from qdqtool.search.variants import Point

#: Part of the budget that is gone at most when single mends were tried: the rest is for what goes together, presets, nodes.
SINGLES = 0.4
#: Mends of so few units, judging among them, are tried whatever is gone.
CHEAP = 0.25
#: How often nodes can be raised at least, whatever mends are tried before.
RAISES = 2
#: Of mends of causes that are left behind others so many are tried, of those that take no more than so many units.
AGAIN, DEAR = 2, 2.0


@dataclass
class Seeking:
    """One search.

    Args:
        subject: what is quantized.
        budget: full quantizations that may be taken.
        most_ms: what a run may take on the chip.
        progress: told what is tried and the best so far, units taken, and the budget.
        trials: what was tried, in order; the plain quantization first.
        units: what it took.
        stopped: why the search ended early; empty where it did not.
        samples: that are judged on in all.
        reachable: whether the float model reaches the goal; where not, more bits do not either, and none are tried.
    """

    subject: Subject
    budget: float
    most_ms: float
    progress: StageProgress | None = None
    trials: list[Trial] = field(default_factory=list)
    units: float = 0.0
    stopped: str = ""
    samples: int = 0
    reachable: bool = True
    _spares: bool = field(default=False, init=False)  # what it takes to raise nodes of the best is kept

    @property
    def plain(self) -> Trial:
        """The plain quantization."""
        return self.trials[0]

    @property
    def best(self) -> Trial:
        """The best so far."""
        return best_of(self.trials, self.plain)

    def run(self) -> Trial:
        """Search; the best. An interrupt ends it once the goal is met: what met it stays.

        Raises:
            UsageError: the plain quantization cannot be made.
        """
        try:
            return self._run()
        except KeyboardInterrupt:
            if not self.trials or not self.best.is_met:
                raise
            self.stopped = "interrupted"
            return self.best

    def _run(self) -> Trial:
        plain = self._try(Candidate(point=Point(), why="as it is said"))
        assert plain is not None
        if plain.measured.reason:
            raise UsageError(f"the plain quantization cannot be made: {plain.measured.reason}")
        if plain.is_met or self.samples == 1:  # of one sample nothing is met but what is exact
            return plain
        knows = self._pays_for_causes(plain.candidate.point)
        if knows:
            singles = self._all(list(self.subject.mends(Point())), self.budget * SINGLES)
            best = self._together(singles)
            self._spares = self.reachable
            self._again(self._schemed(best))
        else:
            self._each(self.subject.others())
        self._recalled()
        self._spares = False
        if not self.best.is_met and self.reachable:
            self._raised(self.best)
        if knows and not self.best.is_met:
            self._all(list(self.subject.mends(Point())), self.budget)
        if not self.best.is_met:
            self._each(self.subject.last(wider=self.reachable))
            self._recalled()
        self._paired()
        self._recalled(whatever=True)
        self._finished()
        return self.best

    def _recalled(self, *, whatever: bool = False) -> None:
        """Judge on all samples what the first refuted, though it came nearer than what was judged on all; or ``whatever`` it
        did, the nearest first. Where a variant and the float model agree on the first, their interval says little of the rest."""
        while not self.best.is_met and self._affords(self.subject.whole_units()):
            most = self.samples
            nearest = max((one.common for one in self.trials if one.samples == most), default=-math.inf)
            early = [one for one in self.trials if 0 < one.samples < most and (whatever or one.common >= nearest)]
            early = [one for one in early if not one.is_proven]
            if not early:
                return
            self._judge_whole(max(early, key=lambda one: one.common))

    def _paired(self) -> None:
        """With what is left of the budget, any two together of those that are no worse than the plain one, the nearest first."""
        pairs: list[tuple[float, str]] = []  # the nearest first, by the key of what is in `made`; some several times
        made: dict[str, Candidate] = {}
        tried, some, seen = {trial.candidate.point for trial in self.trials}, list[Trial](), 1
        while not self.best.is_met:
            for each in self.trials[seen:]:
                if self._is_no_worse(each):
                    for both, nearness in _with_each(each, some):
                        key = both.point.key
                        made[key] = both
                        heapq.heappush(pairs, (-nearness, key))
                    some.append(each)
            seen = len(self.trials)
            while pairs and (made[pairs[0][1]].point in tried or not self._fits([made[pairs[0][1]]])):
                heapq.heappop(pairs)
            if not pairs:
                return
            chosen = made[heapq.heappop(pairs)[1]]
            tried.add(chosen.point)
            self._try(chosen)

    def _is_no_worse(self, trial: Trial) -> bool:
        """Whether it says an option that does something, and is no worse than the plain one."""
        plain = self.plain
        is_wanted = not trial.unwanted(plain) and trial.is_fast >= plain.is_fast and not trial.candidate.point.raised
        return bool(trial.samples) and is_wanted and not trial.is_same(plain) and not self._betters(plain, trial)

    def _finished(self) -> None:
        """Judge the nearest on all samples, where the hardest refuted it, for its figure to be told."""
        while self.best.is_proven and self._affords(self.subject.whole_units()):
            self._judge_whole(self.best)

    def _judge_whole(self, trial: Trial) -> None:
        found, units = self.subject.whole(trial.candidate.point), self.subject.whole_units()
        self.trials[self.trials.index(trial)] = replace(trial, measured=found, units=trial.units + units)
        self.units += units

    def _each(self, candidates: Iterable[Candidate]) -> None:
        """One by one, until the goal is met."""
        for each in candidates:
            if self.best.is_met:
                return
            self._try(each)

    def _together(self, singles: Sequence[Trial]) -> Trial:
        """Add to the best mend the next ones, each kept where it brings more; the best of these."""
        better = [one for one in singles if self._betters(one, self.plain)]
        alike = are_alike(better)
        better.sort(key=lambda one: -(one.margin if alike else one.common))
        best = better[0] if better else self.plain
        for other in better[1:]:
            if self.best.is_met:
                break
            if go_together(best.candidate.options, other.candidate.options):
                best = self._added(best, other.candidate, f"{best.candidate.text} with {other.candidate.text}")
        return best

    def _again(self, best: Trial) -> None:
        """Add to the best mends those of the causes that are left behind it, which were not worth a try before."""
        tried = {trial.candidate.point for trial in self.trials}
        if best is self.plain or self.best.is_met or not self._pays_for_causes(best.candidate.point):
            return
        left = [each for each in self.subject.mends(best.candidate.point) if each.point not in tried]
        for each in [each for each in left if self._is_cheap(best, each)][:AGAIN]:
            if not self.best.is_met:
                best = self._added(best, each, f"{each.why}, behind {best.candidate.text}")

    def _is_cheap(self, best: Trial, more: Candidate) -> bool:
        """Whether ``more`` goes with ``best``, and takes few units there."""
        made = Candidate.of("", {**best.candidate.options, **more.options})
        return go_together(best.candidate.options, more.options) and self.subject.units(made.point) <= DEAR

    def _schemed(self, best: Trial) -> Trial:
        """Other schemes, and each that is better than those before it with the mends of ``best``; the best of these."""
        known = self.plain
        for each in self.subject.others():
            trial = None if self.best.is_met else self._try(each)
            if trial is None or not self._betters(trial, known):
                continue
            known = trial
            if best is self.plain or set(best.candidate.options) <= set(each.options):
                best = trial
            elif not trial.is_met:
                best = self._added(best, each, f"{best.candidate.text} with {each.text}")
        return best

    def _added(self, best: Trial, more: Candidate, why: str) -> Trial:
        """``best``, or that with the options of ``more`` where it is better."""
        trial = self._try(Candidate.of(why, {**best.candidate.options, **more.options}))
        return trial if trial is not None and self._betters(trial, best) else best

    def _betters(self, trial: Trial, other: Trial) -> bool:
        return trial.is_better(other) and not trial.unwanted(self.plain) and trial.is_fast >= other.is_fast

    def _raised(self, best: Trial) -> None:
        """Raise the dearest nodes of the best, twice as many each time, until the goal is met; then lower what need not be."""
        if not self._pays_for_causes(best.candidate.point):
            return
        for each in self.subject.raises(best.candidate.point):
            before, steps = 0, list(_doubling(each.sets))
            if each.precision == "float" and len(steps) > 1:
                steps.pop()  # everything in floats is no quantization
            for sets in steps[-max(self._tries(best, each), 1) :]:
                if self._is_enough(best, each.precision, sets):
                    self._lowered(best, each.precision, self._fewest(best, each, before, len(sets)))
                    return
                before = len(sets)

    def _tries(self, best: Trial, each: Raise) -> int:
        """How often nodes can be raised with what is left of the budget: where that is seldom, many are raised at once."""
        names = {name: each.precision for nodes in each.sets for name in nodes}
        point = Candidate.of("", best.candidate.options, names).point
        return int(self._room(point) / max(self.subject.units(point), 1e-9))

    def _fewest(self, best: Trial, each: Raise, low: int, high: int) -> Sequence[tuple[str, ...]]:
        """The first sets of ``each`` that are enough: more than ``low`` of them, and ``high`` are."""
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._is_enough(best, each.precision, each.sets[:middle]) else (middle, high)
        return each.sets[:high]

    def _is_enough(
        self, best: Trial, precision: str, sets: Sequence[tuple[str, ...]], of: Sequence[tuple[str, ...]] = ()
    ) -> bool:
        """Whether the goal is met with ``sets`` raised, which are the dearest, or some ``of`` these, and the target takes it."""
        trial = self._raise(best, precision, sets, of)
        return trial is not None and trial.is_met and not trial.unwanted(self.plain)

    def _lowered(self, best: Trial, precision: str, sets: Sequence[tuple[str, ...]]) -> None:
        """Lower single sets again, those raised last first."""
        kept = list(sets)
        for each in reversed(sets):
            fewer = [one for one in kept if one is not each]
            if fewer and self._is_enough(best, precision, fewer, of=sets):
                kept = fewer

    def _raise(
        self, best: Trial, precision: str, sets: Sequence[tuple[str, ...]], of: Sequence[tuple[str, ...]]
    ) -> Trial | None:
        names, whole = ({name for nodes in some for name in nodes} for some in (sets, of))
        told = f"{len(names)} of {_dearest(len(whole), precision)}" if whole else _dearest(len(names), precision)
        point = Candidate.of("", best.candidate.options, dict.fromkeys(sorted(names), precision)).point
        if not self._affords(self.subject.units(point), point):
            return None
        all_of_them = self.subject.along(point, self.plain.refused)
        if tried := [trial for trial in self.trials if trial.candidate.point == all_of_them]:
            return tried[0]
        beside = sum(len(nodes) for _, nodes in all_of_them.raised) - len(names)
        return self._try(Candidate(point=all_of_them, why=f"{told}, and {beside} beside them" if beside else told))

    def _pays_for_causes(self, point: Point) -> bool:
        units = self.subject.pay_for_causes(point)
        if not self._affords(units):
            return False
        self.units += units
        return True

    def _all(self, candidates: Sequence[Candidate], most: float) -> list[Trial]:
        """Judge candidates, one at least, as many as fit into ``most`` units with what was taken before, and the cheap ones;
        together those that fit together, so that it does not matter who works."""
        left, found = list(candidates), list[Trial]()
        while left:
            together: list[Candidate] = []
            for each in left:
                units = sum(self.subject.units(one.point) for one in [*together, each])
                is_first = not together and not found
                is_cheap = self.subject.units(each.point) <= CHEAP
                if (is_first or is_cheap or self.units + units <= most) and self._fits([*together, each]):
                    together.append(each)
            if not together:
                break
            found += self._judge(together)
            left = [each for each in left if each not in together]
        return found

    def _try(self, candidate: Candidate) -> Trial | None:
        """Judge a candidate; None where that was tried, or where nothing is left of the budget."""
        return self._judge([candidate])[0] if self._fits([candidate]) else None

    def _fits(self, candidates: Sequence[Candidate]) -> bool:
        """Whether none was tried, and the budget has room for all."""
        points = [each.point for each in candidates]
        if any(trial.candidate.point in points for trial in self.trials):
            return False
        return not self.trials or self._affords(sum(map(self.subject.units, points)), *points)

    def _judge(self, candidates: Sequence[Candidate]) -> list[Trial]:
        if self.progress is not None:
            told = "" if not self.trials else f", best {self.best.candidate.text}"
            self.progress(f"trying {_texts(candidates)}{told}", round(self.units), round(self.budget))
        points = [each.point for each in candidates]
        made = []
        for each, measured in zip(candidates, self.subject.measure(points), strict=True):
            units = self.subject.pay(each.point, measured)
            made.append(Trial(candidate=each, measured=measured, units=units, most_ms=self.most_ms))
        self.units += sum(trial.units for trial in made)
        self.trials += made
        return made

    def _affords(self, units: float, *points: Point) -> bool:
        """Whether so much more fits."""
        return units <= self._room(*points)

    def _room(self, *points: Point) -> float:
        """Units that are left before any that was tried, or of ``points``, is made once more: the chosen one is written; and
        before what the hardest samples refuted is judged on all, where that is the nearest."""
        tried = [trial.candidate.point for trial in self.trials]
        writing = max(map(self.subject.writing, [*tried, *points]))
        raising = RAISES * max(map(self.subject.units, [self.best.candidate.point, *points])) if self._spares else 0.0
        whole = self.subject.whole_units() if points and any(trial.is_proven for trial in self.trials) else 0.0
        return self.budget - self.units - writing - raising - whole


def _with_each(one: Trial, others: Iterable[Trial]) -> Iterator[tuple[Candidate, float]]:
    """What ``one`` and each of ``others`` say together, and how near to the goal the two are."""
    for other in others:
        options = one.candidate.options, other.candidate.options
        if go_together(*options):
            yield Candidate.of("neither of them harms", options[0] | options[1]), one.common + other.common


def _doubling(sets: Sequence[tuple[str, ...]]) -> Iterator[Sequence[tuple[str, ...]]]:
    """The first, the first two, the first four, … of ``sets``, all of them last."""
    count = 1
    while sets:
        yield sets[:count]
        if count >= len(sets):
            return
        count *= 2


def _texts(candidates: Sequence[Candidate]) -> str:
    return candidates[0].text if len(candidates) == 1 else f"{len(candidates)} mends"


def _dearest(count: int, precision: str) -> str:
    told = f"with {precision.replace('_', ' ')}" if precision == "int8_weights" else f"in {precision}"
    return f"the dearest node {told}" if count == 1 else f"the {count} dearest nodes {told}"

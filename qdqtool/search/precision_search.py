"""The search for mixed precision: the cheapest raise of some nodes out of 8 bit that holds a bound, found on the real model.

1. Sensitivity: every group (`qdqtool.search.node_groups`) quantized alone, or its prices in a record of the plain quantization;
   and every candidate raised alone: a group in each precision that the target takes, and sets that do not multiply (the tail
   behind the last layers, what lies between two layers, all of one operator type). Of floating point types only the first is
   tried with which everything together holds the bound.
2. From the plain quantization on the candidates are raised, the most harm a cost first, and the model is measured again after
   each, until the bound holds.
3. What turns out unnecessary is lowered again, one by one and several together, and what lies between raised nodes is raised
   where that saves crossings, as long as it gets cheaper and the bound holds.

Figures are measured, never added up; the cost is that of `qdqtool.search.precision_cost`. Nothing depends on who
measures."""

from __future__ import annotations

from collections.abc import Sequence

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError
from qdq_passes.numerics.agreement import worst_first

from qdqtool.io.files.progress import StageProgress
from qdqtool.io.files.progress import stage as in_stage
from qdqtool.record.record import Record
from qdqtool.search.allowed_precisions import Allowed
from qdqtool.search.measuring import Measurements, Setting
from qdqtool.search.metrics import Metric
from qdqtool.search.mixed_precision import Found, Mixed, pareto, thrift
from qdqtool.search.node_groups import NodeGroup, alike, between, neighbours, node_groups, tails
from qdqtool.search.variants import FLOATS, Baseline, Point

#: Share of the bound that the figure may fall by when a node is raised, where what comes next needs it.
SLACK = 0.02

#: NodeGroup → precision.
Mix = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """Groups of nodes to raise together."""

    groups: tuple[NodeGroup, ...]
    precision: str

    def on(self, mix: Mix) -> Mix:
        """``mix`` with this raised."""
        return mix | {group.name: self.precision for group in self.groups}


@dataclass
class Search:
    """One search.

    Args:
        setting: what is searched.
        measurements: who measures.
        metric: what judges.
        bound: what the figure must reach.
        precisions: what nodes may be raised to, cheapest first.
        allowed: of these, what the target takes of each group.
        record: with the prices of the plain quantization; None to measure what each group does by itself.
        progress: called with (stage, variants done, their number).
    """

    setting: Setting
    measurements: Measurements[Baseline]
    metric: Metric
    bound: float
    precisions: Sequence[str]
    allowed: Allowed
    record: Record | None = None
    progress: StageProgress | None = None

    def __post_init__(self) -> None:
        """Find what moves together."""
        found = node_groups(self.setting.model, self.setting.plan, follow=True)
        self._groups = {group.name: group for group in found}

    def run(self) -> Mixed:
        """Search.

        Raises:
            UsageError: nothing is quantized, the plain quantization cannot be made, or the target takes none of the precisions.
        """
        if not self._groups:
            raise UsageError("nothing is quantized", hint="the preset, --exclude and --only leave no operator")
        plain = self._measure([{}], "measuring")[0]
        if plain.measured.reason:
            raise UsageError(f"the plain quantization cannot be made: {plain.measured.reason}")
        chosen, limit = plain, ""
        if not plain.holds(self.bound):
            ceiling = self._ceiling()
            if ceiling.holds(self.bound):
                candidates = self._candidates()
                self._raise(plain, candidates)
                chosen = self._lower(candidates)
                if self._is_float(chosen):
                    limit = "nothing holds it but every node in floats, which is no quantization"
            else:
                chosen, limit = ceiling, self._why(ceiling)
        everything = self._everything()
        return Mixed(
            bound=self.bound,
            metric=self.metric,
            floating=self.setting.floating,
            plain=plain,
            chosen=chosen,
            pareto=pareto((found for found in everything if not found.measured.reason), chosen),
            limit=limit,
            groups=tuple(self._groups.values()),
            measured=len(everything),
            refusals=self.allowed.refusals,
        )

    def _whole(self, precision: str) -> Mix:
        """Everything raised to ``precision`` that may be."""
        return {name: precision for name, group in self._groups.items() if self.allowed.takes(group, precision)}

    def _ceiling(self) -> Found:
        """Everything raised as far as it may be: the best of the precisions, each alone and the last that a group may have.

        Raises:
            UsageError: nothing may be raised.
        """
        wholes = [self._whole(precision) for precision in self.precisions]
        wholes.append({name: own[-1] for name, own in self.allowed.precisions.items() if own})
        mixes = [whole for whole in wholes if whole]
        if not mixes:
            name, _, reason = self.allowed.refusals[0]
            raise UsageError(f"no node may be raised to {' or '.join(self.precisions)}: {reason}", where=name)
        return max(self._measure(mixes, "measuring"), key=lambda found: (not found.measured.reason, found.figure))

    def _candidates(self) -> list[_Candidate]:
        """Every group by itself, then the sets, in every precision worth trying."""
        model, everyone = self.setting.model, list(self._groups.values())
        sets: dict[tuple[NodeGroup, ...], None] = {(group,): None for group in everyone}
        sets |= dict.fromkeys([*tails(model, everyone), *between(model, everyone), *alike(everyone)])
        made: dict[_Candidate, None] = {}
        settled: set[str] = set()
        for precision in self.precisions:
            for each in sets:
                taking = tuple(group for group in each if self._is_worth_trying(group, precision, settled))
                if taking:
                    made[_Candidate(groups=taking, precision=precision)] = None
            if precision in FLOATS and self._measure([self._whole(precision)], "measuring")[0].holds(self.bound):
                settled |= set(self._whole(precision))
        return list(made)

    def _is_worth_trying(self, group: NodeGroup, precision: str, settled: set[str]) -> bool:
        """Whether ``group`` may have ``precision``, and no cheaper float is wide enough."""
        return self.allowed.takes(group, precision) and not (precision in FLOATS and group.name in settled)

    def _raise(self, plain: Found, candidates: list[_Candidate]) -> None:
        """Raise the candidates, the most harm a cost first, until the bound holds; else the ceiling holds it."""
        raised, now = Mix(), plain
        for candidate in self._in_order(plain, candidates):
            if now.holds(self.bound):
                return
            mix = candidate.on(raised)
            if mix == raised:
                continue
            then = self._measure([mix], "raising")[0]
            if not then.measured.reason and then.figure >= now.figure - self._slack():
                raised, now = mix, then

    def _in_order(self, plain: Found, candidates: list[_Candidate]) -> list[_Candidate]:
        """``candidates`` that promise anything, the best bargain first; equals stay in the order of the graph."""
        harm = self._harms() if self.record is None else self._told(self.record, self._noise(plain))
        singles = self._measure([candidate.on({}) for candidate in candidates], "measuring")
        everything = sum(plain.measured.cost.macs.values()) or 1
        bargains: dict[_Candidate, float] = {}
        for candidate, found in zip(candidates, singles, strict=True):
            if found.measured.reason:
                continue
            promise = max(sum(harm[group.name] for group in candidate.groups), self._noise(plain) - self._noise(found))
            more = (found.measured.cost.total - plain.measured.cost.total) / everything
            if promise > 0:
                bargains[candidate] = promise * 1e12 if more <= 0 else promise / more
        return sorted(bargains, key=lambda candidate: -bargains[candidate])

    def _harms(self) -> dict[str, float]:
        """What each group does by itself, the others being float."""
        points = [Point(only=group.nodes) for group in self._groups.values()]
        alone = self.measurements.of(points, in_stage(self.progress, "measuring"))
        base = self._noise_of(self.setting.floating)
        return {
            name: 0.0 if found.reason else max(0.0, self._noise_of(found.figure) - base)
            for name, found in zip(self._groups, alone, strict=True)
        }

    def _told(self, record: Record, noise: float) -> dict[str, float]:
        """The same from the prices of ``record``: of what the plain quantization costs, the share of each group."""
        prices: dict[str, float] = {}
        for name, price in [*((t.node, t.price) for t in record.tensors), *((n.name, n.price) for n in record.nodes)]:
            prices[name] = prices.get(name, 0.0) + sum(price.values())
        total = sum(prices.values()) or 1.0
        lost = max(0.0, noise - self._noise_of(self.setting.floating))
        return {
            name: lost * sum(prices.get(node, 0.0) for node in group.nodes) / total
            for name, group in self._groups.items()
        }

    def _noise(self, found: Found) -> float:
        return self._noise_of(found.measured.figure)

    def _noise_of(self, figure: float | None) -> float:
        """What a figure lacks, so that the parts of it add up: noise power a signal power of decibels, else the difference."""
        if self.metric.unit == "dB":
            return 0.0 if figure is None else float(10.0 ** (-figure / 10))
        return 0.0 if figure is None else -figure

    def _slack(self) -> float:
        """What a figure may fall by at one step: the next may need it (a pair of widths must agree)."""
        return max(1.0, abs(self.bound)) * SLACK

    def _lower(self, candidates: Sequence[_Candidate]) -> Found:
        """From the cheapest variant that holds the bound on, lower what it does not need, then raise what lies between raised
        nodes where that saves crossings, until nothing gets cheaper.

        What cannot be lowered is not tried again: with less raised beside it, it is needed the more.
        """
        sets = list(dict.fromkeys(frozenset(m.name for m in c.groups) for c in candidates))
        needed: set[tuple[frozenset[str], str]] = set()
        while True:
            now = self._cheapest()
            tries = {what: mix for what, mix in self._lowered(self._of(now), sets).items() if what not in needed}
            results = self._measure(list(tries.values()), "lowering")
            held = {what: found.holds(self.bound) for what, found in zip(tries, results, strict=True)}
            needed |= {what for what, holds in held.items() if not holds}
            self._lower_together(self._of(now), [tries[what] for what, holds in held.items() if holds and not what[1]])
            if self._cheapest().point == now.point:
                self._measure(self._closed(self._of(now)), "lowering")
                if self._cheapest().point == now.point:
                    return now

    def _closed(self, raised: Mix) -> list[Mix]:
        """``raised`` with one neighbour more, which multiplies nothing, in the precision of the one it touches."""
        mixes: dict[tuple[str, str], Mix] = {}
        for a, b in neighbours(self.setting.model, list(self._groups.values())):
            for near, far in ((a, b), (b, a)):
                precision = raised.get(near.name)
                if (
                    precision is not None
                    and far.name not in raised
                    and not far.macs
                    and self.allowed.takes(far, precision)
                ):
                    mixes[far.name, precision] = {**raised, far.name: precision}
        return list(mixes.values())

    def _lowered(self, raised: Mix, sets: Sequence[frozenset[str]]) -> dict[tuple[frozenset[str], str], Mix]:
        """What can be lowered of ``raised``: (names, to what, "" for 8 bit) → what is left raised."""
        tries: dict[tuple[frozenset[str], str], Mix] = {}
        for names in sets:
            hit = names & set(raised)
            if hit:
                tries[hit, ""] = {name: precision for name, precision in raised.items() if name not in hit}
        for name, precision in raised.items():
            own = self.allowed.precisions[name]
            for cheaper in own[: own.index(precision)]:
                tries[frozenset([name]), cheaper] = {**raised, name: cheaper}
        return tries

    def _lower_together(self, raised: Mix, fitting: Sequence[Mix]) -> None:
        """Try what may be left 8 bit alone, ``fitting``, together: all of it, then the half that saves most, and so on."""
        order = sorted(fitting, key=lambda mix: thrift(self._measure([mix], "lowering")[0]))
        count = len(order)
        while count > 1:
            left = {n: p for n, p in raised.items() if all(mix.get(n) == p for mix in order[:count])}
            if self._measure([left], "lowering")[0].holds(self.bound):
                return
            count //= 2

    def _cheapest(self) -> Found:
        """Of everything measured the cheapest quantization that holds the bound; of equals that with the fewest nodes."""
        holding = [found for found in self._everything() if found.holds(self.bound)]
        return min(holding, key=lambda found: (self._is_float(found), thrift(found)))

    def _is_float(self, found: Found) -> bool:
        """Whether nothing is left quantized."""
        mix = self._of(found)
        return all(mix.get(name) in FLOATS for name in self._groups)

    def _everything(self) -> list[Found]:
        known = self.measurements.known
        points = self.measurements.points.items()
        return [Found(point=point, measured=known[key]) for key, point in points if point.only is None]

    def _measure(self, mixes: Sequence[Mix], stage: str) -> list[Found]:
        """What ``mixes`` are worth."""
        points = [
            Point.of({node: precision for name, precision in mix.items() for node in self._groups[name].nodes})
            for mix in mixes
        ]
        results = self.measurements.of(points, in_stage(self.progress, stage))
        return [Found(point=p, measured=m) for p, m in zip(points, results, strict=True)]

    def _of(self, found: Found) -> Mix:
        """The mix of a point."""
        precisions = found.point.precisions
        return {
            name: precisions[group.nodes[0]] for name, group in self._groups.items() if group.nodes[0] in precisions
        }

    def _why(self, ceiling: Found) -> str:
        """Why the bound cannot be met."""
        unit = f" {self.metric.unit}" if self.metric.unit else ""
        if worst_first(self.setting.floating) < self.bound:
            return f"the float model itself has {worst_first(self.setting.floating):.6g}{unit}"
        text = f"with everything raised as far as it may be it is {ceiling.figure:.6g}{unit}"
        if ceiling.measured.reason:
            text = f"with everything raised it cannot be made: {ceiling.measured.reason}"
        if self.allowed.refusals:
            name, precision, reason = self.allowed.refusals[0]
            more = f" and {len(self.allowed.refusals) - 1} more" if len(self.allowed.refusals) > 1 else ""
            return f"{text}; the target does not take {name} in {precision} ({reason}){more}"
        return f"{text}; only {', '.join(self.precisions)} may be used, and not for what --exclude and the preset leave out"

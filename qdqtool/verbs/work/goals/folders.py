"""A folder that `split` wrote on the way to a goal: every candidate is a folder, judged by its perplexity on a text.

Causes are those of the graph for most tokens: their mends are tried, then other presets, then nodes in more bits. Each window of
the text is a sample."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import QdqError, UsageError
from qdq_passes.graph.uses import all_nodes
from qdq_passes.npu.partitions.partition_graph import weight_bytes
from qdq_passes.npu.units.units import units_of
from qdq_passes.pipeline.pipeline import Pipeline
from qdq_passes.recover.tune_weights import TuneWeights
from qdq_passes.select.globs import literal

from qdqtool.io.feeds.hashes import EMPTY, add_feed
from qdqtool.io.files.journal import Journal
from qdqtool.io.files.read import read_text
from qdqtool.llm.folder.all_logits import write_with_all_logits
from qdqtool.llm.folder.manifest import read_manifest
from qdqtool.llm.folder.tokenizing import Tokenizer
from qdqtool.llm.run.calibration import SAMPLES
from qdqtool.llm.run.perplexity import surprises
from qdqtool.llm.run.session import Session
from qdqtool.options import changed
from qdqtool.quantization.eight_bit_weights import has_narrow_weights
from qdqtool.quantization.plan import Plan
from qdqtool.quantization.recovery import learning_runs
from qdqtool.record.record import Record
from qdqtool.search.goal.chance import on_others, standing
from qdqtool.search.goal.goal import Goal
from qdqtool.search.goal.proposals import dearest_sets, proposals
from qdqtool.search.goal.standing import Fresh
from qdqtool.search.goal.subject import Raise
from qdqtool.search.goal.trials import Candidate, Trial
from qdqtool.search.metrics import PERPLEXITY, SURPRISES, Arrays, Metric
from qdqtool.search.precision_cost import Cost, Prices, cost_of
from qdqtool.search.variants import FAILED, NARROW, Measured, Placing, Point
from qdqtool.targets.loading import load_target
from qdqtool.verbs.quantize import Quantize
from qdqtool.verbs.work.bounds.holding_out import apart
from qdqtool.verbs.work.folder_calibration import needs_statistics
from qdqtool.verbs.work.goals.folder_causes import PRICED, groups_of_folder, record_of_folder, widest
from qdqtool.verbs.work.goals.presets import other_presets
from qdqtool.verbs.work.quantizing import fingerprint_of
from qdqtool.verbs.work.quantizing_decoders import QuantizedFolder, graphs_of, quantized_folder
from qdqtool.verbs.work.texts import is_text

if TYPE_CHECKING:
    from qdqtool.verbs.goals.quantize_to_goal import QuantizeToGoal

#: What no cause proposes: of a decoder, and what takes many units.
MORE: tuple[dict[str, object], ...] = ({"rotate": True}, {"tune_weights": 1000})
#: What nodes are raised to, the cheapest first, under presets of quantized activations.
RAISED = ("int16", "float")


@dataclass
class FolderSubject:
    """A folder.

    Args:
        asked: the command.
        goal: what is to be reached.
        metric: what judges.
        feeds: windows of tokens.
        references: −ln p of their tokens under the float graphs.
        test_feeds: windows that the figure of the chosen one is of.
        journal: keeps what was measured.
    """

    asked: QuantizeToGoal
    goal: Goal
    metric: Metric
    feeds: Sequence[Arrays]
    references: Sequence[Arrays]
    test_feeds: Sequence[Arrays] = ()
    journal: Journal | None = None
    _plans: dict[Point, Plan] = field(default_factory=dict)
    _record: Record | None = None
    _ops: set[str] = field(default_factory=set)
    _fresh: dict[Point, Fresh] = field(default_factory=dict)  # of those that meet the goal
    _held: QuantizedFolder | None = None  # the plain quantization, until its causes are known

    def close(self) -> None:
        """Nothing is held."""

    @property
    def fingerprint(self) -> str:
        """Hex SHA-256 of the folder's files."""
        return fingerprint_of(self.asked.model)

    def quantizing(self, point: Point) -> Quantize:
        """The command that makes a candidate, without what is written where and who is told."""
        own = {each.name: getattr(self.asked, each.name) for each in fields(Quantize)}
        own |= {"output": None, "report": None, "save_statistics": None, "warn": None, "progress": None}
        said = {p: (*getattr(self.asked, p), *map(literal, names)) for p, names in point.raised}
        return Quantize(**{**own, **dict(point.options), **said})

    def measure(self, points: Sequence[Point]) -> list[Measured]:
        """See `Subject.measure`: one by one."""
        return [self._known(point) for point in points]

    def _known(self, point: Point) -> Measured:
        known = self.journal.results.get(point.key) if self.journal is not None else None
        if known is not None:
            return Measured.from_json(known)
        found = self._measured(point)
        if self.journal is not None:
            self.journal.add(point.key, found.to_json())
        return found

    def whole(self, point: Point) -> Measured:
        """See `Subject.whole`: every candidate is judged on all."""
        return self._known(point)

    def whole_units(self) -> float:
        """See `Subject.whole_units`."""
        return 0.0

    def units(self, point: Point) -> float:
        """See `Subject.units`: a window that is calibrated on counts as one that is judged on."""
        return self.writing(point) + len(self.feeds) / self._plain

    def pay(self, point: Point, measured: Measured) -> float:
        """See `Subject.pay`: nothing is shared."""
        return self.units(point)

    def writing(self, point: Point) -> float:
        """See `Subject.writing`; what a step of tuning runs counts as a window each."""
        return (self._calibrated(point) + self._tuning(point)) / self._plain

    def pay_for_causes(self, point: Point) -> float:
        """See `Subject.pay_for_causes`: both models, on a few runs of one graph; those of the plain quantization serve all."""
        if point != Point() or self._record is not None:
            return 0.0
        anew = self.units(point) if self._is_integer else 0.0
        return anew + 2 * self._priced / self._plain

    def mends(self, point: Point) -> Iterator[Candidate]:
        """See `Subject.mends`, and those that no cause proposes: every candidate is a whole quantization."""
        plan, said = self.plan(point), changed(self.asked)
        yield from proposals(self.record, plan, said, ops=self._ops, is_spare=True)
        for options in MORE:
            (name,) = options
            if name not in said and getattr(plan.preset.recovery, name, None) is None:
                yield Candidate.of("a recovery of accuracy", options)

    def others(self) -> Iterable[Candidate]:
        """See `Subject.others`: presets of 8-bit activations, where these have as many."""
        plain = self.plan(Point())
        return other_presets(self.asked, plain, bits=8, poorer=False) if plain.preset.is_calibrated else ()

    def raises(self, best: Point) -> Iterator[Raise]:
        """See `Subject.raises`: layers whose weights are int8, those first that cost most for a byte; under presets of 8-bit
        weights nodes in 16 bit, then floats."""
        plan = self.plan(best)
        narrow = has_narrow_weights(plan.preset)
        raised = (*(NARROW if narrow else ()), *(RAISED if plan.preset.is_calibrated else ()))
        groups, sizes = groups_of_folder(self.quantizing(best), plan) if raised else ([], {})
        for precision in raised:
            per = sizes if precision in NARROW else None
            yield Raise(precision=precision, sets=dearest_sets(self.record, groups, (), per=per))

    def along(self, point: Point, refused: Iterable[str]) -> Point:
        """See `Subject.along`: none, all graphs would have to be made for it."""
        return point

    @property
    def record(self) -> Record:
        """Prices of the plain quantization by cause."""
        if self._record is None:
            asked = replace(self.quantizing(Point()), kv_cache="float", integer_io=False)
            done, self._held = (None if self._is_integer else self._held) or quantized_folder(asked), None
            models = {file: each.model for file, each in done.graphs.items()}
            self._record = record_of_folder(asked, models, self._priced)
            before = graphs_of(self.folder, read_manifest(self.folder))
            self._ops = {node.op_type for model in (*before.values(), *models.values()) for node in all_nodes(model)}
        return self._record

    @property
    def _is_integer(self) -> bool:
        """Whether the graphs read integers, and causes are priced on others, which read what the float graphs do."""
        return self.asked.kv_cache != "float" or self.asked.integer_io

    def last(self, *, wider: bool) -> Iterable[Candidate]:
        """See `Subject.last`: presets of more bits, and those in 8 bit that say less."""
        plain = self.plan(Point())
        if not plain.preset.is_calibrated:
            may_be = wider and "preset" not in changed(self.asked)
            return [Candidate.of("weights in 8 bit", {"preset": "w8"})] if may_be else []
        more = other_presets(self.asked, plain, bits=16) if wider else ()
        return [*more, *other_presets(self.asked, plain, bits=8, poorer=True)]

    def plan(self, point: Point) -> Plan:
        """What makes a candidate."""
        if point not in self._plans:
            self._plans[point] = self.quantizing(point).begun().plan()
        return self._plans[point]

    def again(self, trial: Trial) -> Trial:
        """What a candidate that meets the goal is worth on the other windows too."""
        point = trial.candidate.point
        if self.test_feeds and trial.is_met and point not in self._fresh:  # another run had judged it
            self._measured(point)
        return replace(trial, fresh=self._fresh.get(point))

    def finished(self, point: Point, *, is_met: bool) -> QuantizedFolder:
        """A candidate made once more, and written where it meets the goal."""
        written = {
            "output": self.asked.output,
            "report": self.asked.report,
            "save_statistics": self.asked.save_statistics,
        }
        told = {"warn": self.asked.warn, "progress": self.asked.progress}
        return quantized_folder(replace(self.quantizing(point), **told, **(written if is_met else {})))  # type: ignore[arg-type]

    @property
    def _priced(self) -> int:
        """Runs that causes are priced on."""
        return min(PRICED, len(self.feeds))

    @property
    def _widest(self) -> tuple[str, ...]:
        """The graphs for most tokens."""
        return widest(self.folder)

    @property
    def folder(self) -> str:
        """Where the float graphs are."""
        assert isinstance(self.asked.model, str | os.PathLike)
        return os.fspath(self.asked.model)

    @property
    def _plain(self) -> int:
        """What counts as one quantization, whether the plain one is calibrated or stores weights alone."""
        return (self.asked.samples or SAMPLES) + len(self.feeds)

    def _calibrated(self, point: Point) -> int:
        """Windows that are calibrated on, each time."""
        plan = self.plan(point)
        return (bool(plan.observe.passes) + needs_statistics(plan)) * (self.asked.samples or SAMPLES)

    def _tuning(self, point: Point) -> int:
        """Runs that weights are tuned by."""
        found = Pipeline(tuple(p for p in self.plan(point).materialise.passes if isinstance(p, TuneWeights)))
        return learning_runs(found, self.asked.samples or SAMPLES)

    def _measured(self, point: Point) -> Measured:
        with tempfile.TemporaryDirectory() as scratch:
            folder = os.path.join(scratch, "quantized")
            try:
                done = quantized_folder(self.quantizing(point))
                models = {file: each.model for file, each in done.graphs.items()}
                about = {"preset": done.quantization.plan.preset.name}
                write_with_all_logits(self.folder, folder, done.manifest, models, quantization=about)
                outputs = surprises_of(folder, self.feeds)
                found = standing(self.goal, self.metric, outputs, self.feeds, self.references)
                if found.verdict == "met" and self.test_feeds:
                    sides = [
                        surprises_of(folder, self.test_feeds),
                        self.test_feeds,
                        surprises_of_float(self.folder, self.test_feeds),
                    ]
                    self._fresh[point] = on_others(self.goal, self.metric, *sides)
            except QdqError as error:
                if point == Point():
                    raise
                return Measured(figure=None, cost=FAILED, reason=str(error))
        if point == Point() and found.verdict != "met":
            self._held = done
        prices = Prices() if self.asked.target is None else Prices.of(load_target(self.asked.target).cost)
        costs = [cost_of(each.model, prices) for each in done.graphs.values()]
        placing = Placing(
            refused=tuple(node for node, _ in done.target_refusals or ()),
            weight_bytes=sum(weight_bytes(units_of(done.graphs[file].model)) for file in self._widest),
        )
        return Measured(figure=found.figure, cost=_sum(costs), standing=found, placing=placing)


def windows_of(asked: QuantizeToGoal, metric: Metric) -> tuple[list[Arrays], list[Arrays]]:
    """The windows of a text that every candidate is judged on, and those that the figure is of.

    Each is of ids [1, tokens] up to the largest context.

    Raises:
        UsageError: another metric than perplexity, or no text of two tokens.
    """
    data = asked.data if asked.eval_data is None else asked.eval_data
    if metric.name != PERPLEXITY:
        raise UsageError(f"a folder of graphs is not judged by {metric.name}", where="--goal", hint="by perplexity")
    if not is_text(data):
        raise UsageError("perplexity is of a text", where="--eval-data", hint="give a file of text (.txt)")
    if asked.eval_data is None:
        raise UsageError(
            "a folder of graphs is not judged on what it learns from", where="--goal", hint="give --eval-data"
        )
    assert isinstance(data, str | os.PathLike)
    assert isinstance(asked.model, str | os.PathLike)
    ids = Tokenizer(asked.tokenizer or asked.model).encode(read_text(data))
    window = max(model.ctx_len for model in read_manifest(asked.model).models)
    pieces = [ids[at : at + window] for at in range(0, len(ids), window)]
    found: list[Arrays] = [{"input_ids": np.array([piece], np.int64)} for piece in pieces if len(piece) > 1]
    if not found:
        raise UsageError(f"has {len(ids)} tokens", where=os.fspath(data), hint="give a longer text")
    return apart(found, asked.eval_samples)


def surprises_of_float(folder: str | os.PathLike[str], feeds: Sequence[Arrays]) -> list[Arrays]:
    """Likewise of the float graphs of ``folder``, whichever logits they give."""
    manifest = read_manifest(folder)
    with tempfile.TemporaryDirectory() as scratch:
        judged = os.path.join(scratch, "float")
        write_with_all_logits(folder, judged, manifest, graphs_of(folder, manifest))
        return surprises_of(judged, feeds)


def surprises_of(folder: Any, feeds: Sequence[Arrays]) -> list[Arrays]:
    """−ln p of the tokens of each window but its first, under the graphs of ``folder``."""
    session = Session(folder, threads=1, batch_size=1, verify=False)
    found: list[Arrays] = []
    for feed in feeds:
        ids = [int(token) for token in feed["input_ids"][0]]
        found += [{SURPRISES: part} for part in surprises(session, ids, len(ids), len(ids))]
    return found


def hash_of(feeds: Sequence[Arrays]) -> str:
    """Of what is judged on."""
    data = EMPTY
    for feed in feeds:
        data = add_feed(data, feed)
    return data


def _sum(costs: Sequence[Cost]) -> Cost:
    macs: dict[str, int] = {}
    for cost in costs:
        macs = {kind: macs.get(kind, 0) + count for kind, count in cost.macs.items()}
    return Cost(
        macs=macs, crossings=sum(cost.crossings for cost in costs), bytes=sum(cost.bytes for cost in costs),
        total=sum(cost.total for cost in costs),
    )  # fmt: skip

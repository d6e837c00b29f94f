"""How `explain` works: prices, the tensors that are asked about, what mends them, and what that wins."""

from __future__ import annotations

import difflib
import gc
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError
from qdq_passes.graph.edit import copy_model
from qdq_passes.pipeline.pipeline import Pipeline
from qdq_passes.pipeline.text import make_pass
from qdq_passes.qdq.look.pairs import qdq_pairs

from qdqtool.calibrate.ranges import Ranges
from qdqtool.comparison.prices.diagnosis import diagnosis
from qdqtool.comparison.prices.life import lives
from qdqtool.comparison.prices.pricing import priced
from qdqtool.comparison.prices.subjects import Subject, record_of, subjects_of, worst
from qdqtool.comparison.sides import Sides, prepared_otherwise
from qdqtool.io.feeds.feeds import open_feeds
from qdqtool.io.feeds.spec import input_specs
from qdqtool.io.files.atomic import refuse_existing
from qdqtool.io.files.progress import Warned, pass_on, stage
from qdqtool.io.files.shown import Shown
from qdqtool.io.models.load import load
from qdqtool.quantization.quantized_files import refusal_without_pairs
from qdqtool.record.record import NodeRecord, Record, TensorRecord
from qdqtool.targets.loading import load_target
from qdqtool.verbs.advice.groups import group_edits
from qdqtool.verbs.edits.pipelines import Opt
from qdqtool.verbs.pairs import Step
from qdqtool.verbs.work.from_the_start import again, command_of
from qdqtool.verbs.work.judging import Judge
from qdqtool.verbs.work.mends import Measured, Mend, Outputs, by_win, mends_of, mends_of_node
from qdqtool.verbs.work.named import bind
from qdqtool.verbs.work.texts import with_texts

if TYPE_CHECKING:
    from qdqtool.verbs.quantize import Quantize
    from qdqtool.verbs.story.explain import Explain

#: So many more than are told of are measured: what wins most is told first.
MORE = 3
#: What has more than this share of the noise is always told.
MOST = 0.5


@dataclass(frozen=True, kw_only=True)
class Told:
    """What is told of one tensor, or of a node that computes otherwise than in the float model.

    Args:
        record: what is known of it.
        cause: in a word: ``clipping``, ``rounding``, ``weight``, ``weight clipping``, ``bias``, ``shared``, ``axis``,
            ``outlier``, ``zero point``, ``boundary``, ``operator``.
        why: in a sentence.
        share: of the noise at the outputs, 0..1.
        mends: edits, the best first.
        refused: edits that cannot be made, and why.
        anew: `quantize` with one option more or less, where the model's history tells the others, the best first.
    """

    record: TensorRecord | NodeRecord
    cause: str
    why: str
    share: float
    mends: tuple[Mend, ...]
    refused: tuple[str, ...] = ()
    anew: tuple[Mend, ...] = ()

    @property
    def node(self) -> str:
        """That writes the tensor or reads the constant, or is told of itself; "" of an input of the graph."""
        return self.record.node if isinstance(self.record, TensorRecord) else self.record.name

    @property
    def wins_db(self) -> float:
        """What the best edit wins that the target takes; 0 where none does."""
        return max((mend.wins_db for mend in self.mends[:1] if mend.is_good), default=0.0)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        kind = self.record.kind if isinstance(self.record, TensorRecord) else "operator"
        return {
            "name": self.record.name, "kind": kind, "node": self.node, "cause": self.cause, "why": self.why,
            "share": self.share, "mends": [mend.to_json() for mend in self.mends],
            "anew": [mend.to_json() for mend in self.anew],
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True, repr=False)
class Explained(Shown, Warned):
    """What `explain` found.

    Args:
        told: what wins most first; in the order of the names where there are any.
        record: of all tensors and nodes.
        noise_db: SQNR of all outputs together, dB; None where they are exact.
        written: what ``undo`` wrote; "" of none.
    """

    figures: ClassVar[Mapping[str, str]] = {"sqnr_db": "noise_db", "told": "told", "written": "written"}

    told: tuple[Told, ...]
    record: Record
    noise_db: float | None
    written: str = ""

    def to_json(self) -> dict[str, Any]:
        """JSON-ready: ``told`` with ``mends``, the whole ``record``, ``sqnr_db`` of the outputs, ``written``."""
        return {
            "sqnr_db": self.noise_db, "told": [one.to_json() for one in self.told], "written": self.written or None,
            "record": self.record.to_json(),
        }  # fmt: skip


def explained(
    asked: Explain, outputs: Outputs | None = None, judge: Judge | None = None, *, is_anew: bool = True
) -> Explained:
    """See `qdqtool.verbs.story.explain.Explain.run`.

    Args:
        asked: what is asked.
        outputs: names of files, shared by what is told together.
        judge: the target that is asked for, where it has looked at the model already.
        is_anew: also quantize anew with one option more or less, which takes as long as it does.
    """
    _refuse(asked)
    with out_of_the_way() as put:
        return _explained(asked, outputs or Outputs(), judge, put, is_anew=is_anew)


@contextmanager
def out_of_the_way() -> Iterator[Callable[[], None]]:
    """Whoever calls what is yielded puts all that there is by then out of the garbage collector's way: it would look at models of
    many nodes again and again while copies of them are made. At the end all is as before."""
    gc.freeze()
    try:
        yield gc.freeze
    finally:
        gc.unfreeze()


def _explained(
    asked: Explain, outputs: Outputs, judge: Judge | None, put: Callable[[], None], *, is_anew: bool
) -> Explained:
    path = os.fspath(asked.model)
    model = load(path)
    source, ranges = _float_of(asked, model), Ranges.given(asked.ranges)
    sides = Sides.of(source, model, ranges, is_moved=False)
    put()
    data = with_texts(asked.data, source, asked.float_model or path, tokenizer=asked.tokenizer, samples=asked.samples)
    feeds = open_feeds(data, input_specs(source), samples=asked.samples, seed=asked.seed, image=asked.image)
    tested = sides.recipe.model
    if asked.target is not None and judge is None:
        judge = Judge(tested, load_target(asked.target))
    prices = priced(
        sides, feeds, floats=() if judge is None else judge.floats, threads=asked.jobs,
        progress=stage(asked.progress, "pricing", feeds.count),
    )  # fmt: skip
    pass_on([*feeds.warnings, *prices.warnings], asked.warn)
    subjects = subjects_of(sides, prices)
    moved, unknown = lives(source, model, ranges, past=sides.history)
    pass_on(unknown, asked.warn)
    record = record_of(sides, prices, subjects, path, moved)
    chosen = _named(subjects, record, asked.names) if asked.names else _worst(subjects, record, asked.worst + MORE)
    measured = Measured(sides.reference, tested, feeds, asked.jobs, judge=judge, before=prices.noise)
    if sides.history.is_prepared:
        pass_on(prepared_otherwise(source, sides.reference, next(iter(feeds)), asked.jobs), asked.warn)
    tick = stage(asked.progress, "measuring edits", len(chosen))
    told = []
    for number, subject in enumerate(chosen):
        if isinstance(subject, NodeRecord):
            mends, refused = mends_of_node(subject.name, measured, model=path)
        else:
            groups = group_edits(subject, subjects, tested, path)
            mends, refused = mends_of(subject, measured, model=path, floats=asked.float_model, more=groups)
        told.append(_told(subject, subjects, record, mends, refused, prices.noise))
        if tick is not None:
            tick(number + 1, len(chosen))
    if not asked.names:
        told = _first(told, asked.worst)
    written = _undone(told, os.fspath(asked.output), asked) if asked.undo and asked.output is not None else ""
    if is_anew and asked.float_model is not None and asked.ranges is not None:
        told = _anew(told, command_of(model, asked.float_model, asked.ranges), source, measured)
    told = [replace(one, mends=outputs.named(one.mends), anew=outputs.named(one.anew)) for one in told]
    noise = -10 * math.log10(prices.noise) if prices.noise > 0 else None
    return Explained(told=tuple(told), record=record, noise_db=noise, written=written)


def _first(told: Sequence[Told], count: int) -> list[Told]:
    """What wins most; in the last place what has most of the noise, though no edit of it alone wins as much."""
    order = sorted(told, key=lambda one: (-one.wins_db, -one.share))
    most = [one for one in order[count:] if one.share > MOST]
    return [*order[: count - len(most)], *most]


def _anew(told: Sequence[Told], made: Quantize | None, floats: ir.Model, measured: Measured) -> list[Told]:
    """With what `quantize` of ``floats``, as it ``made`` the model, would win with one option more or less."""
    if made is None:
        return list(told)
    edges = [one.record.name if "boundary" in one.record.price else "" for one in told]
    return [
        replace(one, anew=again(made, floats, one.node, measured, edge=edge)) if one.node else one
        for one, edge in zip(told, edges, strict=True)
    ]


def _refuse(asked: Explain) -> None:
    if asked.undo and asked.output is None:
        raise UsageError("--undo writes a model", hint="say where it goes: -o FILE")
    if asked.output is not None and not asked.undo:
        raise UsageError("-o is where --undo writes", hint="give --undo too")
    if asked.output is not None and not asked.overwrite:
        refuse_existing(os.fspath(asked.output), overwrite=False)


def _float_of(asked: Explain, model: ir.Model) -> ir.Model:
    """The float model; without one what the pairs of the quantized one leave."""
    if not any(True for _ in qdq_pairs(model)):
        message, hint = refusal_without_pairs(model, asked.model)
        raise UsageError(message, where=os.fspath(asked.model), hint=hint)
    if asked.float_model is not None:
        return load(asked.float_model)
    stored = [pair for pair in qdq_pairs(model) if pair.q is None]
    if stored:
        pass_on(["what rounding stored weights cost is not known without the float model (--float)"], asked.warn)
    copy = copy_model(model)
    Pipeline((make_pass("remove-qdq", {}),)).run(copy)
    return copy


def _worst(subjects: Sequence[Subject], record: Record, count: int) -> list[Subject | NodeRecord]:
    """The dearest tensors and nodes, a tensor on a bad grid before others."""
    found = worst(subjects, count)
    scores: list[tuple[float, str, Subject | NodeRecord]] = [(-one.score, one.record.name, one) for one in found]
    scores += [(-one.price["operator"], one.name, one) for one in record.nodes if one.price.get("operator")]
    return [one for *_, one in sorted(scores, key=lambda entry: entry[:2])[:count]]


def _named(subjects: Sequence[Subject], record: Record, names: Sequence[str]) -> list[Subject | NodeRecord]:
    """The quantized tensors of ``names``: a tensor, or all that a node writes and reads as constants, and what it computes.

    Raises:
        UsageError: a name is neither.
    """
    found = list[Subject | NodeRecord]()
    for name in names:
        own: list[Subject | NodeRecord] = [one for one in subjects if name in (one.record.name, one.record.node)]
        own += [one for one in record.nodes if name == one.name and one.price.get("operator")]
        if not own:
            known = {n for one in subjects for n in (one.record.name, one.record.node) if n}
            near = difflib.get_close_matches(name, sorted(known), n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else "qdqtool qdq list shows what is quantized"
            raise UsageError(f"{name!r} is no quantized tensor, and no node that has one", hint=hint)
        found += [one for one in own if one not in found]
    return found


def _told(
    subject: Subject | NodeRecord, subjects: Sequence[Subject], whole: Record,
    mends: Sequence[Mend], refused: Sequence[str], noise: float,
) -> Told:  # fmt: skip
    if isinstance(subject, NodeRecord):
        record: TensorRecord | NodeRecord = subject
        cause, why = "operator", f"{subject.op or 'it'} computes otherwise than the float model there"
        power = subject.price.get("operator", 0.0)
    else:
        record = next(one for one in whole.tensors if one.name == subject.record.name)
        power = subject.power
        cause, why = diagnosis(subject, subjects, [mend.kind for mend in by_win(mends)[:1]])
    share = power / noise if noise > 0 else 0.0
    return Told(record=record, cause=cause, why=why, share=share, mends=tuple(mends), refused=tuple(refused))


def _undone(told: Sequence[Told], output: str, asked: Explain) -> str:
    """Make the best edit of each; the file.

    Raises:
        UsageError: nothing wins.
    """
    from qdqtool.verbs.work.editing import run_and_save, with_repairs

    best = [one.mends[0] for one in told if one.mends and one.mends[0].is_good]
    if not best:
        hint = "leave nodes float: qdqtool quantize --exclude NODE"
        taken = "" if asked.target is None else f" that {load_target(asked.target).name} takes"
        raise UsageError(f"no edit that was tried wins anything{taken}", hint=hint)
    steps: list[Step] = [step for mend in best for step in mend.steps]
    inputs = (
        {}
        if asked.float_model is None
        else {"float": bind("float", os.fspath(asked.float_model), os.fspath(asked.model))}
    )
    verb = Opt(
        model=asked.model, output=output, text="", overwrite=asked.overwrite, warn=asked.warn, progress=asked.progress
    )
    pipeline = with_repairs(os.fspath(asked.model), steps, asked.warn)
    return run_and_save(verb, pipeline, inputs=inputs, allow_findings=True).output

"""What can be done about a quantized tensor that costs too much: edits, as commands, and what each wins, measured."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import QdqError
from qdq_passes.graph.edit import copy_model
from qdq_passes.graph.operators.channels import channel_axis
from qdq_passes.graph.operators.qdq_ops import is_quantization
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.pipeline.pipeline import Pipeline
from qdq_passes.pipeline.text import make_pass
from qdq_passes.select.globs import literal, literal_tensor

from qdqtool.comparison.cumulative import matched
from qdqtool.comparison.masked import may_hide, seen
from qdqtool.comparison.prices.output_noise import OutputNoise, decibels
from qdqtool.comparison.prices.refit import noise_of, per_channel, refitted
from qdqtool.comparison.prices.subjects import Subject
from qdqtool.comparison.region_model import CUTTING, Bounds, bounds_of
from qdqtool.quantization.reports import constants_of
from qdqtool.runtime.session import RUNTIME, compute
from qdqtool.runtime.taps import Taps
from qdqtool.verbs.editing import Editing
from qdqtool.verbs.edits.pipelines import Opt
from qdqtool.verbs.pairs import Step
from qdqtool.verbs.qdq.remove import Remove
from qdqtool.verbs.qdq.set import Set
from qdqtool.verbs.quantize import Quantize
from qdqtool.verbs.work.command_lines import command_line
from qdqtool.verbs.work.judging import NOTHING, Judge, Judgement

#: What an edit must win over a milder one to come before it, dB: another scale is milder than scales along an axis, these than 16
#: bits, these than no pair.
MILDER = {
    "restore": -0.1,
    "set": 0.0,
    "pow2": 0.0,
    "move": 0.1,
    "per-axis": 0.1,
    "int16": 0.5,
    "remove": 1.0,
    "undo-dpu-edits": 0.0,
    "group": 0.1,
    "group-int16": 0.6,
    "group-remove": 1.1,
}
#: What the verbs are called.
COMMANDS: dict[type, str] = {Set: "qdq set", Remove: "qdq remove", Opt: "opt", Quantize: "quantize"}
#: Where an edit is written; another one to the next name that is free.
OUTPUT, NEXT = "mended.onnx", "mended_%d.onnx"
#: A better grid that saves less of a tensor's noise is not tried.
LEAST_GAIN = 0.05
#: Stored integers whose noise is so many times what rounding the float values gives are not of these.
RESTORED = 1.5
#: 8 bits in 16.
WIDER = {ir.DataType.INT8: ir.DataType.INT16, ir.DataType.UINT8: ir.DataType.UINT16}


@dataclass(frozen=True, kw_only=True)
class Mend:
    """An edit.

    Args:
        kind: of an edit ``restore`` (integers quantized anew), ``set``, ``pow2`` (a scale for chips that shift), ``move`` (behind
            the Relu or Clip that reads it), ``per-axis``, ``int16``, ``remove`` or ``undo-dpu-edits``, of what a Concat reads
            and writes ``group`` (another scale), ``group-int16`` or ``group-remove``; of `quantize` anew
            ``exclude``, ``int16`` or ``include``, of what was left float.
        verb: that makes it.
        steps: the passes; none of `quantize`.
        wins_db: how much less noise the outputs have with it, dB; negative where they have more.
        judged: by the target, where it wins something.
    """

    kind: str
    verb: Editing | Quantize
    steps: tuple[Step, ...]
    wins_db: float = 0.0
    judged: Judgement = NOTHING

    @property
    def is_good(self) -> bool:
        """Whether it wins, and the target takes no less with it."""
        return self.wins_db > 0 and not self.judged.loses

    @property
    def command(self) -> str:
        """For a shell."""
        return command_line(COMMANDS[type(self.verb)], self.verb)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; with ``loses`` or ``gains`` where the target takes less or more with it."""
        judged = {"loses": self.judged.loses, "gains": self.judged.gains}
        told = {name: text for name, text in judged.items() if text}
        return {"kind": self.kind, "command": self.command, "wins_db": self.wins_db, **told}

    def to(self, output: str) -> Mend:
        """Written there."""
        return replace(self, verb=replace(self.verb, output=output))


class Measured:
    """The noise at the outputs of edited copies of a quantized model, on the samples of its prices.

    Args:
        reference: the float model, prepared as the quantized one was.
        model: the quantized model, with its shapes; only read.
        feeds: the samples.
        threads: threads inside an operator.
        before: the noise of ``model``.
        judge: the target that is to take the copies; None where there is none.
    """

    def __init__(
        self,
        reference: ir.Model,
        model: ir.Model,
        feeds: Iterable[Mapping[str, Array]],
        threads: int,
        *,
        before: float,
        judge: Judge | None = None,
    ) -> None:
        self.model, self.before, self.judge = model, before, judge
        self._feeds, self._threads = feeds, threads
        self._outputs = [value.name for value in reference.graph.outputs if value.name]
        taps = Taps(reference, self._outputs, threads=threads)
        self._wanted = [{name: np.asarray(array) for name, array in taps.run(feed).items()} for feed in feeds]
        taps.session.close()
        self._inputs = {"float": constants_of(reference), RUNTIME: compute}
        self.bounds = bounds_of(reference)
        masked = may_hide(reference)
        self._seen = lambda name, x, y: seen(x, y) if name in masked else y

    def tried(self, mend: Mend) -> Mend | None:
        """``mend`` with what it wins, and what the target says where it does; None where it changes nothing.

        Raises:
            QdqError: the edit cannot be made.
        """
        copy = copy_model(self.model)
        pipeline = Pipeline(tuple(make_pass(name, dict(options)) for name, options in mend.steps))
        report = pipeline.run(copy, inputs={name: self._inputs[name] for name in pipeline.needs()})
        if not report.modified:
            return None
        return self.weighed(mend, copy)

    def weighed(self, mend: Mend, edited: ir.Model) -> Mend:
        """``mend`` with what it wins and what the target says, of the model that it makes, which nobody needs any more."""
        wins = decibels(self.before) - decibels(self._noise(edited))
        judged = self.judge.judged(edited) if self.judge is not None and wins > 0 else NOTHING
        return replace(mend, wins_db=wins, judged=judged)

    def _noise(self, model: ir.Model) -> float:
        names = matched("outputs", self._outputs, [v.name for v in model.graph.outputs if v.name], [])
        inputs = [v.name for v in model.graph.inputs if v.name and v.name not in model.graph.initializers]
        taps = Taps(model, list(names.values()), threads=self._threads)
        noise = OutputNoise(names, self._seen)
        for feed, wanted in zip(self._feeds, self._wanted, strict=True):
            given = feed if set(feed) == set(inputs) else dict(zip(inputs, feed.values(), strict=True))
            found = taps.run(given)
            for name, in_model in names.items():
                noise.add(name, wanted[name], np.asarray(found[in_model]))
        taps.session.close()
        return noise.total


def mends_of(
    subject: Subject,
    measured: Measured,
    *,
    model: str,
    floats: str | os.PathLike[str] | None,
    more: Iterable[Sequence[Mend]] = (),
) -> tuple[list[Mend], list[str]]:
    """Edits of one tensor, the best first: what wins most, the milder one where two win alike; and what cannot be done, and why.

    Args:
        subject: the tensor.
        measured: tells what an edit wins.
        model: path of the quantized model.
        floats: path of the float model.
        more: edits of it with others, each in its forms.
    """
    edits = [*_edits(subject, measured.model, model, floats), *_moves(subject, measured.bounds, model), *more]
    return _tried(edits, measured)


def mends_of_node(node: str, measured: Measured, *, model: str) -> tuple[list[Mend], list[str]]:
    """Edits of a node that computes otherwise than in the float model; as `mends_of`."""
    step: Step = ("undo-dpu-edits", {"select": [literal(node)]})
    text = str(Pipeline((make_pass(step[0], dict(step[1])),)))
    return _tried([(Mend(kind=step[0], verb=Opt(model=model, output=OUTPUT, text=text), steps=(step,)),)], measured)


class Outputs:
    """Names of files for edits, each its own, of none that is there: the commands run as they stand, one after another."""

    def __init__(self) -> None:
        self._last = 0

    def named(self, mends: Iterable[Mend]) -> tuple[Mend, ...]:
        """The same edits, each to the next name."""
        return tuple(mend.to(self.next()) for mend in mends)

    def next(self) -> str:
        """The next name."""
        while True:
            self._last += 1
            name = OUTPUT if self._last == 1 else NEXT % self._last
            if not os.path.lexists(name):
                return name


def _tried(edits: Iterable[Sequence[Mend]], measured: Measured) -> tuple[list[Mend], list[str]]:
    """Of each of ``edits`` the first form, and of the next ones those that the target takes more with."""
    found, refused = list[Mend](), list[str]()
    is_taken = measured.judge is None or measured.judge.takes_all
    for forms in edits:
        tried = list[Mend]()
        for form in forms:
            if tried and is_taken and not tried[-1].judged.loses:
                break
            try:
                mend = measured.tried(form)
            except QdqError as error:
                refused.append(f"{form.kind}: {error.message}")
                continue
            if mend is not None and all(mend.judged.rank < one.judged.rank for one in tried):
                tried.append(mend)
        found += tried
    return sorted(by_win(found), key=lambda mend: mend.judged.rank), refused


def by_win(mends: Iterable[Mend]) -> list[Mend]:
    """What wins most first, the milder one where two win alike."""
    return sorted(mends, key=lambda mend: (MILDER[mend.kind] - mend.wins_db, mend.kind))


def _edits(
    subject: Subject, graph: ir.Model, model: str, floats: str | os.PathLike[str] | None
) -> Iterator[Sequence[Mend]]:
    """What can be tried, each in the forms that it has."""
    name, encoding = literal_tensor(subject.record.name), subject.pair.encoding
    assert encoding is not None
    stored, kind = subject.pair.q is None, subject.record.kind
    again = floats if stored else None
    values = subject.values if not stored or floats is not None else None  # what integers can be made of

    def set_to(kind: str, new: Encoding | None = None, dtype: str | None = None) -> Mend:
        zeros = () if new is None else tuple(int(zero) for zero in new.zero_point)
        zeros = zeros if len(set(zeros)) > 1 else zeros[:1]
        verb = Set(
            model=model, output=OUTPUT, select=(name,), scales=() if new is None else tuple(new.scale), zero_points=zeros,
            axis=None if new is None else new.axis, dtype=dtype, float_model=again,
        )  # fmt: skip
        return Mend(kind=kind, verb=verb, steps=tuple(verb.steps()))

    if values is not None:
        if again is not None and subject.noise > RESTORED * noise_of(values, encoding):
            yield [set_to("restore")]
        if subject.refit is not None and subject.gain > LEAST_GAIN:
            shifted = refitted(values, encoding, power_of_two=True)
            is_other = shifted is not None and shifted.encoding != subject.refit.encoding and shifted.gain > LEAST_GAIN
            yield [
                set_to("set", subject.refit.encoding),
                *([set_to("pow2", shifted.encoding)] if is_other and shifted is not None else []),
            ]
        axis = _axis(subject) if kind == "weight" else None
        finer = per_channel(values, encoding, axis) if axis is not None else None
        if finer is not None and finer.gain > LEAST_GAIN:
            yield [set_to("per-axis", finer.encoding)]
        wider = WIDER.get(encoding.dtype) if kind == "activation" else None
        finer = refitted(values, encoding, dtype=wider) if wider is not None else None
        if finer is not None and wider is not None:
            yield [set_to("int16", finer.encoding, wider.name.lower())]
    if kind == "activation":
        gone = Remove(model=model, output=OUTPUT, select=(name,))
        yield [Mend(kind="remove", verb=gone, steps=tuple(gone.steps_on(graph)))]


def _moves(subject: Subject, bounds: Mapping[str, Bounds], model: str) -> Iterator[Sequence[Mend]]:
    """The pair behind the Relu or Clip that reads it, on a grid for what is left there."""
    uses = list(subject.pair.output.uses())
    behind = uses[0].node.outputs[0] if len(uses) == 1 and uses[0].node.op_type in CUTTING else None
    encoding, values = subject.pair.encoding, subject.values
    name = "" if behind is None else behind.name or ""
    if behind is None or name not in bounds or encoding is None or values is None or subject.pair.q is None:
        return
    if any(is_quantization(use.node) for use in behind.uses()):
        return
    low, high = bounds[name]
    finer = refitted(np.clip(values, low, high), encoding)
    if finer is not None and finer.gain > LEAST_GAIN:
        there = finer.encoding
        steps: tuple[Step, ...] = (
            ("move-qdq", {"select": [literal_tensor(subject.record.name)], "steps": 1}),
            (
                "set-qdq",
                {
                    "select": [literal_tensor(name)], "scale": list(there.scale),
                    "zero_point": [int(zero) for zero in there.zero_point],
                },
            ),
        )  # fmt: skip
        text = str(Pipeline(tuple(make_pass(name, dict(options)) for name, options in steps)))
        yield [Mend(kind="move", verb=Opt(model=model, output=OUTPUT, text=text), steps=steps)]


def _axis(subject: Subject) -> int | None:
    """The axis of output channels of a weight, as its readers have it; None where they do not agree."""
    uses = [(use.node, use.idx) for use in subject.pair.output.uses()]
    axis = channel_axis(uses, subject.values.ndim) if uses and subject.values is not None else None
    return axis if isinstance(axis, int) else None

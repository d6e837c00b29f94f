"""What can be done about a quantized tensor that costs too much: edits, as commands, and what each wins, measured."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
from qdq_passes.errors import QdqError
from qdq_passes.graph.edit import copy_model
from qdq_passes.graph.operators.channels import channel_axis
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.pipeline.pipeline import Pipeline
from qdq_passes.pipeline.text import make_pass
from qdq_passes.select.selectors import literal

from qdqtool.comparison.cumulative import matched
from qdqtool.comparison.prices.refit import noise_of, per_channel, refitted
from qdqtool.comparison.prices.subjects import Subject
from qdqtool.quantization.reports import constants_of
from qdqtool.runtime.session import RUNTIME, compute
from qdqtool.runtime.taps import Taps
from qdqtool.verbs.edits.pipelines import Opt
from qdqtool.verbs.pairs import PairEditing, Step
from qdqtool.verbs.qdq.remove import Remove
from qdqtool.verbs.qdq.set import Set
from qdqtool.verbs.work.command_lines import command_line

#: What an edit must win over a milder one to come before it, dB: another scale is milder than scales along an axis, these than 16
#: bits, these than no pair.
MILDER = {"restore": -0.1, "set": 0.0, "per-axis": 0.1, "int16": 0.5, "remove": 1.0, "undo-dpu-edits": 0.0}
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
        kind: ``restore`` (integers quantized anew), ``set``, ``per-axis``, ``int16``, ``remove`` or ``undo-dpu-edits``.
        command: that makes it, for a shell.
        steps: the passes.
        wins_db: how much less noise the outputs have with it, dB; negative where they have more.
    """

    kind: str
    command: str
    steps: tuple[Step, ...]
    wins_db: float = 0.0


class Measured:
    """The noise at the outputs of edited copies of a quantized model, on the samples of its prices."""

    def __init__(
        self, reference: ir.Model, model: ir.Model, feeds: Iterable[Mapping[str, Array]], floats: ir.Model, threads: int
    ) -> None:
        self.model, self._feeds, self._threads = model, feeds, threads
        self._outputs = [value.name for value in reference.graph.outputs if value.name]
        taps = Taps(reference, self._outputs, threads=threads)
        self._wanted = [{name: np.asarray(array) for name, array in taps.run(feed).items()} for feed in feeds]
        taps.session.close()
        self._inputs = {"float": constants_of(floats), RUNTIME: compute}
        self.before = self._noise(model)

    def wins_db(self, steps: Sequence[Step]) -> float | None:
        """How much less noise there is after ``steps``; None where they change nothing.

        Raises:
            QdqError: the edit cannot be made.
        """
        copy = copy_model(self.model)
        pipeline = Pipeline(tuple(make_pass(name, dict(options)) for name, options in steps))
        report = pipeline.run(copy, inputs={name: self._inputs[name] for name in pipeline.needs()})
        return None if not report.modified else _db(self.before) - _db(self._noise(copy))

    def _noise(self, model: ir.Model) -> float:
        names = matched("outputs", self._outputs, [v.name for v in model.graph.outputs if v.name], [])
        inputs = [v.name for v in model.graph.inputs if v.name and v.name not in model.graph.initializers]
        taps = Taps(model, list(names.values()), threads=self._threads)
        energy, signal = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
        for feed, wanted in zip(self._feeds, self._wanted, strict=True):
            given = feed if set(feed) == set(inputs) else dict(zip(inputs, feed.values(), strict=True))
            found = taps.run(given)
            for name, in_model in names.items():
                x, y = wanted[name], np.asarray(found[in_model])
                if x.dtype.kind == "f" and x.shape == y.shape:
                    x = x.astype(np.float64)
                    with np.errstate(all="ignore"):
                        off, square = np.square(y - x), np.square(x)
                    energy[name] += float(np.sum(off, where=np.isfinite(off)))
                    signal[name] += float(np.sum(square, where=np.isfinite(square)))
        taps.session.close()
        return sum(energy[name] / signal[name] for name in names if signal[name] > 0)


def _db(noise: float) -> float:
    """Noise over signal in dB, exact as -200."""
    return 10 * math.log10(max(noise, 1e-20))


def mends_of(
    subject: Subject, measured: Measured, *, model: str, floats: str | os.PathLike[str] | None, output: str
) -> tuple[list[Mend], list[str]]:
    """Edits of one tensor, the best first: what wins most, the milder one where two win alike; and what cannot be done, and why.

    Args:
        subject: the tensor.
        measured: tells what an edit wins.
        model: path of the quantized model.
        floats: path of the float model.
        output: where a command writes.
    """
    edits = []
    for kind, verb in _verbs(subject, model, floats, output):
        steps = verb.steps_on(measured.model) if isinstance(verb, Remove) else verb.steps()
        command = command_line("qdq remove" if isinstance(verb, Remove) else "qdq set", verb)
        edits.append(Mend(kind=kind, command=command, steps=tuple(steps)))
    return _tried(edits, measured)


def mends_of_node(node: str, measured: Measured, *, model: str, output: str) -> tuple[list[Mend], list[str]]:
    """Edits of a node that computes otherwise than in the float model; as `mends_of`."""
    pass_ = make_pass("undo-dpu-edits", {"select": [literal(node)]})
    command = command_line("opt", Opt(model=model, output=output, text=str(Pipeline((pass_,)))))
    mend = Mend(kind="undo-dpu-edits", command=command, steps=(("undo-dpu-edits", {"select": [literal(node)]}),))
    return _tried([mend], measured)


def _tried(edits: Iterable[Mend], measured: Measured) -> tuple[list[Mend], list[str]]:
    found, refused = list[Mend](), list[str]()
    for edit in edits:
        try:
            won = measured.wins_db(edit.steps)
        except QdqError as error:
            refused.append(f"{edit.kind}: {error.message}")
            continue
        if won is not None:
            found.append(replace(edit, wins_db=won))
    return sorted(found, key=lambda mend: (MILDER[mend.kind] - mend.wins_db, mend.kind)), refused


def _verbs(
    subject: Subject, model: str, floats: str | os.PathLike[str] | None, output: str
) -> Iterator[tuple[str, PairEditing]]:
    name, encoding = f"tensor:{literal(subject.record.name)}", subject.pair.encoding
    assert encoding is not None
    stored = subject.pair.q is None
    again = floats if stored else None

    def set_to(new: Encoding, **more: object) -> Set:
        zeros = tuple(int(zero) for zero in new.zero_point)
        zeros = zeros if len(set(zeros)) > 1 else zeros[:1]
        return Set(
            model=model, output=output, select=(name,), scales=tuple(new.scale), zero_points=zeros, axis=new.axis,
            float_model=again, **more,  # type: ignore[arg-type]
        )  # fmt: skip

    if (
        again is not None
        and subject.values is not None
        and subject.noise > RESTORED * noise_of(subject.values, encoding)
    ):
        yield "restore", Set(model=model, output=output, select=(name,), float_model=again)
    if subject.refit is not None and subject.gain > LEAST_GAIN and (not stored or floats is not None):
        yield "set", set_to(subject.refit.encoding)
    if subject.record.kind == "weight" and subject.values is not None and (not stored or floats is not None):
        axis = _axis(subject)
        finer = per_channel(subject.values, encoding, axis) if axis is not None else None
        if finer is not None and finer.gain > LEAST_GAIN:
            yield "per-axis", set_to(finer.encoding)
    wider = WIDER.get(encoding.dtype) if subject.record.kind == "activation" else None
    if wider is not None and subject.values is not None:
        finer = refitted(subject.values, encoding, dtype=wider)
        if finer is not None:
            yield "int16", set_to(finer.encoding, dtype=wider.name.lower())
    if subject.record.kind == "activation":
        yield "remove", Remove(model=model, output=output, select=(name,))


def _axis(subject: Subject) -> int | None:
    """The axis of output channels of a weight, as its readers have it; None where they do not agree."""
    uses = [(use.node, use.idx) for use in subject.pair.output.uses()]
    axis = channel_axis(uses, subject.values.ndim) if uses and subject.values is not None else None
    return axis if isinstance(axis, int) else None

"""What a run takes on a chip, for verbs that have a model and know what runs on the NPU, or that run a split decoder."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx_ir as ir
    from qdq_passes.decoder.look.record import Phase

    from qdqtool.cost.choosing import Choice
    from qdqtool.cost.estimating import Estimated
    from qdqtool.cost.shapes import DecoderShape
    from qdqtool.llm.folder.manifest import StaticModel
    from qdqtool.llm.run.run_times import RunTime
    from qdqtool.verbs.groups import OnChip


def chip_time(model: ir.Model, asked: OnChip, *, on_cpu: Sequence[str], crossings: int) -> dict[str, Any] | None:
    """The JSON of `estimated_on_chip`."""
    found = estimated_on_chip(model, asked, on_cpu=on_cpu, crossings=crossings)
    return None if found is None else found.to_json()


def estimated_on_chip(
    model: ir.Model, asked: OnChip, *, on_cpu: Sequence[str] | None, crossings: int
) -> Estimated | None:
    """The time of one run as `estimate` says it; None where no chip is asked.

    Args:
        model: a copy is looked at.
        asked: chip, runtime, and whether data sheets will do.
        on_cpu: names of the operators that the NPU refuses; None where nobody judged.
        crossings: partitions that the model falls into.

    Raises:
        UsageError: there is no such chip, or nobody measured it.
        UnsupportedError: the model's sizes are not static.
    """
    if not asked.is_on_chip:
        return None
    assert asked.chip is not None
    from qdq_passes.graph.edit import copy_model

    from qdqtool.chips.loading import load_chip
    from qdqtool.cost.choosing import profile_for
    from qdqtool.cost.estimating import Graph, of_graph
    from qdqtool.verbs.estimate import precision_of

    choice = profile_for(
        load_chip(asked.chip),
        asked.stack,
        asked.precision or precision_of(model),
        decoder=False,
        from_specs=asked.from_specs,
    )
    return of_graph(choice, Graph.of(copy_model(model)), on_cpu=on_cpu, crossings=crossings)


def decoder_choice(
    subject: str, chip: str, stack: str, precision: str, *, rows: int = 1, from_specs: bool = False
) -> Choice:
    """The profile that answers for a decoder; it says what of ``rows`` is not in its times.

    Args:
        subject: the decoder; in its precision where none is asked and its graph is quantized.
        chip: that is asked about.
        stack: the runtime; "" for the first that was measured.
        precision: "" for that of the graph, or the first that was measured.
        rows: of a batch.
        from_specs: whether data sheets will do.

    Raises:
        UsageError: there is no such chip or precision, or nobody measured language models on it.
    """
    from qdq_passes.errors import UsageError

    from qdqtool.chips.loading import load_chip
    from qdqtool.cost.choosing import profile_for
    from qdqtool.verbs.work.decoder_shapes import decoder_precision

    if precision and precision != "float" and not any(char.isdigit() for char in precision):
        raise UsageError(f"{precision!r} is no precision", hint="write w4a16, w8a8, w4 or float")
    wanted = precision or decoder_precision(subject)
    found = profile_for(load_chip(chip), stack, wanted, decoder=True, from_specs=from_specs)
    if rows == 1:
        return found
    note = f"the times are of one row: {rows} rows at once take longer, and nobody measured by how much"
    return replace(found, notes=(*found.notes, note))


class DecoderTimes:
    """What runs of a split decoder's graphs take on a chip: the `RunTimes` of its session.

    A static runtime takes a graph's run as long wherever it is in the text. One that takes prompts as they are, and tokens behind
    any number of others, takes for a chunk what it adds to the prompt before it.

    Args:
        choice: chip and profile.
        shape: of the decoder.
        phases: those that the chip runs.
    """

    def __init__(self, choice: Choice, shape: DecoderShape, phases: Collection[Phase]) -> None:
        self._choice, self._shape, self._phases = choice, shape, phases
        self._known: dict[tuple[str, int, int, int], Estimated] = {}

    @property
    def told(self) -> dict[str, Any]:
        """Chip, runtime, precision, interval; what widens it, what the profile stands in for, what is not in its times."""
        from qdqtool.cost.decoders import PIPELINED_LINEAR

        profile, notes = self._choice.profile, list(self._choice.notes)
        if profile.form == PIPELINED_LINEAR.name and "decode" in self._phases:
            notes.append(
                f"{profile.stack} decodes on the CPU: that is what decode takes, whatever engine it is shown on"
            )
        widens = [text for phase in self._phases for text in self._estimated(phase, 1, 1, 1).prediction.widens]
        return {
            "chip": self._choice.chip.name, "stack": profile.stack, "precision": self._choice.precision, "interval": 0.8,
            "widens": list(dict.fromkeys(widens)), "notes": notes,
        }  # fmt: skip

    def of(self, model: StaticModel, start: int, end: int) -> RunTime | None:
        """The time of a run with the tokens from ``start`` up to ``end``; None of a phase that the chip does not run."""
        from qdqtool.cost.decoders import STATIC_CONTEXT
        from qdqtool.llm.run.run_times import RunTime

        if model.phase not in self._phases:
            return None
        length = model.seq_len
        if self._choice.profile.form == STATIC_CONTEXT.name:
            spans = [(1, self._estimated(model.phase, length, model.ctx_len, length))]
        elif model.phase == "decode":
            spans = [(1, self._estimated("decode", 1, end, length))]
        else:
            spans = [(1, self._estimated("prefill", end, model.ctx_len, length))]
            spans += [(-1, self._estimated("prefill", start, model.ctx_len, length))] if start else []
        last = spans[0][1].prediction.span
        us = 1000 * sum(sign * one.prediction.span.ms for sign, one in spans)
        return RunTime(us=us, low=us * last.low / last.ms, high=us * last.high / last.ms)

    def _estimated(self, phase: Phase, tokens: int, context: int, chunk: int) -> Estimated:
        from qdqtool.cost.decoders import Call
        from qdqtool.cost.estimating import of_decoder

        key = (phase, tokens, context, chunk)
        if key not in self._known:
            call = Call(phase=phase, tokens=tokens, context=context, precision=self._choice.precision, chunk=chunk)
            self._known[key] = of_decoder(self._choice, self._shape, call)
        return self._known[key]


def decoder_times(
    folder: str | os.PathLike[str], asked: OnChip, phases: Collection[Phase], *, rows: int | None = None
) -> DecoderTimes | None:
    """The times of a split decoder on a chip; None where no chip is asked.

    Args:
        folder: what `split` wrote; no weight is read.
        asked: chip, runtime, precision (that of the graphs, or of float ones the first that was measured).
        phases: those that the chip runs.
        rows: of a batch; None for the fewest that the folder has graphs of.

    Raises:
        UsageError: there is no such chip, or nobody measured language models on it.
        UnsupportedError: the graphs do not tell the decoder's shape.
    """
    if not asked.is_on_chip:
        return None
    assert asked.chip is not None
    from qdqtool.llm.folder.manifest import read_manifest
    from qdqtool.verbs.work.decoder_shapes import Lengths, decoder_shape

    path = os.fspath(folder)
    count = rows or Lengths.of(read_manifest(path)).rows
    choice = decoder_choice(path, asked.chip, asked.stack, asked.precision, rows=count, from_specs=asked.from_specs)
    return DecoderTimes(choice, decoder_shape(path), phases)


def time_line(found: dict[str, Any] | Any) -> str:
    """One line of it."""
    return (
        f"{found['chip']} with {found['stack']}, {found['precision']}: about {found['ms']:.4g} ms a run, "
        f"80 % of measurements between {found['low']:.4g} and {found['high']:.4g}"
    )

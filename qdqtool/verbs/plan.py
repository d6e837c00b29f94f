"""The verb `plan`: what a decoder takes on a chip, by precision, chunks, context and placement, and the commands that make it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, ClassVar, get_args

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.options import metadata_of, option
from qdqtool.verbs.groups import Path
from qdqtool.verbs.quantize import Quantize
from qdqtool.verbs.split import Split, lengths, size
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    from qdqtool.cost.memory_of_shape import Placement
    from qdqtool.cost.plan_page import PlanReport
    from qdqtool.cost.planning import Axis, Candidate, Question
    from qdqtool.cost.shapes import DecoderShape
    from qdqtool.record.record import Record
    from qdqtool.verbs.work.decoder_shapes import Lengths
    from qdqtool.verbs.work.planned_records import Known

#: Precision → preset and options that make it; without activations weights alone are quantized and no data is needed.
PRESETS: dict[str, tuple[str, dict[str, str]]] = {
    "w4a16": ("16a4w", {"lm_head": "int8", "kv_cache": "uint8"}),
    "w8a16": ("16a8w", {"kv_cache": "uint8"}),
    "w8a8": ("8a8w", {"kv_cache": "uint8"}),
    "w4": ("w4-g32", {"lm_head": "int8"}),
    "w8": ("w8", {}),
}
#: Contexts that `--what-if context` looks at beside those that are given, slots; context where none is given.
CONTEXTS, CONTEXT = (1024, 2048, 4096, 8192, 16384), 4096
#: What stands for a model that was not given.
NO_MODEL = "MODEL.onnx"
RANDOM = "random:8"


def duration(text: str) -> float:
    """``"1s"``, ``"800ms"``, ``"1"`` → seconds.

    Raises:
        ValueError: it is no time.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|)", text.strip().lower())
    if found is None or not float(found[1]):
        raise ValueError(f"{text!r} is no time; write 1s or 800ms")
    return float(found[1]) / (1000 if found[2] == "ms" else 1)


def axes(text: str) -> tuple[Axis, ...]:
    """``"precision,chunk"`` → the axes.

    Raises:
        ValueError: one is none.
    """
    from qdqtool.cost.planning import Axis

    names = [part.strip() for part in text.split(",")]
    if wrong := [name for name in names if name not in get_args(Axis)]:
        raise ValueError(f"{wrong[0]!r} is no axis; write {','.join(get_args(Axis))}")
    return tuple(names)  # type: ignore[arg-type]


def placements(text: str) -> tuple[Placement, ...]:
    """``"whole,prefill"`` → the placements.

    Raises:
        ValueError: one is none.
    """
    from qdqtool.cost.memory_of_shape import Placement

    names = [part.strip() for part in text.split(",")]
    if wrong := [name for name in names if name not in get_args(Placement)]:
        raise ValueError(f"{wrong[0]!r} is no placement; write {','.join(get_args(Placement))}")
    return tuple(names)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class _Source:
    """What is planned for, and what there is of it.

    Args:
        shape: of the decoder.
        path: of the model or of the folder that `split` wrote; None of a shape alone.
        graphs: what the graphs of such a folder are compiled for; None of what is not split.
        parts: that they are in.
        is_quantized: whether that folder is.
        precision: then that of its graphs; "" where they do not tell.
    """

    shape: DecoderShape
    path: str | None = None
    graphs: Lengths | None = None
    parts: int = 1
    is_quantized: bool = False
    precision: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan(Verb["PlanReport"]):
    """Say what a decoder takes on a chip, as a shape, a dynamic model, or a folder, and how to make the best of it.

    SHAPE is a name (Llama3.2-1B), a config.json, or layers=16,hidden=2048,heads=32,kv_heads=8,ffn=8192,vocab=128256.
    """

    has_stages: ClassVar[bool] = False
    examples: ClassVar[tuple[str, ...]] = (
        "plan Llama3.2-1B --chip '8 Elite' --context 4096 --prompt 200,1000 --new 256",
        "plan model.onnx --chip '8 Elite' --memory 4GB --ttft 1s --what-if precision,context",
    )

    shape: Path = field(
        kw_only=False,
        metadata=metadata_of("The decoder.", kind="argument", value="SHAPE|MODEL|DIR", use="read"),
    )
    chip: Path = field(metadata=metadata_of("The chip.", value="NAME|FILE", use="read", required=True))
    stack: str | None = option(
        None, "The runtime; by default the first that language models were measured with.", value="NAME"
    )
    from_specs: bool = option(False, "Where nobody measured, the data sheet will do.")
    context: Sequence[int] = option(
        (), f"Slots of the KV cache; by default {CONTEXT}, of a split folder its own.", value="C,…", read=lengths
    )
    prompt: Sequence[int] = option((512,), "Tokens of the prompts that come.", value="N,…", shown="512", read=lengths)
    new: int = option(256, "Tokens of an answer.", value="N", least=1, shown=True)
    memory: int | None = option(None, "Limit of memory in all, as in 8GB.", value="SIZE", read=size)
    ttft: float | None = option(
        None,
        "Limit of the time to the first token of the longest prompt, as in 1s or 800ms.",
        value="TIME",
        read=duration,
    )
    tokens_per_second: float | None = option(None, "Least rate of tokens at the end of the context.", value="RATE")
    placement: Sequence[Placement] = option(
        (),
        "Take one of these alone: whole, linear, prefill; the table has what each costs.",
        value="WHO,…",
        read=placements,
    )
    what_if: Sequence[Axis] = option(
        (),
        "Show the best at each place of these axes alone: precision, placement, chunk, context.",
        value="AXIS,…",
        read=axes,
    )
    model: Path | None = option(None, "The model of a SHAPE, for the commands.", value="MODEL", use="read")
    data: str | None = option(
        None, "Samples for the commands, as `quantize` takes them; random tokens by default.", value="D", use="read"
    )
    analyzed: Sequence[Record | Path] = option(
        (),
        "What `analyze --json-out` said of MODEL, or of a graph of DIR: what runs on the CPU there counts as that (repeat).",
        value="FILE", many=True, use="read",
    )  # fmt: skip
    html: Path | None = option(None, "Also write a page: plot, table, commands.", value="FILE", use="file")
    overwrite: bool = option(False, "Replace FILE if it exists.")

    def run(self) -> PlanReport:
        """Options, the best, the commands.

        Raises:
            QdqError: bad shape, chip, model or options; nobody measured the chip.
        """
        from qdqtool.cost.plan_page import PlanReport, plan_page
        from qdqtool.cost.planning import best_of, candidates, what_if

        source = self._source()
        known, asked = self._question(source)
        found = candidates(asked)
        best = best_of(found)
        commands, notes = ((), []) if best is None else self._commands(source, asked, best)
        notes += [] if best is None else self._beside(source, best)
        report = PlanReport(
            asked=asked, candidates=found, rows=what_if(found, self.what_if) if self.what_if else found, best=best,
            commands=commands, is_runnable=bool(commands) and (source.path or self.model) is not None,
            notes=(*_told(asked, found), *known.notes, *notes), record=known.record,
        )  # fmt: skip
        if self.html is not None:
            from qdqtool.io.files.atomic import write_whole

            write_whole(self.html, plan_page(report).encode(), overwrite=self.overwrite)
        return report

    def _question(self, source: _Source) -> tuple[Known, Question]:
        """What records say, and what is planned."""
        from qdqtool.chips.loading import load_chip
        from qdqtool.cost.choosing import profile_for
        from qdqtool.cost.planning import Limits, Question
        from qdqtool.verbs.work.planned_records import known_of

        chip = load_chip(self.chip)
        chosen = profile_for(chip, self.stack or "", source.precision, decoder=True, from_specs=self.from_specs)
        contexts = tuple(self.context) or (CONTEXT,)
        if source.graphs is not None:
            contexts = source.graphs.contexts
        elif "context" in self.what_if:
            contexts = tuple(sorted({*contexts, *CONTEXTS}))
        limits = Limits(
            memory=self.memory,
            first_ms=None if self.ttft is None else 1000 * self.ttft,
            tokens_per_second=self.tokens_per_second,
        )
        text = source.path or os.fspath(self.shape)
        known = known_of(text, self.analyzed, chip, chosen.profile, is_quantized=source.is_quantized)
        return known, Question(
            shape=source.shape, chip=chip, profile=chosen.profile, contexts=contexts,
            prompts=tuple(self.prompt), new=self.new, limits=limits,
            buckets=None if source.graphs is None else (source.graphs.chunks,), placements=tuple(self.placement),
            precisions=(source.precision,) if source.precision else (), notes=chosen.notes,
            on_cpu=known.on_cpu, times=known.times,
        )  # fmt: skip

    def _source(self) -> _Source:
        from qdqtool.llm.folder.manifest import read_manifest
        from qdqtool.verbs.work.decoder_shapes import (
            Lengths,
            decoder_of,
            decoder_precision,
            decoder_shape,
            graph_of,
            is_split,
        )

        text = decoder_of(os.fspath(self.shape))
        if not is_split(text):
            path = graph_of(text)
            return _Source(shape=decoder_shape(text), path=path if path is not None and os.path.isfile(path) else None)
        manifest = read_manifest(text)
        lengths = Lengths.of(manifest)
        if not lengths.chunks:
            raise UsageError("has no prefill graph", where=text, hint="split again with --prefill")
        return _Source(
            shape=decoder_shape(text), path=text, graphs=lengths, parts=min(len(one.parts) for one in manifest.models),
            is_quantized=bool(manifest.quantization),
            precision=decoder_precision(text) if manifest.quantization else "",
        )  # fmt: skip

    def _commands(self, source: _Source, asked: Question, best: Candidate) -> tuple[tuple[str, ...], list[str]]:
        """`split` and `quantize` as they make an option, and what is to be said of them."""
        from qdqtool.cost.decoders import STATIC_CONTEXT
        from qdqtool.verbs.work.command_lines import command_line

        if source.is_quantized:
            return (), [f"{source.path} is quantized already"]
        preset, options, notes = _preset(best.precision)
        model = source.path or (NO_MODEL if self.model is None else os.fspath(self.model))
        folder, commands = model, []
        if source.graphs is None:
            stem = os.path.splitext(os.path.basename(model))[0]
            folder = _free(f"{stem}-c{best.context}")
            split = Split(model, folder, prefill=best.chunks or (min(128, best.context),), context=(best.context,))
            if best.memory.sessions > 1:
                split = replace(split, parts=best.memory.sessions)
            commands.append(command_line("split", split))
        needs_data = "a" in best.precision
        output = _free(f"{os.path.basename(os.path.normpath(folder))}-{best.precision}")
        target = asked.chip.target if asked.profile.form == STATIC_CONTEXT.name else None
        given = {} if best.placement == "linear" else options
        quantize = Quantize(
            folder, output, preset=preset, target=target, data=(self.data or RANDOM) if needs_data else None, **given  # type: ignore[arg-type]
        )  # fmt: skip
        commands.append(command_line("quantize", quantize))
        if needs_data and self.data is None:
            notes.append(
                f"--data {RANDOM} are random tokens, good for a try alone: give a text, `plan --data text.txt`"
            )
        return tuple(commands), notes

    def _beside(self, source: _Source, best: Candidate) -> list[str]:
        """What is to be said of how an option runs, whatever makes it."""
        from qdqtool.io.files.text_table import plural

        notes, count = [], best.memory.sessions
        if source.graphs is not None and self.context:
            notes.append("contexts are those of its graphs, whatever --context says")
        if source.graphs is not None and count > source.parts:
            notes.append(
                f"its graphs are in {plural(source.parts, 'part')}, too large for a session: `split --parts {count}`"
            )
        if count > 1:
            notes.append(f"nobody measured what {count} parts take longer than one: it is in no figure")
        if best.placement == "linear":
            notes.append("attention and norms run on the CPU: `generate --arrange linear`")
        if best.placement == "prefill":
            notes.append("decoding runs on the CPU: `generate --decode-device cpu`")
        return notes


def _preset(precision: str) -> tuple[str, dict[str, str], list[str]]:
    """Preset, options, notes; the nearest where none makes the precision."""
    from qdqtool.cost.precisions import bits_of

    if precision in PRESETS:
        return *PRESETS[precision], []
    wanted = bits_of(precision)

    def distance(name: str) -> tuple[int, int]:
        weights, activations = bits_of(name)
        return abs((activations or 32) - (wanted[1] or 32)), abs(weights - wanted[0])

    near = min(PRESETS, key=distance)
    return *PRESETS[near], [f"no preset makes {precision}: the commands make {near}, which is nearest"]


def _free(name: str) -> str:
    """``name``, or with a number behind it where something is called so."""
    number, found = 1, name
    while os.path.lexists(found):
        number += 1
        found = f"{name}-{number}"
    return found


def _told(asked: Question, found: Sequence[Candidate]) -> list[str]:
    """What is to be said of the figures: where they are from, and what widens the intervals."""
    from qdq_passes.decoder.look.record import Phase

    from qdqtool.cost.decoders import Call
    from qdqtool.cost.predicting import decoder

    profile = asked.profile
    version = f" {profile.version}" if profile.version else ""
    notes = [
        *asked.notes,
        f"times of {profile.stack}{version} with 80 % intervals; memory without a compiler's own buffers",
    ]
    for precision in list(dict.fromkeys(one.precision for one in found))[:1]:
        for phase in get_args(Phase):
            call = Call(phase=phase, context=asked.contexts[0], precision=precision)
            notes += [text for text in decoder(asked.chip, profile, asked.shape, call).widens if text not in notes]
    return notes


plan = function_of(Plan)

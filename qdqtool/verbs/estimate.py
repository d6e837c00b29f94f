"""The verb `estimate`: how long a model takes on a chip, with an interval, without a run."""

from __future__ import annotations

import os
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.options import metadata_of, option
from qdqtool.verbs.groups import Path, Warns
from qdqtool.verbs.split import lengths
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from qdqtool.cost.choosing import Choice
    from qdqtool.cost.decoders import Call
    from qdqtool.cost.estimating import Estimated
    from qdqtool.cost.shapes import DecoderShape

#: What a person may ask about.
SUBJECT = metadata_of(
    "A graph (.onnx; its weights may be missing), or a decoder: its graph, a folder of it (also what `split` wrote), a name "
    "(`list shapes`), its config.json, or layers=16,hidden=2048,…",
    kind="argument",
    value="[MODEL|FOLDER|NAME]",
    use="read",
)
#: Tokens of a prompt, of a context and of a chunk where nothing tells.
PROMPT, CONTEXT, CHUNK = 128, 1024, 128
CHIP = "The chip: a name, alias or board (`list chips`), or FILE.toml."
STACK = "The runtime it runs under: qnn_dlc, genie, …; without, the first that was measured."


@dataclass(frozen=True, kw_only=True)
class Estimate(Warns, Verb[dict[str, Any]]):
    """Say how long a model takes on a chip, with an 80 % interval, by node and by what is busy; no run, no weight is read."""

    examples: ClassVar = (
        "estimate resnet50.onnx --chip 'Snapdragon 8 Elite' --stack qnn_dlc --precision w8a8",
        "estimate Llama3.2-1B --chip '8 Elite' --stack genie --prompt 200,1000 --context 4096",
        "estimate --rows ROWS.json --nets DIR -o PRED.json",
    )

    subject: str | None = field(default=None, kw_only=False, metadata=SUBJECT)
    chip: str | None = option(None, CHIP, value="NAME|FILE", use="read")
    stack: str = option("", STACK, value="NAME")
    precision: str = option(
        "", "float, w8a8, w8a16, w4a16, …; that of the model's QDQ pairs, or the first measured.", value="P"
    )
    batch: int = option(1, "Inputs of a network at once.", value="N", least=1, shown=True)
    network: str = option("", "Answer with the measured rows of the network of this name too.", value="NAME")
    prompt: Sequence[int] = option(
        (), f"Tokens of prompts to a decoder; by default {PROMPT}, at most the context.", value="N,…", read=lengths
    )
    context: Sequence[int] = option(
        (), f"Tokens of the context of a decoder; by default {CONTEXT}, of a split folder its longest.", value="N,…",
        read=lengths,
    )  # fmt: skip
    chunk: int | None = option(
        None,
        f"Tokens of a prompt that a graph takes at once; by default of a split folder its longest, else {CHUNK}, of llm.npu 256.",
        value="N", least=1,
    )  # fmt: skip
    target: str | None = option(
        None, "Judge which operators fall back to the CPU on this target.", value="NAME|FILE", use="read"
    )
    from_specs: bool = option(False, "Where nobody measured: carry over from a chip that is near, by data sheets.")
    rows: Path | None = option(
        None, "Predict many rows, JSON or CSV in the columns of measured rows; -o takes {id: {value, low, high}}.",
        value="ROWS", use="read",
    )  # fmt: skip
    nets: Path | None = option(None, "Graphs of the networks in ROWS: DIR/<model>.onnx.", value="DIR", use="read")
    output: Path | None = option(
        None, "Where the predictions of --rows go.", value="FILE", flags=("-o", "--output"), use="file"
    )
    overwrite: bool = option(False, "Replace the output where there is one.")

    def run(self) -> dict[str, Any]:
        """JSON-ready: ``estimates[]``, or with rows ``predictions {id: {value, low, high}}`` and ``failed {id: why}``.

        Raises:
            UsageError: nothing is asked, no such chip or decoder, or nobody measured that and data sheets are not allowed.
            QdqError: the graph cannot be read, or its sizes are not static.
        """
        from qdq_passes.errors import UsageError

        if self.rows is not None:
            return self._rows()
        if self.subject is None or self.chip is None:
            what = "MODEL, FOLDER or a decoder" if self.subject is None else "--chip NAME (qdqtool list chips)"
            raise UsageError("nothing to estimate", hint=f"give {what}")
        subject = os.fspath(self.subject)
        network = self._network(subject)
        found = self._decoder(subject) if network is None else self._graph(subject, network)
        return {"model": subject, "estimates": [one.to_json() for one in found]}

    def _rows(self) -> dict[str, Any]:
        from qdqtool.chips.loading import load_chip
        from qdqtool.cost.estimating import Rows
        from qdqtool.cost.reading import read_rows
        from qdqtool.io.files.artifacts import write_document
        from qdqtool.io.files.progress import pass_on

        assert self.rows is not None
        chip = None if self.chip is None else load_chip(self.chip)
        asked = Rows(nets=os.fspath(self.nets or ""), load=_without_weights, chip=chip, from_specs=self.from_specs)
        found, failed = asked.answer(read_rows(self.rows, stack=self.stack, precision=self.precision))
        reasons = sorted(set(failed.values()))
        pass_on([f"no answer to {list(failed.values()).count(why)} of the rows: {why}" for why in reasons], self.warn)
        if self.output is not None:
            write_document(self.output, found, overwrite=self.overwrite)
        return {"rows": os.fspath(self.rows), "predictions": found, "failed": failed, "output": self.output}

    def _network(self, subject: str) -> ir.Model | None:
        """The graph of a network, without weights; None of a decoder, where a runtime of language models is asked about.

        Raises:
            UsageError: the runtime runs language models alone, and the graph is none.
        """
        from qdq_passes.decoder.look.io import decoder_io
        from qdq_passes.errors import UnsupportedError, UsageError

        from qdqtool.chips.loading import load_chip
        from qdqtool.cost.choosing import kinds_of

        assert self.chip is not None
        if not subject.endswith(".onnx"):
            return None
        model = _without_weights(subject)
        kinds = kinds_of(load_chip(self.chip), self.stack, from_specs=self.from_specs)
        if "decoder" not in kinds:
            return model
        try:
            decoder_io(model)
        except UnsupportedError as error:
            if "network" in kinds:
                return model
            hint = f"a network: leave out --stack {self.stack} (qdqtool list chips); a decoder: {error.hint}"
            raise UsageError(
                f"{self.stack} runs language models, and this {error.message}", where=subject, hint=hint
            ) from error
        return None

    def _graph(self, path: str, model: ir.Model) -> list[Estimated]:
        from qdqtool.chips.loading import load_chip
        from qdqtool.cost.choosing import profile_for
        from qdqtool.cost.estimating import Graph, of_graph

        assert self.chip is not None
        precision = self.precision or precision_of(model)
        choice = profile_for(load_chip(self.chip), self.stack, precision, decoder=False, from_specs=self.from_specs)
        choice = _beside(choice, "decoders", prompt=self.prompt, context=self.context, chunk=self.chunk)
        on_cpu, crossings = (None, 0) if self.target is None else fallback_of(path, self.target)
        graph = Graph.of(model, name=self.network, batch=self.batch)
        return [of_graph(choice, graph, on_cpu=on_cpu, crossings=crossings)]

    def _decoder(self, subject: str) -> list[Estimated]:
        from qdqtool.verbs.work.chip_times import decoder_choice
        from qdqtool.verbs.work.decoder_shapes import decoder_of, decoder_shape, lengths_of

        assert self.chip is not None
        subject = decoder_of(subject)
        own = lengths_of(subject)
        rows = self.batch if own is None else max(self.batch, own.rows)
        choice = decoder_choice(subject, self.chip, self.stack, self.precision, rows=rows, from_specs=self.from_specs)
        contexts = self.context or ((CONTEXT,) if own is None else own.contexts[-1:])
        return decoder_estimates(
            _beside(choice, "networks", network=self.network, target=self.target), decoder_shape(subject),
            prompts=self.prompt or (min(PROMPT, max(contexts)),), contexts=contexts,
            chunk=self.chunk or (None if own is None else (own.chunks or (1,))[-1]),
        )  # fmt: skip


def _beside(choice: Choice, of: str, **options: object) -> Choice:
    """``choice``, which says of those of ``options`` that are given that they mean something of others."""
    given = " and ".join(f"--{name}" for name, value in options.items() if value)
    return (
        replace(choice, notes=(*choice.notes, f"{given}: of {of} alone, nothing here depends on it"))
        if given
        else choice
    )


def decoder_estimates(
    choice: Choice, shape: DecoderShape, *, prompts: Sequence[int], contexts: Sequence[int], chunk: int | None
) -> list[Estimated]:
    """A prefill for each prompt at each context, then a token at each context.

    Args:
        choice: chip and profile.
        shape: of the decoder.
        prompts: tokens of each.
        contexts: slots of the cache.
        chunk: tokens of a prefill graph; None for those of the measured rows.

    Raises:
        UsageError: a prompt is longer than the context.
    """
    from qdq_passes.errors import UsageError

    from qdqtool.cost.decoders import STATIC_CONTEXT, STREAMING, Call
    from qdqtool.cost.estimating import of_decoder

    if max(prompts) > max(contexts):
        raise UsageError(
            f"a prompt of {max(prompts)} is longer than the context", hint=f"--context {max(prompts)} or more"
        )
    is_static = choice.profile.form == STATIC_CONTEXT.name
    if choice.profile.form == STREAMING.name and chunk is not None:
        note = f"{choice.profile.stack} takes prompts as they are: nothing here depends on chunks"
        choice = replace(choice, notes=(*choice.notes, note))

    def call(phase: Any, tokens: int, context: int) -> Call:
        wide = chunk or (min(CHUNK, context) if is_static else Call(phase="prefill").chunk)
        return Call(phase=phase, tokens=tokens, context=context, precision=choice.precision, chunk=wide)

    pairs = [(prompt, context) for context in contexts for prompt in prompts if prompt <= context]
    if not is_static:
        pairs = list({prompt: (prompt, context) for prompt, context in pairs}.values())
    found = [of_decoder(choice, shape, call("prefill", prompt, context)) for prompt, context in pairs]
    return found + [of_decoder(choice, shape, call("decode", 1, context)) for context in contexts]


def _without_weights(path: str) -> ir.Model:
    from qdqtool.io.models.load import load

    return load(path, weights=False)


def precision_of(model: ir.Model) -> str:
    """``float``, or the widths that most QDQ pairs of ``model`` have: w8a16, w4a8; w4 where weights alone are quantized, also
    those that MatMulNBits has inside."""
    from collections import Counter

    from qdq_passes.graph.uses import integer_of
    from qdq_passes.qdq.look.pairs import encoding_of, qdq_pairs

    widths: dict[str, Counter[int]] = {"weight": Counter(), "activation": Counter()}
    for pair in qdq_pairs(model):
        encoding = encoding_of(pair.dq)
        if encoding is not None and pair.kind in widths:
            widths[pair.kind][encoding.dtype.bitwidth] += 1
    for node in model.graph:
        if node.op_type == "MatMulNBits":
            widths["weight"][integer_of(node, "bits", 4)] += 1
    weights, activations = ("".join(str(bits) for bits, _ in widths[kind].most_common(1)) for kind in widths)
    return (
        (f"w{weights or activations}" + (f"a{activations}" if activations else ""))
        if weights or activations
        else "float"
    )


def fallback_of(path: str, target: str) -> tuple[list[str], int]:
    """Names of the operators that ``target`` leaves to the CPU, and the partitions that remain."""
    from qdqtool.verbs.npu.analyze import Analyze

    found = Analyze(path, target=target, trials=False).run()
    return [node.name for node in found.nodes if node.is_compute and not node.is_npu], len(found.partitions)


#: What a caller in Python uses.
estimate = function_of(Estimate)

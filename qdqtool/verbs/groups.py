"""Options that several verbs have, said once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, ClassVar, Literal

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.io.feeds.image_options import ImageOptions
from qdqtool.options import NODES, SAMPLED, WRITTEN, group, metadata_of, option, python_only
from qdqtool.verbs.named_paths import NamedPath, paths_of

if TYPE_CHECKING:
    from qdq_passes.decoder.look.record import Phase

    from qdqtool.io.feeds.feeds import FeedSpec
    from qdqtool.io.feeds.sources import Part
    from qdqtool.io.files.junit import Case
    from qdqtool.io.files.progress import Progress, StageProgress

Path = str | os.PathLike[str]

#: What is put behind the name of an output for the file that an interrupted run leaves.
PARTIAL = ".partial"

#: SQNR of an output below which a model for a target is not what it was: noise of a tenth of the signal.
LEAST_DB = 10.0

#: Metadata of the first argument of most verbs.
MODEL = metadata_of(
    kind="argument", value="MODEL", use="read", help="Path, or a model in memory, which stays as it is."
)
#: Metadata of ``-o`` where it may be left out: in Python the second argument.
OUTPUT = metadata_of(
    "Where to write the model; parent folders are made.", value="FILE", use="file", flags=("-o", "--output"), before="overwrite",
    section=WRITTEN,
)  # fmt: skip
#: Metadata of ``-o`` where the command needs it.
OUTPUT_NEEDED = metadata_of(
    "Where to write the model; parent folders are made.",
    value="FILE",
    use="file",
    flags=("-o", "--output"),
    required=True,
    before="overwrite",
    section=WRITTEN,
)
_DATA = (
    "Samples: file.npz, a folder of .npz or of images, a text (.txt) of a language model, module:function, or "
    "random:N[:SEED]."
)
#: Metadata of ``--data``.
DATA = metadata_of(_DATA, value="D", use="read", before="samples", section=SAMPLED)
#: Metadata of ``--data`` where the command needs it.
DATA_NEEDED = metadata_of(_DATA, value="D", use="read", required=True)


@dataclass(frozen=True, kw_only=True)
class Warns:
    """Who is told what is likely a mistake."""

    warn: Callable[[str], None] | None = python_only(None, "Called with each warning.")


@dataclass(frozen=True, kw_only=True)
class Reports(Warns):
    """Who is told how far the work is, and what is likely a mistake."""

    progress: StageProgress | None = python_only(None, "Called with (stage, done, total).")


@dataclass(frozen=True, kw_only=True)
class StepReports:
    """Who is told how far work of one stage is."""

    has_stages: ClassVar[bool] = False

    progress: Progress | None = python_only(None, "Called with (done, total).")


@dataclass(frozen=True, kw_only=True)
class Saving:
    """How a model is written."""

    section: ClassVar[str] = WRITTEN

    overwrite: bool = option(False, "Replace FILE if it exists.", recipe=False)
    no_provenance: bool = option(
        False, "Leave out the metadata entry that says what was done, and our name as producer.", recipe=False
    )
    copy_data: bool = option(
        False, "Write a data file of its own, where weights would stay in that of MODEL beside it.", recipe=False
    )


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What becomes of errors that were there before."""

    section: ClassVar[str] = WRITTEN

    allow_findings: bool = option(False, "Save although the model has errors that it came with.", recipe=False)


@dataclass(frozen=True, kw_only=True)
class JUnit:
    """A report for continuous integration."""

    junit: Path | None = option(
        None, "Write the results as JUnit XML test cases.", value="FILE", use="file", recipe=False
    )

    def write_junit(self, suite: str, cases: Sequence[Case]) -> None:
        """Write ``cases`` where ``junit`` says."""
        from qdqtool.io.files.junit import write_junit

        if self.junit is not None:
            write_junit(self.junit, suite, cases, overwrite=True)


@dataclass(frozen=True, kw_only=True)
class Targeted(Findings):
    """The NPU that a model is for."""

    target: Path = field(
        metadata=metadata_of("The NPU.", value="NAME|FILE", use="read", listed_by="targets", required=True)
    )
    boundary: Literal["cpu", "npu"] | None = option(
        None, "Where the Q and DQ of float inputs and outputs run, where not as the target says."
    )


@dataclass(frozen=True, kw_only=True)
class OnChip:
    """The chip whose measured rows tell a time."""

    section: ClassVar[str] = "Chip"

    chip: str | None = option(
        None, "Also say how long a run takes on this chip: a name, alias or board (`list chips`), or FILE.toml.",
        value="NAME|FILE", use="read",
    )  # fmt: skip
    stack: str = option(
        "", "… under this runtime: qnn_dlc, tflite, onnx, genie, …; without, the first that was measured.", value="NAME"
    )
    precision: str = option(
        "", "… in this precision: float, w8a8, w4a16, …; without, that of the QDQ pairs.", value="P"
    )
    from_specs: bool = option(False, "… where nobody measured, carried over from a chip that is near, by data sheets.")

    @property
    def is_on_chip(self) -> bool:
        """Whether a chip is asked about.

        Raises:
            UsageError: none is, but its runtime or precision.
        """
        from qdq_passes.errors import UsageError

        if self.chip is None and (self.stack or self.precision or self.from_specs):
            raise UsageError(
                "--stack, --precision and --from-specs are of a chip", hint="give --chip NAME (qdqtool list chips)"
            )
        return self.chip is not None


def first_samples(default: int | None) -> int | None:
    """The option that says how many samples are taken, with its default; None for all."""
    return option(default, "Take the first N samples.", value="N", least=1, shown=default is not None)


@dataclass(frozen=True, kw_only=True)
class Samples:
    """How samples are taken from data."""

    section: ClassVar[str] = SAMPLED

    samples: int | None = first_samples(None)
    seed: int = option(0, "Seed of random data.", shown=True)
    image: ImageOptions | None = group(ImageOptions, prefix="image-", help="How images become inputs.", recipe=False)


@dataclass(frozen=True, kw_only=True)
class HoldsOut:
    """Samples held out for evaluation."""

    section: ClassVar[str] = SAMPLED

    hold_out: int | None = option(
        None, "Hold out every Nth sample of --data for evaluation; 0 for none. Default: 4 with learned weights or --goal.",
        value="N", least=0,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TakesHeldOut:
    """Selection of the held-out samples."""

    section: ClassVar[str] = SAMPLED

    held_out: int | None = option(
        None, "Compare only on the samples that `quantize --hold-out N` held out.", value="N", least=2
    )  # fmt: skip

    @property
    def part(self) -> Part | None:
        """These samples; None for all."""
        from qdqtool.io.feeds.sources import Part

        return None if self.held_out is None else Part(self.held_out, is_held_out=True)


@dataclass(frozen=True, kw_only=True)
class Tokenized:
    """Who makes tokens of a text."""

    section: ClassVar[str] = SAMPLED

    tokenizer: Path | None = option(
        None,
        "tokenizer.json for a text as --data, or a folder with one; by default beside the model.",
        value="FILE|DIR",
        use="read",
        recipe=False,
    )


@dataclass(frozen=True, kw_only=True)
class Working:
    """Who shares the work."""

    section: ClassVar[str] = "Work"

    jobs: int = option(
        1,
        "Processes of this machine that share the work, of one thread each. The result is the same, byte for byte.",
        value="N", least=1, shown=True, recipe=False,
    )  # fmt: skip
    cluster: str | None = option(
        None,
        "Let the workers of a Dask cluster share the work: tcp://HOST:8786, or the scheduler's file.",
        value="ADDRESS", use="read", recipe=False,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Threaded:
    """Threads of an operator."""

    jobs: int = option(
        1,
        "Threads inside an operator. Equal N gives equal bytes; with another N figures may differ in the last bit.",
        value="N", flags=("--threads", "--jobs"), least=1, shown=True, recipe=False,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Selected:
    """What the verb acts on."""

    select: Sequence[str] = option((), "What the command acts on (selector; repeat to unite).", value="SEL")


@dataclass(frozen=True, kw_only=True)
class AllowsEmpty:
    """What becomes of selectors that match nothing."""

    section: ClassVar[str] = NODES

    allow_empty: bool = option(False, "A selector that matches nothing is a warning, not an error.", recipe=False)


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How far logits may be apart."""

    tolerance: float = option(1e-4, "Largest difference, in units of the largest logit.", shown=True)


@dataclass(frozen=True, kw_only=True)
class OrtThreads:
    """Threads of onnxruntime."""

    threads: int | None = option(0, "Threads inside an operator; 0: onnxruntime's choice.", value="N", least=0)


@dataclass(frozen=True, kw_only=True)
class OnDevice:
    """What runs a language model."""

    device: str | None = option(
        None, "What runs the graphs: cpu (by default) or npusim, a simulated NPU.", value="NAME"
    )
    target: Path | None = option(None, "The NPU.", value="NAME|FILE", use="read", listed_by="targets")
    arrange: Literal["whole", "linear"] | None = option(
        None,
        "The NPU takes what it can, or linear layers, with attention and norms on the CPU; else as the target says.",
    )
    schedule: Literal["sequential", "in-order", "out-of-order"] | None = option(
        None,
        "How chunks and engines follow each other; out-of-order by default. The numbers are the same.",
    )
    prefill_device: str | None = option(None, "--device of the prefill graphs alone.", value="NAME")
    decode_device: str | None = option(None, "--device of the decode graphs alone.", value="NAME")

    @property
    def is_on_device(self) -> bool:
        """Whether a device runs any graph, not onnxruntime's CPU provider alone."""
        from qdqtool.llm.run.devices import names_plain

        return not names_plain(self.device, self.prefill_device, self.decode_device)

    @property
    def phases_on_device(self) -> tuple[Phase, ...]:
        """The phases that a device runs, not onnxruntime's CPU provider."""
        from qdqtool.llm.run.devices import names_plain

        named: dict[Phase, str | None] = {"prefill": self.prefill_device, "decode": self.decode_device}
        return tuple(phase for phase, name in named.items() if not names_plain(name or self.device))


@dataclass(frozen=True, kw_only=True)
class EvalData:
    """What a quantized model is judged on."""

    section: ClassVar[str] = SAMPLED

    eval_data: FeedSpec | None = option(
        None, "Evaluation samples, in any form of --data. Default: --data.", value="D", use="read"
    )
    eval_samples: int | None = option(
        None,
        "Judge on the first N; by default --samples (with --goal not of --eval-data), else up to 16 for SQNR, all for others.",
        value="N", least=1,
    )  # fmt: skip


_METRIC = (
    "sqnr, cosine, accuracy, map, map50, or function F of module M (or file.py): f(outputs, feeds) -> number, the higher "
    "the better."
)


@dataclass(frozen=True, kw_only=True)
class Goals(EvalData, OnChip):
    """What a quantization is to reach."""

    section: ClassVar[str] = "Goal"

    goal: str | None = option(
        None,
        "Search the cheapest quantization that reaches it: 'accuracy >= 0.99 * float', 'perplexity <= 1.02 * float'.",
        value="TEXT", recipe=False,
    )  # fmt: skip
    metric: str | None = option(None, f"The metric of --goal: {_METRIC}", value="NAME|M:F", recipe=False)
    max_ms: float | None = option(
        None, "What a run may take on --chip, in milliseconds, in the middle of its interval.", value="MS", recipe=False
    )
    budget: int = option(
        15, "Full quantizations that the search may take.", value="N", least=1, shown=True, recipe=False
    )
    save_recipe: Path | None = option(
        None, "Also write what `--recipe` replays to the same bytes.", value="FILE", use="file", recipe=False
    )
    page: Path | None = option(
        None, "Also write a page: what was tried, how it stands to the goal, what it costs, and why the rest lost.",
        value="FILE", use="file", recipe=False,
    )  # fmt: skip
    resume: Path | None = option(
        None, "Go on with what was tried before, kept in FILE; begin it where it does not exist.",
        value="FILE", use="kept", recipe=False,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Judging(EvalData, HoldsOut):
    """What variants of a quantization are judged by."""

    metric: str = option(
        "sqnr", _METRIC, value="NAME|M:F", shown=True,
    )  # fmt: skip

    def named_paths(self) -> Iterator[NamedPath]:
        """As of every verb, and the file beside the output that an interrupted run leaves."""
        yield from paths_of(self)
        output: Path | None = getattr(self, "output", None)
        if output is not None and self.resume is None:
            yield NamedPath("an interrupted run", f"{os.fspath(output)}{PARTIAL}", "kept")

    resume: Path | None = option(
        None, "Go on with the measurements in FILE; begin it where it does not exist.", value="FILE", use="kept"
    )

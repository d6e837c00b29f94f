"""The verb `compare`: cumulative, node by node, or with what a board dumped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Literal

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.options import metadata_of, option
from qdqtool.verbs.ci.output_bounds import OutputBounds
from qdqtool.verbs.groups import DATA, Path, Reports, Samples, TakesHeldOut, Threaded, Tokenized
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    from qdqtool.calibrate.ranges import Ranges
    from qdqtool.calibrate.statistics import Statistics
    from qdqtool.comparison.dumps import DumpComparison
    from qdqtool.comparison.report import Comparison, LocalComparison
    from qdqtool.io.feeds.feeds import FeedSpec
    from qdqtool.io.models.working import ModelOrPath

#: Named input of pipelines that recover accuracy.
STATISTICS = "statistics"


@dataclass(frozen=True, kw_only=True)
class Compare(
    Samples,
    TakesHeldOut,
    Tokenized,
    Threaded,
    Reports,
    OutputBounds,
    Verb["Comparison | LocalComparison | DumpComparison"],
):
    """Compare model B with the reference A on --data: SQNR, largest difference, cosine, share of equal elements; worst first.

    With --dumps what is compared is what a board computed: with A, and with B where it is given, which the board runs.
    """

    a: ModelOrPath = field(
        kw_only=False, metadata=metadata_of("The reference.", kind="argument", value="A", use="read")
    )
    b: ModelOrPath | None = field(
        kw_only=False,
        metadata=metadata_of(
            "The tested model; tensors are matched by name. None only with dumps.",
            kind="argument",
            value="[B]",
            use="read",
        ),
    )
    data: FeedSpec | None = field(kw_only=False, metadata=DATA)
    mode: Literal["cumulative", "local"] = option(
        "cumulative",
        "Both models run whole; or each node of B on the float inputs that A has there, with its error by cause.",
        shown=True,
    )
    dumps: Path | None = option(
        None, "Compare tensors that a board dumped here: .npy, .npz, .raw or .bin, by name.", value="DIR", use="read"
    )
    dumps_layout: Literal["auto", "nchw", "nhwc"] = option("auto", "Layout of dumps; nhwc: channels last.", shown=True)
    ranges: Ranges | Path | None = option(
        None,
        "With --mode local: the ranges B was quantized with; tells what moved scales cost.",
        value="FILE",
        use="read",
    )
    statistics: Statistics | Path | None = option(
        None, "With --mode local: the statistics B was smoothed with.", value="FILE", use="read"
    )
    per_slice: int | None = option(
        None, "Also compare every index of AXIS by itself (a total hides a dead slice).", value="AXIS"
    )
    tensors: Sequence[str] | None = option(
        None, "Only these inner tensors (repeat).", value="NAME", flags=("--tensor",)
    )
    min_sqnr: float | None = option(
        None, "Exit 1 when an output (a node, a dumped tensor) is below this SQNR.", value="DB"
    )

    def run(self) -> Comparison | LocalComparison | DumpComparison:
        """The comparison that ``mode`` or ``dumps`` ask for.

        Raises:
            UsageError: options that do not go together, or models that have nothing in common.
        """
        import onnx_ir as ir

        from qdqtool.calibrate.ranges import Ranges
        from qdqtool.calibrate.statistics import Statistics
        from qdqtool.comparison.cumulative import activation_pairs, compare_models
        from qdqtool.comparison.dumps import DIVERGES_DB, compare_dumps
        from qdqtool.comparison.local import compare_local
        from qdqtool.io.feeds.feeds import open_feeds
        from qdqtool.io.feeds.spec import input_specs
        from qdqtool.io.files.dumps import dumps_in
        from qdqtool.io.files.progress import pass_on, stage
        from qdqtool.io.models.load import load
        from qdqtool.verbs.work.records import comparison_record
        from qdqtool.verbs.work.texts import with_texts

        self._refuse_mixed()
        if self.data is None:
            hint = "give --data; random:8 shows whether anything is broken at all"
            raise UsageError("no data to compare on", hint=hint)
        first = self.a if isinstance(self.a, ir.Model) else load(self.a)
        self.refuse_unknown_outputs(first)
        second = self.b if self.b is None or isinstance(self.b, ir.Model) else load(self.b)
        data = with_texts(self.data, first, self.a, tokenizer=self.tokenizer, samples=self.samples)
        feeds = open_feeds(
            data, input_specs(first), samples=self.samples, seed=self.seed, image=self.image, part=self.part
        )
        ticks = stage(self.progress, "comparing", feeds.count)
        found: Comparison | LocalComparison | DumpComparison
        if self.dumps is not None:
            found = compare_dumps(
                first, second, dumps_in(self.dumps), feeds, layout=self.dumps_layout, threads=self.jobs, progress=ticks,
                diverges_below=DIVERGES_DB if self.min_sqnr is None else self.min_sqnr,
            )  # fmt: skip
        elif second is None:
            raise UsageError("there is nothing to compare with", hint="give B, or --dumps DIR")
        elif self.mode == "local":
            sums = Statistics.given(self.statistics)
            found = compare_local(
                first, second, feeds, ranges=Ranges.given(self.ranges),
                inputs=None if sums is None else {STATISTICS: sums.layers}, threads=self.jobs, progress=ticks,
            )  # fmt: skip
        else:
            found = compare_models(
                first, second, feeds, per_slice=self.per_slice, tensors=self.tensors, threads=self.jobs, progress=ticks
            )
        pass_on([*feeds.warnings, *found.warnings], self.warn)
        if activation_pairs(first):  # what differs from a quantized model is no noise of quantization
            return found
        return replace(found, record=comparison_record(found, first if second is None else second))

    def _refuse_mixed(self) -> None:
        """Refuse options that say nothing together.

        Raises:
            UsageError: the first such.
        """
        is_whole = self.dumps is None and self.mode != "local"
        if self.dumps is not None and self.mode == "local":
            raise UsageError("--dumps compares whole runs", hint="drop --mode local")
        if self.per_slice is not None and not is_whole:
            raise UsageError("--per-slice is for whole models", hint="drop --dumps and --mode local")
        if self.min_output and not is_whole:
            raise UsageError("--min-output is for whole models", hint="drop --dumps and --mode local")
        if self.tensors and not is_whole:
            raise UsageError("--tensor is for whole models", hint="drop --dumps and --mode local")
        for option_, given in (("--ranges", self.ranges), ("--statistics", self.statistics)):
            if given is not None and self.mode != "local":
                raise UsageError(f"{option_} says how B was quantized, of use node by node", hint="give --mode local")


compare = function_of(Compare)

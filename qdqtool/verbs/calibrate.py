"""The verb `calibrate`: ranges of the float tensors of a model."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, ClassVar

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.options import metadata_of, option, python_only
from qdqtool.quantization.options import MethodOptions
from qdqtool.verbs.groups import DATA, AllowsEmpty, Path, Reports, Samples, Selected, Tokenized, Working
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from qdqtool.calibrate.ranges import Ranges
    from qdqtool.io.feeds.feeds import FeedSpec
    from qdqtool.io.models.working import ModelOrPath


@dataclass(frozen=True, kw_only=True)
class Calibrate(MethodOptions, Selected, AllowsEmpty, Samples, Tokenized, Working, Reports, Verb["Ranges"]):
    """Run MODEL over --data and write the ranges of its tensors; or merge ranges: --merge A.json B.json -o R.json."""

    placed: ClassVar[Mapping[str, str]] = {"method_options": "statistics"}

    model: ModelOrPath | None = field(
        kw_only=False, metadata=metadata_of("The model.", kind="argument", value="[MODEL]", use="read")
    )
    data: FeedSpec | None = field(kw_only=False, metadata=DATA)
    method: str = option("minmax", "Calibration method.", value="NAME", listed_by="methods", shown=True)
    tensors: Sequence[str] | None = python_only(None, "Names of float graph inputs and node outputs of the main graph.")
    statistics: bool = option(False, "Keep a histogram of every tensor, also of methods that need none.")
    cache: Path | None = option(
        None, "Keep ranges here: reused for the same data, and an interrupted run goes on.", value="DIR", use="into"
    )

    def run(self) -> Ranges:
        """The ranges.

        Raises:
            QdqError: bad model, data or options; see each class's exit code.
        """
        import onnx_ir as ir

        from qdqtool.io.feeds.feeds import open_feeds
        from qdqtool.io.feeds.spec import input_specs
        from qdqtool.io.files.progress import pass_on, stage
        from qdqtool.io.models.load import load
        from qdqtool.quantization.calibrating import Calibrator
        from qdqtool.verbs.work.texts import with_texts
        from qdqtool.workers.cluster import open_workers

        if self.model is None:
            raise UsageError("no model", hint="give a model, or ranges to merge")
        if self.data is None:
            raise UsageError("no data to calibrate on", hint="give --data; see `qdqtool calibrate --help`")
        graph = self.model if isinstance(self.model, ir.Model) else load(self.model)
        tensors = self._tensors(graph)
        data = with_texts(self.data, graph, self.model, tokenizer=self.tokenizer, samples=self.samples)
        feeds = open_feeds(data, input_specs(graph), samples=self.samples, seed=self.seed, image=self.image)
        with open_workers(self.jobs, self.cluster, warn=self.warn) as workers:
            calibrator = Calibrator(
                statistics=self.statistics, cache=self.cache, workers=workers,
                progress=stage(self.progress, "calibrating", feeds.count), way_out=_left_out,
            )  # fmt: skip
            calibrator.observe(graph, feeds, tensors, self.method, self.method_options or {})
        pass_on(feeds.warnings, self.warn)
        return calibrator.found

    def _tensors(self, graph: ir.Model) -> Sequence[str]:
        """Names of what is observed.

        Raises:
            UsageError: a selector matches nothing that has a range.
        """
        from qdq_passes.select.selectors import Selector, select

        from qdqtool.runtime.taps import float_tensors

        every = float_tensors(graph) if self.tensors is None else self.tensors
        if not self.select:
            return every
        names = {v.name for v in select(graph, Selector.of(*self.select), allow_empty=self.allow_empty).values}
        chosen = [name for name in every if name in names]
        if not chosen:
            raise UsageError("--select names no float value of the main graph", hint="weights need no calibration")
        return chosen


def _left_out(model: ir.Model, names: Sequence[str]) -> str:
    """How to go on where ``names`` have no range."""
    return f"leave it out with --select {shlex.quote(' & '.join(f'!tensor:{name}' for name in names))}"


calibrate = function_of(Calibrate)

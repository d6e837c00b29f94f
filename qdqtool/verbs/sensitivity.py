"""The verb `sensitivity`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import field
from typing import TYPE_CHECKING, ClassVar, Literal

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.options import metadata_of, option
from qdqtool.verbs.groups import DATA, MODEL, Judging, Path, Selected, Working
from qdqtool.verbs.planned import Planned
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    from qdqtool.io.feeds.feeds import FeedSpec
    from qdqtool.io.models.working import ModelOrPath
    from qdqtool.search.sensitivity import Sensitivity as Found


@dataclass(frozen=True, kw_only=True)
class Sensitivity(Selected, Judging, Working, Planned, Verb["Found"]):
    """Measure which nodes of the float MODEL hurt: the figure when only one is quantized, and when only it is left out.

    Worst first. Two runs over the samples a node; with -o or --resume an interrupted run can be gone on with.
    """

    placed: ClassVar[Mapping[str, str]] = {**Planned.placed, "metric": "by", "select": "plot"}

    model: ModelOrPath = field(kw_only=False, metadata=MODEL)
    data: FeedSpec | None = field(default=None, kw_only=False, metadata=DATA)
    output: Path | None = field(
        default=None,
        kw_only=False,
        metadata=metadata_of("Where to write the figures (JSON).", value="FILE", use="file", flags=("-o", "--output")),
    )
    overwrite: bool = option(False, "Replace FILE if it exists.")
    by: Literal["node", "layer", "scope", "type"] = option("node", "What is measured together.", shown=True)
    mode: Literal["only", "without", "both"] = option("both", "Only it quantized, all without it, or both.", shown=True)
    plot: Path | None = option(None, "Also draw the figures as bars (SVG).", value="FILE", use="file")

    def run(self) -> Found:
        """The figures. What was measured so far stands beside ``output``, in ``OUTPUT.partial``.

        Raises:
            QdqError: bad model, data or options; see each class's exit code.
        """
        from qdqtool.io.files.artifacts import write_json
        from qdqtool.io.files.atomic import write_whole
        from qdqtool.io.files.progress import stage
        from qdqtool.io.models.working import opened
        from qdqtool.search.measuring import Measurements
        from qdqtool.search.sensitivity import sensitivity_of
        from qdqtool.search.sensitivity_plot import sensitivity_svg
        from qdqtool.verbs.work.searching import begin, close_journal, open_journal
        from qdqtool.workers.cluster import open_workers

        work, _ = opened(self.model)
        with open_workers(self.jobs, self.cluster, warn=self.warn) as workers, ExitStack() as ended:
            _, setting, judge = begin(self, work, self.model, workers)
            ended.callback(setting.recovering.close)
            journal = open_journal(
                "sensitivity", setting.of, output=self.output, resume=self.resume, overwrite=self.overwrite
            )
            found = sensitivity_of(
                setting,
                Measurements(baseline=setting.baseline, workers=workers, journal=journal),
                metric=judge,
                by=self.by,
                mode=self.mode,
                select=self.select,
                progress=stage(self.progress, "measuring"),
            )
        if self.plot is not None:
            write_whole(self.plot, sensitivity_svg(found).encode(), overwrite=self.overwrite)
        if self.output is not None:
            write_json(self.output, kind="sensitivity", version=1, payload=found.to_json(), overwrite=self.overwrite)
        close_journal(journal, self.output)
        return found


sensitivity = function_of(Sensitivity)

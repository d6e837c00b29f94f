"""The verb `mixed_precision`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.io.files.progress import Warned
from qdqtool.options import option
from qdqtool.verbs.groups import DATA, MODEL, OUTPUT, Findings, Judging, Path, Saving, Working
from qdqtool.verbs.planned import Planned
from qdqtool.verbs.quantize import Quantize
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    from qdqtool.io.feeds.feeds import FeedSpec
    from qdqtool.io.models.working import ModelOrPath
    from qdqtool.record.record import Record
    from qdqtool.search.mixed_precision import Mixed
    from qdqtool.search.recipe import Recipe
    from qdqtool.verbs.work.quantizing import Quantized

#: What nodes may be raised to unless it is said.
TYPES = ("int16", "fp16", "float")


@dataclass(frozen=True, kw_only=True)
class MixedQuantized(Warned):
    """What a search found, and what was made of it.

    Args:
        mixed: the search.
        recipe: what makes the chosen point again.
        quantized: the chosen point; None where the bound is not met.
    """

    mixed: Mixed
    recipe: Recipe
    quantized: Quantized | None

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; the keys of the command's contract."""
        return {"preset": self.recipe.preset, **self.mixed.to_json(), "ranges_sha256": self.recipe.ranges_sha256}


def _words(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


@dataclass(frozen=True, kw_only=True)
class MixedPrecision(Saving, Findings, Judging, Working, Planned, Verb[MixedQuantized]):
    """Raise nodes of the float MODEL out of 8 bit until a bound holds, at the least cost; quantize like that.

    The cost counts multiply-accumulates out of 8 bit and tensors that change their width, not nodes. Exit 1 with the best there
    is when the bound cannot be met.
    """

    leads: ClassVar[tuple[type, ...]] = (Saving, Findings)
    placed: ClassVar[Mapping[str, str]] = {**Planned.placed, "metric": "min_metric"}

    model: ModelOrPath = field(kw_only=False, metadata=MODEL)
    data: FeedSpec | None = field(default=None, kw_only=False, metadata=DATA)
    output: Path | None = field(default=None, kw_only=False, metadata=OUTPUT)
    min_sqnr: float | None = option(None, "Bound: SQNR of the worst output, in dB.", value="DB")
    min_metric: float | None = option(None, "Bound: figure of --metric.", value="X")
    types: Sequence[str] = option(
        TYPES,
        "What nodes may be raised to: int16, fp16, bf16, float; of these what --target takes of a node.",
        value="T,T", shown=",".join(TYPES), read=_words,
    )  # fmt: skip
    explained: Record | Path | None = option(
        None, "What `explain --json-out` found of the plain quantization: its prices say what hurts, without a run a node.",
        value="FILE", use="read", recipe=False,
    )  # fmt: skip
    recipe: Path | None = option(
        None, "Write what `quantize --recipe` replays to the same bytes.", value="FILE", use="file"
    )

    def run(self) -> MixedQuantized:
        """The search, and what was made of the cheapest point that holds the bound.

        Raises:
            UsageError: no bound, or two.
            QdqError: bad model, data or options; see each class's exit code.
        """
        from qdqtool.calibrate.fingerprint import model_sha256
        from qdqtool.io.models.working import opened
        from qdqtool.search.allowed_precisions import allowed_precisions
        from qdqtool.search.measuring import Measurements
        from qdqtool.search.node_groups import node_groups
        from qdqtool.search.precision_search import Search
        from qdqtool.verbs.work.searching import begin, chip_of, close_journal, open_journal, priced_record, recipe_of
        from qdqtool.workers.cluster import open_workers

        bound = self._bound()
        precisions = self._types()
        work, _ = opened(self.model)
        fingerprint = model_sha256(work)
        with open_workers(self.jobs, self.cluster, warn=self.warn) as workers, ExitStack() as ended:
            asked, setting, judge = begin(self, work, self.model, workers, precisions=precisions)
            ended.callback(setting.recovering.close)
            journal = open_journal(
                "mixed-precision", setting.of, output=self.output, resume=self.resume, overwrite=self.overwrite
            )
            raisable = node_groups(setting.model, setting.plan, follow=True)
            found = Search(
                setting=setting,
                measurements=Measurements(baseline=setting.baseline, workers=workers, journal=journal),
                metric=judge,
                bound=bound,
                precisions=precisions,
                allowed=allowed_precisions(setting.baseline, raisable, precisions, chip_of(self)),
                record=None if self.explained is None else priced_record(self.explained, raisable),
                progress=self.progress,
            ).run()
        chosen = found.chosen
        made = recipe_of(asked, chosen.point, chosen.measured, metric=judge.name, bound=bound, model_sha256=fingerprint)
        if not found.met:
            return MixedQuantized(mixed=found, recipe=made, quantized=None)
        done = Quantize(
            self.model, self.output, recipe=made, preset=self.preset, data=asked.data, image=self.image,
            tokenizer=self.tokenizer, ranges=setting.baseline.ranges if self.ranges is not None else None,
            statistics=self.statistics, allow_empty=self.allow_empty, allow_findings=self.allow_findings,
            overwrite=self.overwrite, no_provenance=self.no_provenance, copy_data=self.copy_data,
            cache=self.cache, progress=self.progress, warn=self.warn,
        ).run()  # fmt: skip
        made = replace(made, ranges_sha256=done.quantization.ranges.sha256)
        if self.recipe is not None:
            made.write(self.recipe, overwrite=self.overwrite)
        close_journal(journal, self.output)
        return MixedQuantized(mixed=found, recipe=made, quantized=done)

    def _bound(self) -> float:
        """The bound."""
        if self.min_sqnr is not None and (self.min_metric is not None or self.metric != "sqnr"):
            hint = "a search has one bound: --min-sqnr, or --metric and --min-metric"
            raise UsageError("--min-sqnr and --metric together", hint=hint)
        bound = self.min_sqnr if self.min_sqnr is not None else self.min_metric
        if bound is None:
            hint = "give --min-sqnr DB, or --metric module:function and --min-metric X"
            raise UsageError("no bound to hold", hint=hint)
        if bound != bound:
            raise UsageError("the bound is no number", hint="give for example --min-sqnr 30")
        return bound

    def _types(self) -> tuple[str, ...]:
        """``types``, cheapest first."""
        from qdqtool.search.variants import RAISED

        hint = f"it takes {', '.join(RAISED)}"
        for name in self.types:
            if name not in RAISED:
                raise UsageError(f"nothing is raised to {name!r}", where="--types", hint=hint)
        if not self.types:
            raise UsageError("no types to raise nodes to", where="--types", hint=hint)
        return tuple(name for name in RAISED if name in self.types)


mixed_precision = function_of(MixedPrecision)

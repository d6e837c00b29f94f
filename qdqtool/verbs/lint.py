"""The verb `lint`: what `check --data` says of the values that a model takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.options import option
from qdqtool.verbs.groups import DATA, MODEL, Reports, Samples, Threaded, Tokenized
from qdqtool.verbs.planned import Planned
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    import onnx_ir as ir
    from qdq_passes.core.findings import Finding

    from qdqtool.io.feeds.feeds import FeedSpec
    from qdqtool.io.models.working import ModelOrPath
    from qdqtool.presets.preset import Preset

#: Whose grids a float model is looked at on.
PRESET = "xint8"


@dataclass(frozen=True, kw_only=True)
class Linted(Samples, Tokenized, Threaded, Reports):
    """On which grids values are looked at."""

    preset: str | Preset | None = option(
        None,
        "Grids to look at the values of a float model on; xint8 with --data. A model with pairs has its own.",
        value="NAME|FILE", use="read", before="tokenizer",
    )  # fmt: skip
    exclude: Sequence[str] = option(
        (), "Nodes that would stay float (selector; repeat to unite).", value="SEL", before="tokenizer"
    )


@dataclass(frozen=True, kw_only=True)
class Lint(Linted, Verb["list[Finding]"]):
    """Where a grid of integers hurts: Concats of unlike branches, functions too steep, slices that become constants."""

    model: ModelOrPath = field(kw_only=False, metadata=MODEL)
    data: FeedSpec | None = field(default=None, kw_only=False, metadata=DATA)

    def run(self) -> list[Finding]:
        """The findings; of weights alone where there are no data.

        Raises:
            QdqError: bad model, data or preset; see each class's exit code.
        """
        import onnx_ir as ir
        from qdq_passes.graph.edit import copy_model

        from qdqtool.io.feeds.feeds import open_feeds
        from qdqtool.io.feeds.spec import input_specs
        from qdqtool.io.files.progress import pass_on, stage
        from qdqtool.io.models.load import load
        from qdqtool.lints.find import find_lints
        from qdqtool.lints.observe import context_of_float, context_of_quantized
        from qdqtool.verbs.work.texts import with_texts

        work = copy_model(self.model) if isinstance(self.model, ir.Model) else load(self.model)
        feeds = None
        if self.data is not None:
            given = with_texts(self.data, work, self.model, tokenizer=self.tokenizer, samples=self.samples)
            feeds = open_feeds(given, input_specs(work), samples=self.samples, seed=self.seed, image=self.image)
        ticks = stage(self.progress, "observing", None if feeds is None else feeds.count)
        if has_grids(work):
            if self.preset is not None or self.exclude:
                pass_on(["the model has pairs: its own grids are looked at, not those of a preset"], self.warn)
            facts = context_of_quantized(work, feeds, threads=self.jobs, progress=ticks)
        else:
            plan = Planned(preset=self.preset or PRESET, exclude=self.exclude).plan()
            facts = context_of_float(work, plan, feeds, threads=self.jobs, progress=ticks)
        if feeds is not None:
            pass_on(feeds.warnings, self.warn)
        return find_lints(facts)


def has_grids(model: ir.Model) -> bool:
    """Whether ``model`` is quantized, so that its own grids are looked at."""
    from qdq_passes.qdq.look.pairs import half_pairs, qdq_pairs

    return bool(qdq_pairs(model) or half_pairs(model))


lint = function_of(Lint)

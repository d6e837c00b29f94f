"""Cut the part of MODEL between values out as a model of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.options import option
from qdqtool.verbs.editing import Edit, PipelineEditing
from qdqtool.verbs.verb import function_of

if TYPE_CHECKING:
    from qdq_passes.pipeline.pipeline import Pipeline


@dataclass(frozen=True, kw_only=True)
class Extract(PipelineEditing, Edit):
    """Cut the part of MODEL between values out as a model of its own."""

    inputs: Sequence[str] = option((), "Values that become inputs (repeat, or separate by commas).", value="NAME")
    outputs: Sequence[str] = option((), "Values that become outputs (repeat, or separate by commas).", value="NAME")

    def pipeline(self) -> Pipeline:
        """The pass."""
        from qdq_passes.clean.extract_subgraph import ExtractSubgraph
        from qdq_passes.pipeline.pipeline import Pipeline

        ends = ([name for text in texts for name in text.split(",") if name] for texts in (self.inputs, self.outputs))
        inputs, outputs = map(tuple, ends)
        if not inputs and not outputs:
            hint = "give --inputs or --outputs; `qdqtool match MODEL 'tensor:*'` lists values"
            raise UsageError("nothing to cut at", hint=hint)
        return Pipeline((ExtractSubgraph(inputs=inputs, outputs=outputs),))


extract = function_of(Extract)

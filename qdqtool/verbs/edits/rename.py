"""Rename values (inputs and outputs included), nodes or symbolic dimensions."""

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
class Rename(PipelineEditing, Edit):
    """Rename values (inputs and outputs included), nodes or symbolic dimensions."""

    values: Sequence[str] = option(
        (), "Rename a value, input or output (repeat).", value="OLD=NEW", flags=("--value", "--tensor")
    )
    nodes: Sequence[str] = option((), "Rename a node (repeat).", value="OLD=NEW", flags=("--node",))
    dims: Sequence[str] = option((), "Rename a symbolic dimension (repeat).", value="OLD=NEW", flags=("--dim",))

    def pipeline(self) -> Pipeline:
        """The pass."""
        from qdq_passes.clean.rename import Rename as Pass
        from qdq_passes.pipeline.pipeline import Pipeline

        if not (self.values or self.nodes or self.dims):
            raise UsageError("nothing to rename", hint="give --value, --node or --dim OLD=NEW")
        return Pipeline((Pass(values=tuple(self.values), nodes=tuple(self.nodes), dims=tuple(self.dims)),))


rename = function_of(Rename)

"""Make dynamic dimensions static, and infer the shapes that follow."""

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
class FixShapes(PipelineEditing, Edit):
    """Make dynamic dimensions static, and infer the shapes that follow."""

    dims: Sequence[str] = option((), "Size of a dynamic dimension (repeat).", value="NAME=N", flags=("--dim",))
    shapes: Sequence[str] = option(
        (), "Shape of an input (repeat).", value="INPUT=1x3x224x224", flags=("--input-shape",)
    )

    def pipeline(self) -> Pipeline:
        """The pass."""
        from qdq_passes.clean.fix_shapes import FixShapes as Pass
        from qdq_passes.pipeline.pipeline import Pipeline

        if not (self.dims or self.shapes):
            raise UsageError("no shape given", hint="give --dim N=1 or --input-shape x=1x3x224x224")
        return Pipeline((Pass(dims=tuple(self.dims), shapes=tuple(self.shapes)),))


fix_shapes = function_of(FixShapes)

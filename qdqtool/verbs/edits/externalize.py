"""Move the tensors of MODEL into a data file beside OUTPUT (or back with --inline); nothing else changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.options import option
from qdqtool.verbs.editing import Edit, Editing
from qdqtool.verbs.verb import function_of

if TYPE_CHECKING:
    from qdqtool.verbs.work.editing import Saved


@dataclass(frozen=True, kw_only=True)
class Externalize(Editing, Edit):
    """Move the tensors of MODEL into a data file beside OUTPUT (or back with --inline); nothing else changes."""

    threshold: int = option(1024, "Smallest tensor moved.", value="BYTES", least=0, shown=True)
    inline: bool = option(False, "The other way: put all tensors into the model file.")

    def run(self) -> Saved:
        """What was written."""
        from qdq_passes.pipeline.pipeline import Pipeline

        from qdqtool.verbs.work.editing import run_and_save

        external: Literal["never", "always"] = "never" if self.inline else "always"
        return run_and_save(self, Pipeline(), external=external, threshold=self.threshold, allow_findings=True)


externalize = function_of(Externalize)

"""The verb `simplify`."""

from __future__ import annotations

from dataclasses import dataclass, field

from qdqtool.options import option
from qdqtool.verbs.editing import Edit, Editing
from qdqtool.verbs.groups import OUTPUT, Path
from qdqtool.verbs.verb import function_of


@dataclass(frozen=True, kw_only=True)
class Simplify(Editing, Edit):
    """Fold constants, drop what is unused or does nothing; Q and DQ stay, outputs stay bit for bit the same."""

    output: Path | None = field(default=None, kw_only=False, metadata=OUTPUT)
    fold_floats: bool = option(False, "Also fold float arithmetic (rounded as onnx's reference does, not bit-exact).")

    def pipeline(self) -> str:
        """The passes."""
        fold = "fold-constants{what=all}" if self.fold_floats else "fold-constants"
        return f"infer-shapes,{fold},remove-identity,merge-transposes,remove-unused,sort,infer-shapes"


simplify = function_of(Simplify)

"""Convert MODEL to another version of the default operator set."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.options import option
from qdqtool.verbs.editing import Edit, Editing
from qdqtool.verbs.verb import function_of


@dataclass(frozen=True, kw_only=True)
class ConvertOpset(Editing, Edit):
    """Convert MODEL to another version of the default operator set."""

    version: int = option(21, "Opset wanted.", flags=("--opset", "--version"), least=7, shown=True)

    def pipeline(self) -> str:
        """The pass."""
        return f"convert-opset{{version={self.version}}}" if self.version != 21 else "convert-opset"


convert_opset = function_of(ConvertOpset)

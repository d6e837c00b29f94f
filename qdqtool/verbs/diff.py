"""The verb `diff`."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.options import metadata_of
from qdqtool.verbs.groups import Path
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    from qdqtool.comparison.difference import Difference


@dataclass(frozen=True, kw_only=True)
class Diff(Verb["list[Difference]"]):
    """Compare two models by name: nodes, attributes, weights, inputs, outputs, encodings; exit 1 when they differ."""

    a: Path = field(kw_only=False, metadata=metadata_of("A model.", kind="argument", value="A", use="read"))
    b: Path = field(kw_only=False, metadata=metadata_of("Another model.", kind="argument", value="B", use="read"))

    def run(self) -> list[Difference]:
        """What is different."""
        from qdqtool.comparison.difference import differences
        from qdqtool.io.models.load import load

        return list(differences(load(self.a), load(self.b)))


diff = function_of(Diff)

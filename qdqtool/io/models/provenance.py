"""Provenance: by which pipeline a model was made, noted in the model itself. No clock, no command line, no machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qdqtool.io.files.artifacts import canonical_json

#: In the model's metadata_props: a JSON list, one entry per command, the oldest first.
PROVENANCE = "qdqtool.provenance"


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """One command that changed the model.

    Args:
        pipeline: canonical text of the pipeline.
        inputs: (name, hex SHA-256) of what the pipeline read: the source model, and each named input.
        tool: name and version of the tool, empty when it does not matter.
    """

    pipeline: str
    inputs: tuple[tuple[str, str], ...] = ()
    tool: str = ""

    def to_json(self) -> dict[str, Any]:
        """JSON form; ``tool`` only when given."""
        entry: dict[str, Any] = {"inputs": dict(self.inputs), "pipeline": self.pipeline}
        return {**entry, "tool": self.tool} if self.tool else entry


def history(metadata: Mapping[str, str]) -> list[Any]:
    """The entries in a model's metadata; a text that is no JSON list counts as one entry."""
    text = metadata.get(PROVENANCE)
    if text is None:
        return []
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        return [text]
    return entries if isinstance(entries, list) else [entries]


def appended(metadata: Mapping[str, str], entry: Provenance) -> str:
    """The text for `PROVENANCE` with ``entry`` behind what ``metadata`` already tells."""
    return canonical_json([*history(metadata), entry.to_json()])

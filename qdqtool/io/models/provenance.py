"""Provenance: by which pipeline a model was made, noted in the model itself. No clock, no command line, no machine.

What has an entry is ours: its producer is qdqtool, and the entry says who made what was changed."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.numerics.documents import json_of

from qdqtool.io.files.artifacts import canonical_json

#: In the model's metadata_props: a JSON list, one entry per command, the oldest first.
PROVENANCE = "qdqtool.provenance"
#: `producer_name` of what we write.
PRODUCER = "qdqtool"


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """One command that changed the model.

    Args:
        pipeline: canonical text of the pipeline.
        inputs: (name, hex SHA-256) of what the pipeline read: the source model, and each named input.
        tool: name and version of the tool, empty when it does not matter.
        producer: name and version of what had written the model, empty where that is not known or us.
        idle: names of the passes that may change what the model computes, and changed nothing.
    """

    pipeline: str
    inputs: tuple[tuple[str, str], ...] = ()
    tool: str = ""
    producer: str = ""
    idle: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON form; ``tool``, ``producer`` and ``idle`` only when given."""
        said = {"tool": self.tool, "producer": self.producer}
        return {
            "inputs": dict(self.inputs),
            "pipeline": self.pipeline,
            **{key: text for key, text in said.items() if text},
            **({"idle": list(self.idle)} if self.idle else {}),
        }


@functools.cache
def own_version() -> str:
    """The version of qdqtool; empty where it runs from its sources without being installed."""
    try:
        return version(PRODUCER)
    except PackageNotFoundError:
        return ""


def history(metadata: Mapping[str, str]) -> list[Any]:
    """The entries in a model's metadata; a text that is no JSON list counts as one entry."""
    text = metadata.get(PROVENANCE)
    if text is None:
        return []
    try:
        entries = json_of(text)
    except ValueError:
        return [text]
    return entries if isinstance(entries, list) else [entries]


def appended(metadata: Mapping[str, str], entry: Provenance) -> str:
    """The text for `PROVENANCE` with ``entry`` behind what ``metadata`` already tells."""
    return canonical_json([*history(metadata), entry.to_json()])


def named_after(producer: str, release: str, entry: Provenance) -> Provenance:
    """``entry`` with what had written the model before, its name and release, where that was not us."""
    return entry if producer == PRODUCER else replace(entry, producer=f"{producer} {release}".strip())

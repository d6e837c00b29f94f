"""JSON schemas of what commands print with ``--json``, one file each: ``quantize.json``, ``qdq-list.json`` of `qdqtool qdq list`.

``python docs/make_schemas.py`` writes them."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from qdq_passes.numerics.documents import json_of


def names() -> list[str]:
    """Return the commands that have a schema, with a dash in place of the blank, sorted."""
    return sorted(file.name.removesuffix(".json") for file in files(__name__).iterdir() if file.name.endswith(".json"))


def schema(command: str) -> dict[str, Any]:
    """Return the schema of the document that ``command`` prints, as ``"qdq list"``."""
    text = (files(__name__) / f"{command.replace(' ', '-')}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json_of(text)
    return found

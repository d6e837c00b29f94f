"""One-line summaries of what is registered, for lists and ``--help``.

Those of our own passes, methods, presets, targets, namings, devices and commands are in ``summaries.json``, so that listing them
imports none. ``python docs/make_summaries.py`` writes that file. What the file lacks, and what ``--path``, ``QDQTOOL_PATH`` or
another package adds, is loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import cache

from qdq_passes.core.registry import Entry

#: The table: kind → name → summary.
FILE = os.path.join(os.path.dirname(__file__), "summaries.json")
#: Roots of our own packages: everything in them is in the table.
_OWN = ("qdqtool.", "qdq_passes.")
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(FILE)))


def summary_of(kind: str, entry: Entry, load: Callable[[], str]) -> str:
    """The summary of ``entry``.

    Args:
        kind: which registry it is of.
        entry: what is registered.
        load: reads the summary from the loaded object, where the table has none.
    """
    known = stored().get(kind, {}).get(entry.name) if is_own(entry) else None
    return load() if known is None else known


def is_own(entry: Entry) -> bool:
    """Whether ``entry`` is a module or a file of our own packages."""
    return entry.origin.startswith((*_OWN, os.path.join(_ROOT, "")))


@cache
def stored() -> Mapping[str, Mapping[str, str]]:
    """The table."""
    with open(FILE, encoding="utf-8") as file:
        found: dict[str, dict[str, str]] = json.load(file)
    return found

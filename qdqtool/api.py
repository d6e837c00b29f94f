"""Every verb as a function, also those that `qdqtool` itself has no room for: ``qdqtool.api.calibrate``, `lint`, `memory_plan`.

A verb is what a file of `qdqtool.verbs` makes with a line ``split = function_of(Split)``. It is loaded when it is first used; its
options are the fields of its class. Beside them stands what they take and give: `load`, `save`, `Feeds`, `Quantized`, …"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qdqtool import verbs

_VERB = re.compile(r"^(\w+) = function_of\(", re.MULTILINE)


def _found() -> Iterator[tuple[str, str]]:
    for folder in map(Path, verbs.__path__):
        for file in sorted(folder.rglob("*.py")):
            module = ".".join((verbs.__name__, *file.relative_to(folder).with_suffix("").parts))
            for name in _VERB.findall(file.read_text(encoding="utf-8")):
                yield name, module


#: The module of each verb.
VERBS = dict(_found())
#: The module of what they take and give.
_BESIDE = {
    "DEFAULT_PRESET": "qdqtool.verbs.planned",
    "Feeds": "qdqtool.io.feeds.feeds",
    "Quantized": "qdqtool.verbs.work.quantizing",
    "QuantizedFolder": "qdqtool.verbs.work.quantizing_decoders",
    "Warn": "qdqtool.io.files.progress",
    "load": "qdqtool.io.models.load",
    "save": "qdqtool.io.models.save",
}


def __getattr__(name: str) -> Any:
    """The verb called ``name``, or what stands beside the verbs."""
    module = VERBS.get(name) or _BESIDE.get(name)
    if module is None:
        raise AttributeError(f"module 'qdqtool.api' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted([*VERBS, *_BESIDE])

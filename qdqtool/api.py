"""Every verb as a function, also those that `qdqtool` itself has no room for: `qdqtool.api.calibrate`, `lint`, `memory_plan`.

Each is loaded when it is first used; its options are the fields of the class of its name, in `qdqtool.verbs`."""

from __future__ import annotations

import importlib
from typing import Any

_FOLDERS = {
    "qdqtool.verbs": (
        "calibrate", "check", "compare", "diff", "generate", "inspect", "lint", "match", "mixed_precision", "perplexity",
        "quantize", "sensitivity", "split", "verify",
    ),
    "qdqtool.verbs.edits": ("convert_opset", "externalize", "extract", "fix_shapes", "opt", "rename", "simplify"),
    "qdqtool.verbs.encodings": ("convert_encodings", "export_encodings", "import_encodings"),
    "qdqtool.verbs.npu": ("analyze", "compile", "lower", "memory_plan", "simulate"),
}  # fmt: skip

#: The module of each verb.
VERBS = {name: f"{folder}.{name}" for folder, names in _FOLDERS.items() for name in names}


def __getattr__(name: str) -> Any:
    """The verb called ``name``."""
    if name not in VERBS:
        raise AttributeError(f"module 'qdqtool.api' has no attribute {name!r}")
    return getattr(importlib.import_module(VERBS[name]), name)

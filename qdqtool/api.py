"""Every verb as a function, also those that `qdqtool` itself has no room for: `qdqtool.api.calibrate`, `lint`, `memory_plan`.

Each is loaded when it is first used; its options are the fields of the class of its name, in `qdqtool.verbs`."""

from __future__ import annotations

import importlib
from typing import Any

VERBS = frozenset({
    "analyze", "calibrate", "check", "compare", "compile", "convert_encodings", "convert_opset", "diff", "export_encodings",
    "externalize", "extract", "fix_shapes", "generate", "import_encodings", "inspect", "lint", "lower", "match", "memory_plan",
    "mixed_precision", "opt", "perplexity", "quantize", "rename", "sensitivity", "simplify", "simulate", "split", "verify",
})  # fmt: skip


def __getattr__(name: str) -> Any:
    """The verb called ``name``."""
    if name not in VERBS:
        raise AttributeError(f"module 'qdqtool.api' has no attribute {name!r}")
    return getattr(importlib.import_module(f"qdqtool.verbs.{name}"), name)

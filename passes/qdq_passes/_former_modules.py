"""Modules by the names that the documentation once gave them: passes of others import them so."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

#: Name that passes of others may import → the module it is.
FORMER = {
    "qdq_passes.analysis": "qdq_passes.graph",
    "qdq_passes.analysis.uses": "qdq_passes.graph.uses",
    "qdq_passes.core.edit": "qdq_passes.graph.edit",
    "qdq_passes.core.select": "qdq_passes.select.selectors",
}


class _Former(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Asked last, for modules that nobody else finds."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name in FORMER else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        now = importlib.import_module(FORMER[module.__name__])
        module.__dict__.update({k: v for k, v in vars(now).items() if not k.startswith("__")})
        module.__path__ = []  # `qdq_passes.analysis` stands for a package


def install() -> None:
    """Let the import system ask for former names, once."""
    if not any(isinstance(finder, _Former) for finder in sys.meta_path):
        sys.meta_path.append(_Former())

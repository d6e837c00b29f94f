"""Modules by the names that the documentation once gave them: passes of others import them so."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, cast

from qdq_passes._lazy_dataclass import dataclass

if TYPE_CHECKING:
    from importlib.abc import Loader


@dataclass(frozen=True)
class _Former:
    """Asked last, for modules that nobody else finds. A finder and a loader by its methods: `importlib.abc` is slow to import.

    Args:
        now: name that passes of others may import → the module it is.
    """

    now: Mapping[str, str]

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, cast("Loader", self)) if name in self.now else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        now = importlib.import_module(self.now[module.__name__])
        module.__dict__.update({k: v for k, v in vars(now).items() if not k.startswith("__")})
        module.__path__ = []  # ``qdq_passes.analysis`` stands for a package


def install(now: Mapping[str, str]) -> None:
    """Let the import system find the modules of today under the names that ``now`` gives them; a second time does nothing."""
    former = _Former(now)
    if former not in sys.meta_path:
        sys.meta_path.append(former)

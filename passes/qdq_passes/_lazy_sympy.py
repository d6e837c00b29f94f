"""Defers ``sympy`` (and ``onnx_ir._symbolic_shapes``, which uses it at import) until an attribute of it is read.

``onnx_ir._core`` imports sympy at the top, yet only arithmetic on symbolic dimensions needs it; importing it is most of the
cost of ``import onnx_ir``. Import this module before onnx_ir. Nothing happens when onnx_ir is already imported.

The loader of the standard library (``importlib.util.LazyLoader``) has no lock before CPython 3.13: threads that touch the
module together may see it half executed. ``_DeferredModule`` executes it once, under a re-entrant lock, and lets other
threads wait; re-entrant because sympy imports itself while it is executed.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import threading
import types
from typing import Any

DEFERRED = ("sympy", "onnx_ir._symbolic_shapes")
_lock = threading.RLock()


class _DeferredModule(types.ModuleType):
    """A module that is executed at the first attribute access. Afterwards it is an ordinary module."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("__class__", "__spec__", "__name__", "__loader__", "__dict__"):
            return types.ModuleType.__getattribute__(self, name)
        with _lock:
            if object.__getattribute__(self, "__class__") is _DeferredModule:
                _execute(self)
        return getattr(self, name)


class _Executing(types.ModuleType):
    """State while the module's own code runs: its thread (which holds the lock) sees it bare, every other thread waits."""

    def __getattribute__(self, name: str) -> Any:
        with _lock:
            return types.ModuleType.__getattribute__(self, name)


def _execute(module: types.ModuleType) -> None:
    """Run the module's code under the lock; a failing import leaves the module deferred, so that the error is seen again."""
    spec = object.__getattribute__(module, "__dict__")["__spec__"]
    object.__setattr__(module, "__class__", _Executing)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        object.__setattr__(module, "__class__", _DeferredModule)
        raise
    object.__setattr__(module, "__class__", types.ModuleType)


def _defer(name: str) -> None:
    spec = importlib.util.find_spec(name) if "." not in name else _find_in_parent(name)
    if spec is None or spec.loader is None:
        return
    module = _DeferredModule(name)
    namespace = object.__getattribute__(module, "__dict__")
    namespace.update(__spec__=spec, __loader__=spec.loader, __package__=spec.parent, __file__=spec.origin)
    if spec.submodule_search_locations is not None:
        namespace["__path__"] = spec.submodule_search_locations
    sys.modules[name] = module


def _find_in_parent(name: str) -> importlib.machinery.ModuleSpec | None:
    """The spec of ``parent.child`` without importing the parent package."""
    parent, _, _ = name.partition(".")
    parent_spec = importlib.util.find_spec(parent)
    if parent_spec is None or parent_spec.submodule_search_locations is None:
        return None
    return importlib.machinery.PathFinder.find_spec(name, parent_spec.submodule_search_locations)


def install() -> None:
    """Put the deferred modules in place, unless onnx_ir or the module itself is there already."""
    if "onnx_ir" in sys.modules:
        return
    for name in DEFERRED:
        if name not in sys.modules:
            _defer(name)


install()

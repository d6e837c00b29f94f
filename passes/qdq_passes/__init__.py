"""qdq_passes: rewriting passes over ONNX graphs, with QuantizeLinear/DequantizeLinear pairs as first-class objects.

Public names are loaded when first used; importing the package only puts the deferral of sympy in place."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import qdq_passes._lazy_sympy  # noqa: F401  (must run before anything imports onnx_ir)

if TYPE_CHECKING:
    from qdq_passes.core.base import Change, Keeps, Pass, skip
    from qdq_passes.graph.dump import dump
    from qdq_passes.pipeline.pipeline import Hook, Pipeline, parse_pipeline, run_pipeline
    from qdq_passes.surgeon.bridge import from_gs, surgeon_pass, to_gs
    from qdq_passes.verification.rules import verify

_WHERE = {
    "Change": "base",
    "Keeps": "base",
    "Pass": "base",
    "skip": "base",
    "dump": "dump",
    "Hook": "pipeline",
    "Pipeline": "pipeline",
    "parse_pipeline": "pipeline",
    "run_pipeline": "pipeline",
    "from_gs": "surgeon",
    "surgeon_pass": "surgeon",
    "to_gs": "surgeon",
    "verify": "verify",
}

__all__ = [
    "Change",
    "Hook",
    "Keeps",
    "Pass",
    "Pipeline",
    "dump",
    "from_gs",
    "parse_pipeline",
    "run_pipeline",
    "skip",
    "surgeon_pass",
    "to_gs",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'qdq_passes' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"qdq_passes.core.{_WHERE[name]}"), name)
    globals()[name] = value
    return value

"""qdq_passes: rewriting passes over ONNX graphs, with QuantizeLinear/DequantizeLinear pairs as first-class objects.

What authors of passes import is here, and stays here when files move. Names are loaded when first used; importing the package
only puts the deferral of sympy in place."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import qdq_passes._lazy_sympy  # noqa: F401  (must run before anything imports onnx_ir)
from qdq_passes import _former_modules

_former_modules.install(
    {
        "qdq_passes.analysis": "qdq_passes.graph",
        "qdq_passes.analysis.uses": "qdq_passes.graph.uses",
        "qdq_passes.core.edit": "qdq_passes.graph.edit",
        "qdq_passes.core.select": "qdq_passes.select.selectors",
        "qdq_passes.numerics.rounding": "qdq_passes.recover.look.rounding",
    }
)

if TYPE_CHECKING:
    from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
    from qdq_passes.core.registry import add_path
    from qdq_passes.graph import edit, uses
    from qdq_passes.graph.dump import dump
    from qdq_passes.pipeline.pipeline import Hook, Pipeline, parse_pipeline, run_pipeline
    from qdq_passes.qdq.look.pairs import qdq_pairs
    from qdq_passes.select.selectors import ALL, Selector, select_nodes, select_values
    from qdq_passes.surgeon.bridge import from_gs, surgeon_pass, to_gs
    from qdq_passes.verification.rules import verify

#: Public name → the module that defines it; a module stands for itself.
_WHERE = {
    "ALL": "qdq_passes.select.selectors",
    "Change": "qdq_passes.core.base",
    "EXACT": "qdq_passes.core.base",
    "Hook": "qdq_passes.pipeline.pipeline",
    "Keeps": "qdq_passes.core.base",
    "Pass": "qdq_passes.core.base",
    "Pipeline": "qdq_passes.pipeline.pipeline",
    "Selector": "qdq_passes.select.selectors",
    "add_path": "qdq_passes.core.registry",
    "dump": "qdq_passes.graph.dump",
    "edit": "qdq_passes.graph",
    "from_gs": "qdq_passes.surgeon.bridge",
    "parse_pipeline": "qdq_passes.pipeline.pipeline",
    "qdq_pairs": "qdq_passes.qdq.look.pairs",
    "run_pipeline": "qdq_passes.pipeline.pipeline",
    "select_nodes": "qdq_passes.select.selectors",
    "select_values": "qdq_passes.select.selectors",
    "skip": "qdq_passes.core.base",
    "surgeon_pass": "qdq_passes.surgeon.bridge",
    "to_gs": "qdq_passes.surgeon.bridge",
    "uses": "qdq_passes.graph",
    "verify": "qdq_passes.verification.rules",
}

__all__ = [
    "ALL", "Change", "EXACT", "Hook", "Keeps", "Pass", "Pipeline", "Selector", "add_path", "dump", "edit", "from_gs",
    "parse_pipeline", "qdq_pairs", "run_pipeline", "select_nodes", "select_values", "skip", "surgeon_pass", "to_gs", "uses",
    "verify",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'qdq_passes' has no attribute {name!r}")
    where = _WHERE[name]
    is_module = name in ("edit", "uses")
    value = importlib.import_module(f"{where}.{name}") if is_module else getattr(importlib.import_module(where), name)
    globals()[name] = value
    return value

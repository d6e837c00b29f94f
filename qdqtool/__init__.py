"""qdqtool: edit, quantize and check ONNX models for NPUs.

The verbs of the command line as functions, with the same option names. They are loaded when first used, so that importing the
package is cheap. (Calibration alone is `qdqtool.api.calibrate`: the name ``qdqtool.calibrate`` belongs to the package.)"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import qdq_passes  # noqa: F401  (defers sympy; must run before anything imports onnx_ir)

if TYPE_CHECKING:
    from qdq_passes.pipeline.pipeline import run_pipeline
    from qdq_passes.surgeon.bridge import from_gs, to_gs

    from qdqtool.api import (
        analyze,
        compare,
        compile,  # noqa: A004  (the verb is called what the command is called)
        convert_encodings,
        export_encodings,
        generate,
        import_encodings,
        lower,
        mixed_precision,
        quantize,
        sensitivity,
        simulate,
        split,
    )
    from qdqtool.io.models.load import load
    from qdqtool.io.models.save import save

_WHERE = {
    "analyze": "qdqtool.api",
    "compare": "qdqtool.api",
    "compile": "qdqtool.api",
    "convert_encodings": "qdqtool.api",
    "export_encodings": "qdqtool.api",
    "from_gs": "qdq_passes.surgeon.bridge",
    "generate": "qdqtool.api",
    "import_encodings": "qdqtool.api",
    "load": "qdqtool.io.models.load",
    "lower": "qdqtool.api",
    "mixed_precision": "qdqtool.api",
    "quantize": "qdqtool.api",
    "run_pipeline": "qdq_passes.pipeline.pipeline",
    "save": "qdqtool.io.models.save",
    "sensitivity": "qdqtool.api",
    "simulate": "qdqtool.api",
    "split": "qdqtool.api",
    "to_gs": "qdq_passes.surgeon.bridge",
}

__all__ = [
    "analyze", "compare", "compile", "convert_encodings", "export_encodings", "from_gs", "generate", "import_encodings",
    "load", "lower", "mixed_precision", "quantize", "run_pipeline", "save", "sensitivity", "simulate", "split", "to_gs",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'qdqtool' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value

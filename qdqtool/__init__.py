"""qdqtool: edit, quantize and check ONNX models for NPUs.

The verbs of the command line as functions, with the same option names. They are loaded when first used, so that importing the
package is cheap. (Calibration alone is ``qdqtool.api.calibrate``: the name ``qdqtool.calibrate`` belongs to the package.)"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from qdqtool import interrupts

if interrupts.is_command():
    interrupts.listen()

import qdq_passes  # noqa: F401  (defers sympy; must run before anything imports onnx_ir)
from qdq_passes import _former_modules

_former_modules.install(
    {
        "qdqtool.calibrate.cluster": "qdqtool.workers.cluster",
        "qdqtool.llm.devices": "qdqtool.llm.run.devices",
    }
)

if TYPE_CHECKING:
    from qdq_passes.surgeon.bridge import from_gs, to_gs

    from qdqtool.io.models.load import load
    from qdqtool.io.models.save import save
    from qdqtool.runtime.session import run_pipeline
    from qdqtool.verbs.compare import compare
    from qdqtool.verbs.deploy import deploy
    from qdqtool.verbs.encodings.convert_encodings import convert_encodings
    from qdqtool.verbs.encodings.export_encodings import export_encodings
    from qdqtool.verbs.encodings.import_encodings import import_encodings
    from qdqtool.verbs.generate import generate
    from qdqtool.verbs.mixed_precision import mixed_precision
    from qdqtool.verbs.npu.analyze import analyze
    from qdqtool.verbs.npu.compile import compile  # noqa: A004  (the verb is called what the command is called)
    from qdqtool.verbs.npu.lower import lower
    from qdqtool.verbs.npu.simulate import simulate
    from qdqtool.verbs.quantize import quantize
    from qdqtool.verbs.sensitivity import sensitivity
    from qdqtool.verbs.split import split
    from qdqtool.verbs.story.explain import explain
    from qdqtool.verbs.story.report import report

_ELSEWHERE = {
    "from_gs": "qdq_passes.surgeon.bridge",
    "load": "qdqtool.io.models.load",
    "run_pipeline": "qdqtool.runtime.session",
    "save": "qdqtool.io.models.save",
    "to_gs": "qdq_passes.surgeon.bridge",
}

__all__ = [
    "analyze", "compare", "compile", "convert_encodings", "deploy", "explain", "export_encodings", "from_gs", "generate",
    "import_encodings", "load", "lower", "mixed_precision", "quantize", "report", "run_pipeline", "save", "sensitivity",
    "simulate", "split", "to_gs",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'qdqtool' has no attribute {name!r}")
    module = importlib.import_module(_ELSEWHERE.get(name, "qdqtool.api"))
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

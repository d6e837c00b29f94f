"""The public verbs in Python: what the commands do, with the same option names. The only place where two workflows meet."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from qdqtool.api.calibrating import calibrate
from qdqtool.api.comparing import compare
from qdqtool.api.quantizing import DEFAULT_PRESET, Quantized, planned, planned_for, quantize
from qdqtool.api.texts import is_text
from qdqtool.io.feeds.feeds import Feeds
from qdqtool.io.files.progress import Warn
from qdqtool.io.models.load import load
from qdqtool.io.models.save import save
from qdqtool.io.models.working import opened, provenance_of, refuse_errors

if TYPE_CHECKING:
    from qdqtool.api.linting import lint
    from qdqtool.api.memory_planning import memory_plan
    from qdqtool.api.mixing import mixed_precision
    from qdqtool.api.quantizing_decoders import QuantizedFolder, planned_for_folder
    from qdqtool.api.ranking import sensitivity
    from qdqtool.encodings.verbs import convert_encodings, export_encodings, import_encodings
    from qdqtool.llm.folder.folders import split
    from qdqtool.llm.run.running import generate
    from qdqtool.npu.analyzing import analyze
    from qdqtool.npu.simulate import simulate
    from qdqtool.npu.verbs import compile, lower  # noqa: A004  (the verb is called what the command is called)

#: Verbs that live elsewhere, loaded when first used: those on encodings alone are a sixth of all that `quantize` would load.
_ELSEWHERE = {
    **dict.fromkeys(("convert_encodings", "export_encodings", "import_encodings"), "qdqtool.encodings.verbs"),
    **dict.fromkeys(("compile", "lower"), "qdqtool.npu.verbs"),
    "analyze": "qdqtool.npu.analyzing",
    "generate": "qdqtool.llm.run.running",
    "lint": "qdqtool.api.linting",
    "memory_plan": "qdqtool.api.memory_planning",
    "mixed_precision": "qdqtool.api.mixing",
    "sensitivity": "qdqtool.api.ranking",
    **dict.fromkeys(("QuantizedFolder", "planned_for_folder"), "qdqtool.api.quantizing_decoders"),
    "split": "qdqtool.llm.folder.folders",
    "simulate": "qdqtool.npu.simulate",
}


def __getattr__(name: str) -> Any:
    """The verbs of `_ELSEWHERE`."""
    if name not in _ELSEWHERE:
        raise AttributeError(f"module 'qdqtool.api' has no attribute {name!r}")
    value = getattr(importlib.import_module(_ELSEWHERE[name]), name)
    globals()[name] = value
    return value


__all__ = [
    "DEFAULT_PRESET", "Feeds", "Quantized", "QuantizedFolder", "Warn", "analyze", "calibrate", "compare", "compile",
    "convert_encodings", "export_encodings", "generate", "import_encodings", "is_text", "lint", "load", "lower",
    "memory_plan", "mixed_precision", "opened", "planned", "planned_for", "planned_for_folder", "provenance_of", "quantize",
    "refuse_errors", "save", "sensitivity", "simulate", "split",
]  # fmt: skip

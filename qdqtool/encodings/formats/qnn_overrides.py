"""``--quantization_overrides`` of QNN's converters: rows as in AIMET 0.6.1, without a version.

A row may leave out what the converter can compute: with ``min`` and ``max`` only, or ``bitwidth`` only, it asks for an encoding
without giving one. Nothing stands at the top level but the two sections."""

from __future__ import annotations

from qdqtool.encodings.entries import Encodings, Json
from qdqtool.encodings.formats.aimet_0_6_1 import sections
from qdqtool.encodings.formats.fields import HINTS
from qdqtool.encodings.scale_axes import Values

NAME = "qnn"


def write(encodings: Encodings, values: Values | None) -> dict[str, Json]:
    """The document."""
    hints: dict[str, Json] = {HINTS: encodings.hints} if encodings.hints else {}
    return {**sections(encodings, values, NAME), **encodings.extra, **hints}

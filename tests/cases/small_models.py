"""Models from ONNX text, for tests. IR 10, opset 21 unless the text says otherwise."""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir

from qdqtool.io.models.load import model_of

HEADER = '<ir_version: 10, opset_import: ["" : 21, "com.acme" : 1]>'


def model(text: str) -> ir.Model:
    """The model of a graph (and functions) in ONNX text."""
    text = text.strip()
    return model_of(onnx.parser.parse_model(text if text.startswith("<") else f"{HEADER}\n{text}"))

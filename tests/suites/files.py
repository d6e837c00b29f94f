"""The one place where the suite meets qdqtool's reading and writing of files."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from qdqtool.io.models import save as saving
from qdqtool.io.models.load import load
from qdqtool.io.models.save import save


def loaded(path: Path) -> ir.Model:
    """What `qdqtool.load` makes of the file."""
    return load(path)


def saved(model: ir.Model, path: Path) -> bytes:
    """What `qdqtool.save` writes to ``path``."""
    save(model, path)
    return path.read_bytes()


def to_bytes(model: ir.Model) -> bytes:
    """The serialized model; the same bytes for the same model."""
    return saving.to_bytes(saving.serialize(model))

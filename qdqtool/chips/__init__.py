"""Chips as data: `<vendor>/<chip>.toml`, what a chip is, and what was measured on it under each runtime."""

from __future__ import annotations

from qdq_passes.core.toml_registry import TomlRegistry

#: Registry of chips, by the name of their files.
CHIPS = TomlRegistry("chips", "qdqtool.chips", nested=True)

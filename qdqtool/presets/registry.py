"""Where presets are looked up by name."""

from __future__ import annotations

from qdq_passes.core.toml_registry import TomlRegistry

PRESETS = TomlRegistry("presets", "qdqtool.presets")

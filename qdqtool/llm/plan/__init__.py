"""What a split will be: shapes, parts, names, schedules."""

from __future__ import annotations

from qdq_passes.core.toml_registry import TomlRegistry

#: Where naming profiles are looked up by name.
NAMINGS = TomlRegistry("namings", "qdqtool.llm.plan.namings")

"""The selector language: nodes and values by name, operator, scope, role, layer and path."""

from __future__ import annotations

from qdq_passes.select.selectors import ALL, Selector, select_nodes, select_values

__all__ = ["ALL", "Selector", "select_nodes", "select_values"]

"""Attributes of a node that may be missing, or refer to those of a function: then the default holds."""

from __future__ import annotations

import onnx_ir as ir


def integers_of(node: ir.Node, attribute: str) -> list[int]:
    """A list attribute of ``node``; empty where it has none."""
    found = node.attributes.get(attribute)
    return [] if found is None or found.is_ref() else list(found.as_ints())


def integer_of(node: ir.Node, attribute: str, default: int) -> int:
    """An integer attribute of ``node``."""
    found = node.attributes.get(attribute)
    return default if found is None or found.is_ref() else found.as_int()


def float_of(node: ir.Node, attribute: str, default: float) -> float:
    """A float attribute of ``node``."""
    found = node.attributes.get(attribute)
    return default if found is None or found.is_ref() else found.as_float()


def text_of(node: ir.Node, attribute: str, default: str) -> str:
    """A text attribute of ``node``."""
    found = node.attributes.get(attribute)
    return default if found is None or found.is_ref() else found.as_string()

"""Angles of rotary embeddings stay float in quantized decoders."""

from __future__ import annotations

import onnx_ir as ir
from qdq_passes.select.selectors import Selector, select_nodes

from qdqtool.quantization.plan import Plan

#: What makes the angles of rotary embeddings: they reach the length of the context, and a grid over them has no step for the
#: turn of one position (0.004 rad in 16 bit at 256 positions, 1 rad in 8 bit).
ANGLES = ("before:op:Cos", "before:op:Sin")


def without_angles(plan: Plan, model: ir.Model) -> Plan:
    """``plan``, the angles of rotary embeddings left float where ``model`` computes them of positions alone."""
    tokens = select_nodes(model, Selector.of("role:embedding", "role:mlp"), allow_empty=True)
    found = [text for text in ANGLES if _hits(model, text) and not _hits(model, text) & tokens]
    return plan.excluding(*found) if found else plan


def _hits(model: ir.Model, text: str) -> set[ir.Node]:
    return select_nodes(model, Selector.of(text), allow_empty=True)

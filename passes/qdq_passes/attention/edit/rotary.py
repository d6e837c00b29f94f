"""Rotary position embedding in primitive operators.

    y₁ = x₁·cos(pθ) − x₂·sin(pθ),  y₂ = x₂·cos(pθ) + x₁·sin(pθ)

x₁, x₂ are the two halves of the first R elements of a head, or (interleaved) its even and odd ones; the rest is kept."""

from __future__ import annotations

import onnx_ir as ir

from qdq_passes.core.base import Keeps
from qdq_passes.graph.build import Site

BOUNDED = Keeps(
    "bounded",
    bound=2.0**-9,
    why="each result is the sum of two products, rounded once or three times: 3·2^-11 of float16, 3·2^-24 of float32",
)


def rotate(
    site: Site, x: ir.Value, cos: ir.Value, sin: ir.Value, *, size: int, rotated: int, interleaved: bool, rank: int = 4
) -> ir.Value:
    """``x`` [… , size] of ``rank`` dimensions turned by angles whose cosines and sines are [… , rotated / 2], to be broadcast."""
    head = x if rotated == size else site.slice(x, -1, 0, rotated)
    if interleaved:
        first, second = site.slice(head, -1, 0, rotated, 2), site.slice(head, -1, 1, rotated, 2)
    else:
        first, second = site.slice(head, -1, 0, rotated // 2), site.slice(head, -1, rotated // 2, rotated)
    low = site("Sub", site("Mul", first, cos), site("Mul", second, sin))
    high = site("Add", site("Mul", second, cos), site("Mul", first, sin))
    if interleaved:
        pairs = site("Concat", site.unsqueeze(low, rank), site.unsqueeze(high, rank), axis=-1)
        turned = site.reshape(pairs, [*[0] * (rank - 1), rotated])
        parts = [turned]
    else:
        parts = [low, high]
    if rotated != size:
        parts.append(site.slice(x, -1, rotated, size))
    return site("Concat", *parts, name="Rotated", axis=-1) if len(parts) > 1 else parts[0]

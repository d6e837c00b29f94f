"""Which head of the cache a head of an attention reads: keys and values of few heads, repeated for many queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from qdq_passes.graph.operators.moved_axes import Moved, indices_along, is_whole, sources_of


@dataclass(frozen=True)
class KeyHeads:
    """An operand of an attention as heads of a value before it.

    Args:
        source: [B, G, C, D], or [B, G, D, C].
        heads: of each head of the attention, the head of ``source``.
        is_turned: whether the last two axes of ``source`` change places.
        scales: each element is multiplied so: Mul and Div by one number, in their order.
    """

    source: ir.Value
    heads: tuple[int, ...]
    is_turned: bool
    scales: tuple[ir.Node, ...]


def key_heads(value: ir.Value, heads: int, sizes_of: Callable[[ir.Value], list[int] | None]) -> KeyHeads:
    """The earliest value of four dimensions that has the ``heads`` of ``value`` [B, H, .., ..], each once or for a group."""
    best = KeyHeads(value, tuple(range(heads)), False, ())
    count = heads
    for moved in sources_of(value, sizes_of):
        sizes = sizes_of(moved.source) or []
        if len(sizes) == 4 and len(moved.axes) == 4 and sizes[1] <= count:
            found = _read(moved, sizes)
            if found is not None and len(found.heads) == heads:
                best, count = found, sizes[1]
    return best


def _read(moved: Moved, sizes: list[int]) -> KeyHeads | None:
    batch, head, *last = moved.axes
    indices = indices_along(head, 1)
    if indices is None or not is_whole(batch, 0, sizes[0]):
        return None
    for order in ((2, 3), (3, 2)):
        if all(is_whole(factors, axis, sizes[axis]) for factors, axis in zip(last, order, strict=True)):
            return KeyHeads(moved.source, tuple(indices), order == (3, 2), moved.scales)
    return None

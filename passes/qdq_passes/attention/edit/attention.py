"""Scaled dot-product attention in primitive operators.

    scores = cap·tanh(scale·QKᵀ / cap) + bias,  Y = softmax(scores)·V

Q [B, N, S, D], K [B, N/G, T, D], V [B, N/G, T, E]; G queries share a key. Masks are biases of 0 and the lowest finite number."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import onnx_ir as ir

from qdq_passes.core.base import Keeps
from qdq_passes.graph.build import Site

BOUNDED = Keeps(
    "bounded",
    bound=2.0**-8,
    why="scores of float32 are sums of D products in another order, D·2^-24 of scores up to 2^4: e^δ − 1 ≤ 2^-12 for D ≤ 2^8; "
    "float16 scores up to 2^2 round by 2^-10, their weights by 2^-11, the sum by 2^-11",
)


def split_heads(site: Site, x: ir.Value, heads: int, size: int | None = None) -> ir.Value:
    """[B, S, heads·size] → [B, heads, S, size]."""
    return site.transpose(site.reshape(x, [0, 0, heads, size or -1]), 0, 2, 1, 3)


def merge_heads(site: Site, x: ir.Value, width: int | None = None) -> ir.Value:
    """[B, heads, S, size] → [B, S, heads·size = width]."""
    return site.reshape(site.transpose(x, 0, 2, 1, 3), [0, 0, width or -1])


def repeat_heads(site: Site, x: ir.Value, heads: int, groups: int, size: int) -> ir.Value:
    """[B, heads / groups, T, size] → [B, heads, T, size]: each head ``groups`` times."""
    if groups == 1:
        return x
    spread = site("Expand", site.unsqueeze(x, 2), site.constant([1, 1, groups, 1, 1]))
    return site.reshape(spread, [0, heads, -1, size])


def attend(
    site: Site, query: ir.Value, key: ir.Value, value: ir.Value, *, scale: float, dtype: ir.DataType,
    biases: Sequence[ir.Value] = (), softcap: float = 0.0, sink: ir.Value | None = None, guard: bool = False,
    softmax: ir.DataType | None = None,
) -> ir.Value:  # fmt: skip
    """The attention of heads that are as many in all three.

    Args:
        site: where.
        query: [B, N, S, D].
        key: [B, N, T, D].
        value: [B, N, T, E].
        scale: factor of the scores.
        dtype: element type of all.
        biases: added to the scores one after the other, to be broadcast to [B, N, S, T].
        softcap: bound of the scores, 0 for none.
        sink: a score per row that takes part in the softmax alone, [B, N, S, 1].
        guard: rows that see nothing are 0, not NaN.
        softmax: element type of the softmax where it is another one.

    Returns:
        [B, N, S, E].
    """
    scaled = site("Mul", query, site.constant(scale, dtype, "scale"), name="Scaled")
    scores = site("MatMul", scaled, site.transpose(key, 0, 1, 3, 2), name="Scores")
    if softcap:
        cap = site.constant(softcap, dtype, "softcap")
        scores = site("Mul", site("Tanh", site("Div", scores, cap)), cap, name="Capped")
    for bias in biases:
        scores = site("Add", scores, bias, name="Masked")
    if softmax not in (None, dtype):
        scores = site.cast(scores, softmax)
    if sink is not None:
        scores = site(
            "Concat", scores, sink if softmax in (None, dtype) else site.cast(sink, softmax), name="Sink", axis=-1
        )
    weights = site("Softmax", scores, axis=-1)
    if sink is not None:
        weights = site.slice(weights, -1, 0, -1)
    if guard:
        weights = site("Where", site("IsNaN", weights), site.constant(0, softmax or dtype, "zero"), weights)
    if softmax not in (None, dtype):
        weights = site.cast(weights, dtype)
    return site("MatMul", weights, value, name="Attended")


def lowest(dtype: ir.DataType) -> float:
    """The lowest finite number of ``dtype``."""
    return float(ml_dtypes.finfo(dtype.numpy()).min)  # type: ignore[no-untyped-call]


def bias_of(site: Site, allowed: ir.Value, dtype: ir.DataType, low: float | None = None) -> ir.Value:
    """0 where ``allowed`` [boolean], else ``low``, the lowest number of ``dtype`` by default."""
    hidden = site.constant(lowest(dtype) if low is None else low, dtype, "hidden")
    return site("Where", allowed, site.constant(0, dtype, "zero"), hidden, name="Mask")


def causal(site: Site, rows: ir.Value, keys: ir.Value, window: int = 0) -> ir.Value:
    """Which of ``keys`` [T] each of ``rows`` [… , S, 1] sees, boolean: up to itself, the last ``window`` of them (0: all)."""
    allowed = site("LessOrEqual", keys, rows)
    if not window:
        return allowed
    near = site("Greater", keys, site("Sub", rows, site.constant(np.int64(window))))
    return site("And", allowed, near)


def key_of_length(past: ir.Value | None, present: ir.Value | None, query: ir.Value, axis: int) -> tuple[object, ...]:
    """Equal for attentions of as many old and new rows: sizes or names of past and present [B, heads, rows, D], where those are
    not known that of ``query`` along ``axis``."""
    old, total = size_of(past, 2), size_of(present, 2)
    is_known = past is not None and isinstance(old, int | str) and isinstance(total, int | str)
    return (old, total) if is_known else (old, size_of(query, axis))


def size_of(value: ir.Value | None, axis: int) -> object:
    """Size of ``value`` along ``axis``, a number or a name, as part of a key; ``value`` itself where it has neither."""
    size = value.shape[axis] if value is not None and value.shape is not None else None
    known = size if isinstance(size, int) else size.value if size is not None else None
    return value if known is None else known

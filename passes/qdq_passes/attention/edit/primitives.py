"""Attention, normalizations and rotary position embedding in primitive operators, or as the operator of the opset.

    attention: scores = cap·tanh(scale·QKᵀ / cap) + bias,  Y = softmax(scores)·V
    RMS:    y = x/√(mean(x²) + ε)·γ
    layer:  y = (x − mean(x))/√(mean((x − mean(x))²) + ε)·γ + β
    rotary: y₁ = x₁·cos(pθ) − x₂·sin(pθ),  y₂ = x₂·cos(pθ) + x₁·sin(pθ)

Q [B, N, S, D], K [B, N/G, T, D], V [B, N/G, T, E]; G queries share a key. Masks are biases of 0 and the lowest finite number.
The mean is that of float32 where x is float16 or bfloat16, as the fused operators have it.
x₁, x₂ are the two halves of the first R elements of a rotated head, or (interleaved) its even and odd ones; the rest is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import ml_dtypes
import numpy as np
import onnx_ir as ir

from qdq_passes.core.base import Keeps
from qdq_passes.graph.build import Site

ATTENTION_BOUNDED = Keeps(
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


#: First opsets of RMSNormalization and LayerNormalization.
OPSET_OF_RMS_NORM, OPSET_OF_LAYER_NORM = 23, 17

#: ``primitives``: additions, products, roots; ``operator``: one node; ``auto``: the operator where the opset has it.
Form = Literal["auto", "operator", "primitives"]

NORM_BOUNDED = Keeps(
    "bounded",
    bound=2.0**-9,
    why="float32: sums of K terms in another order, K·2^-24, |γ·(x − μ)/σ| up to four times max|y| where β takes off from it; "
    "float16 results round in other places, 2^-11 each, three times",
)


def rms_norm(
    site: Site,
    x: ir.Value,
    weight: ir.Value,
    *,
    dtype: ir.DataType,
    epsilon: float,
    axes: Sequence[int] = (-1,),
    form: Form = "auto",
) -> ir.Value:
    """The RMS normalization of ``x`` along its last ``axes``, times ``weight`` [sizes of the axes]."""
    if form == "operator" or (form == "auto" and site.opset >= OPSET_OF_RMS_NORM):
        return site("RMSNormalization", x, weight, axis=min(axes), epsilon=epsilon)
    wide = _widened(site, x, dtype)
    return site("Mul", _scaled(site, wide, wide, dtype, epsilon, axes), weight, name="Scale")


def layer_norm(
    site: Site,
    x: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None,
    *,
    dtype: ir.DataType,
    epsilon: float,
    form: Form = "auto",
) -> ir.Value:
    """The layer normalization of ``x`` along its last axis, times ``weight``, plus ``bias``, both [size of the axis]."""
    if form == "operator" or (form == "auto" and site.opset >= OPSET_OF_LAYER_NORM):
        parameters = [weight] if bias is None else [weight, bias]
        return site("LayerNormalization", x, *parameters, axis=-1, epsilon=epsilon)
    wide = _widened(site, x, dtype)
    centred = site("Sub", wide, site.mean(wide, [-1]))
    y = site("Mul", _scaled(site, centred, centred, dtype, epsilon, [-1]), weight, name="Scale")
    return y if bias is None else site("Add", y, bias, name="Shift")


def _widened(site: Site, x: ir.Value, dtype: ir.DataType) -> ir.Value:
    return x if dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE) else site.cast(x, ir.DataType.FLOAT)


def _scaled(site: Site, x: ir.Value, of: ir.Value, dtype: ir.DataType, epsilon: float, axes: Sequence[int]) -> ir.Value:
    """x/√(mean(of²) + ε), in ``dtype``."""
    wide = dtype if dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE) else ir.DataType.FLOAT
    square = site.mean(site("Mul", of, of, name="Square"), axes)
    root = site("Sqrt", site("Add", square, site.constant(epsilon, wide, "epsilon"), name="Epsilon"))
    y = site("Div", x, root)
    return y if wide == dtype else site.cast(y, dtype)


ROTATION_BOUNDED = Keeps(
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

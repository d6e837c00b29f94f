"""Normalizations and rotary position embedding in primitive operators, or as the operator of the opset.

    RMS:    y = x/√(mean(x²) + ε)·γ
    layer:  y = (x − mean(x))/√(mean((x − mean(x))²) + ε)·γ + β
    rotary: y₁ = x₁·cos(pθ) − x₂·sin(pθ),  y₂ = x₂·cos(pθ) + x₁·sin(pθ)

The mean is that of float32 where x is float16 or bfloat16, as the fused operators have it.
x₁, x₂ are the two halves of the first R elements of a rotated head, or (interleaved) its even and odd ones; the rest is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import onnx_ir as ir

from qdq_passes.core.base import Keeps
from qdq_passes.graph.build import Site

#: First opsets of RMSNormalization and LayerNormalization.
OPSET_OF_RMS_NORM, OPSET_OF_LAYER_NORM = 23, 17

#: ``primitives``: additions, products, roots; ``operator``: one node; ``auto``: the operator where the opset has it.
Form = Literal["auto", "operator", "primitives"]

BOUNDED = Keeps(
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

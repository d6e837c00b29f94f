"""Bounds of a Clip, wherever its opset keeps them."""

from __future__ import annotations

from typing import Literal

import onnx_ir as ir

from qdq_passes.graph.uses import constant_array

Bound = Literal["min", "max"]
BOUNDS: tuple[Bound, ...] = ("min", "max")


def clip_bounds(clip: ir.Node) -> tuple[float | None, float | None]:
    """(low, high) of ``clip``, see `clip_bound`; None where a bound is not given, or not known."""
    low, high = (clip_bound(clip, which) for which in BOUNDS)
    return (None if isinstance(low, str) else low), (None if isinstance(high, str) else high)


def clip_bound(clip: ir.Node, which: Bound) -> float | str | None:
    """One bound of ``clip``, an attribute before opset 11, an input since, an int where it clips integers; in words why it is not
    known; None where it is not given."""
    attribute = clip.attributes.get(which)
    if attribute is not None:
        return "is an attribute of its function" if attribute.is_ref() else attribute.as_float()
    index = 1 if which == "min" else 2
    value = clip.inputs[index] if index < len(clip.inputs) else None
    array = constant_array(value)
    if value is None or array is None or array.size != 1:
        return None if value is None else "is computed"
    bound = array.item()
    if not isinstance(bound, int):  # of bfloat16 it is one of numpy's
        bound = float(bound)
    return "is no number" if bound != bound else bound

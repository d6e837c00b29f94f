"""Operators for the normalizations of `_norms`: γ and β in the operator's shape, and whether it computes the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.core.base import Keeps
from qdq_passes.fuse._norms import Norm, normalization_of, shape_of
from qdq_passes.fuse.edit.fusion import Match, types_of
from qdq_passes.graph.operators.arithmetic import passes_on
from qdq_passes.graph.uses import UNKNOWN_TYPE, constant_array

BOUNDED = Keeps(
    "bounded",
    bound=2.0**-8,
    why="with |γ(x − μ)/σ| and |β| up to 2·max|y|: float16 results round four times less or more (n, n·γ, + β), 2^-11 each; "
    "float32 ones differ by sums in another order and by μ's rounding, √K·2^-24·(2 + |μ|/σ), 2^-12 for |μ| up to 2^6·σ",
)


def match_of(node: ir.Node, operator: str) -> Match | str | None:
    """What `fuse` asks for: the match of LayerNormalization or RMSNormalization (``operator``) with root ``node``."""
    found = normalization_of(node)
    if found is None or found[0] != operator:
        return None
    return found[1] if isinstance(found[1], str) else _trailing_match(operator, found[1])


def _trailing_match(operator: str, norm: Norm) -> Match:
    """The match of a LayerNormalization or RMSNormalization, with γ and β in the shape of the normalized axes."""
    differs, operands = _why_other_numbers(norm), list[ir.Value | npt.NDArray[Any]]([norm.x])
    shape = () if differs else _trailing_shape(norm)
    if not differs and not shape:
        differs = "the sizes of the axes of its mean are unknown"
    if not differs:
        dtype = types_of(norm.nodes, norm.x)[norm.x]
        assert dtype is not None
        ones: npt.NDArray[Any] = np.ones(shape, dtype.numpy())
        operands.append(_trailing(norm.weight, shape) if norm.weight is not None else ones)
        operands += [_trailing(norm.bias, shape)] if norm.bias is not None else []
    attributes = (ir.AttrInt64("axis", -len(norm.stem.axes)), ir.AttrFloat32("epsilon", norm.stem.epsilon))
    return Match(operator, norm.nodes, norm.x, norm.weight, norm.bias, tuple(operands), attributes, differs)


def _trailing_shape(norm: Norm) -> tuple[int, ...]:
    """Sizes of the normalized axes, from x or else from γ or β; empty when unknown."""
    count = len(norm.stem.axes)
    sizes = [d for d in norm.stem.x.shape[-count:] if isinstance(d, int)] if norm.stem.x.shape is not None else []
    if len(sizes) == count:
        return tuple(sizes)
    shapes = [shape_of(v)[-count:] for v in (norm.weight, norm.bias) if v is not None]
    return max((shape for shape in shapes if len(shape) == count), default=())


def _trailing(constant: ir.Value, shape: tuple[int, ...]) -> ir.Value | npt.NDArray[Any]:
    """``constant`` in ``shape``: itself, or a copy without leading axes of size 1 and with those that it broadcasts along."""
    array = constant_array(constant)
    assert array is not None
    return (
        constant if array.shape == shape else np.broadcast_to(array.reshape(array.shape[-len(shape) :]), shape).copy()
    )


def _why_other_numbers(norm: Norm) -> str:
    """Why one operator would not compute what the nodes do, in words; empty when it does.

    The operators compute in float32, round to the type of x and apply γ and β in that: so must the nodes.
    """
    types = types_of(norm.nodes, norm.x)
    dtype = types[norm.x]
    if dtype is None:
        return UNKNOWN_TYPE
    if dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
        return f"it computes in {dtype.name.lower()}"
    for node in norm.nodes:
        is_last = any(v is not None and v in (norm.weight, norm.bias) for v in node.inputs)
        wanted = (ir.DataType.FLOAT, dtype) if passes_on(node) else (dtype if is_last else ir.DataType.FLOAT,)
        written = types[node.outputs[0]]
        if written is None:
            return UNKNOWN_TYPE
        if written not in wanted:
            word = written.name.lower()
            return f"γ and β are {word}, x is {dtype.name.lower()}" if is_last else f"it computes in {word}"
    return ""

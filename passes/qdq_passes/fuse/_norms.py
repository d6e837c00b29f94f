"""Normalizations in the pieces that exporters write: (x − μ)/√(σ² + ε)·γ + β and x/√(mean(x²) + ε)·γ, however it is grouped.

The operators for them: γ and β in the operator's shape, and whether it computes the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Keeps
from qdq_passes.fuse.edit.fusion import Match, closed_group, types_of
from qdq_passes.graph.operators.arithmetic import (
    ONE,
    Product,
    Sum,
    agree,
    expand,
    outcomes,
    passes_on,
    product,
    scalar_of,
    without_casts,
)
from qdq_passes.graph.operators.reductions import Reduction, rank_of, reduction_of
from qdq_passes.graph.uses import UNKNOWN_TYPE, constant_array, is_constant, is_standard, nodes_between

#: Operators that take a square root.
ROOTS = ("Sqrt", "Pow")
#: Sums of a mean of squares: of x, of x − μ.
SQUARE: Sum = {product(x=2): 1.0}
CENTERED_SQUARE: Sum = {product(x=2): 1.0, product(x=1, m=1): -2.0, product(m=2): 1.0}


@dataclass(frozen=True)
class Stem:
    """What lies under the square root of a normalization.

    Args:
        x: what is normalized, before any Cast.
        axes: axes of the mean, counted from the end where the rank is known.
        rank: rank of ``x``, None when unknown.
        centered: whether the mean of ``x`` is subtracted.
        epsilon: ε.
        sign: 1 for a square root, −1 for its reciprocal.
        problem: why it is not quite what a normalization divides by, in words.
    """

    x: ir.Value
    axes: tuple[int, ...]
    rank: int | None
    centered: bool
    epsilon: float
    sign: int
    problem: str = ""

    @property
    def is_spatial(self) -> bool:
        """Whether the axes are all those behind batch and channel."""
        return self.rank is not None and self.rank > 2 and self.axes == tuple(range(2 - self.rank, 0))

    @property
    def is_trailing(self) -> bool:
        """Whether the axes are the last ones."""
        return self.axes == tuple(range(-len(self.axes), 0))


@dataclass(frozen=True)
class Norm:
    """A normalization, recognised.

    Args:
        stem: what it divides by.
        x: what the group reads: the stem's x, or that after a Cast.
        nodes: what computes it, each node after what it reads.
        weight: γ, a constant of several elements.
        bias: β likewise.
    """

    stem: Stem
    x: ir.Value
    nodes: tuple[ir.Node, ...]
    weight: ir.Value | None
    bias: ir.Value | None


Fits = Callable[[Stem, tuple[int, ...]], bool]


def normalization_of(node: ir.Node) -> tuple[str, Norm | str] | None:
    """What ``node`` takes the square root of belongs to: operator, and the normalization or in words why it is not quite one.

    None where nothing is like it. Where the mean is taken along all axes behind batch and channel, γ and β tell layer from
    instance; without them it is an instance, but for [N, C, L], which is a sequence.
    """
    stem = _stem_of(node)
    if stem is None:
        return None
    operator = "LayerNormalization" if stem.centered else "RMSNormalization"
    by_row = _norm_of(node, stem, trailing_fits) if stem.is_trailing else None
    if stem.centered and stem.is_spatial:
        by_channel = _norm_of(node, stem, channel_fits)
        if _is_affine(by_channel) or (stem.rank != 3 and not _is_affine(by_row)):
            operator, by_row = "InstanceNormalization", by_channel
    if stem.problem:
        return operator, stem.problem
    if not stem.is_trailing:
        return operator, _why_not_trailing(stem)
    return None if by_row is None else (operator, by_row)


def _norm_of(node: ir.Node, stem: Stem, fits: Fits) -> Norm | str | None:
    """The normalization that divides by what ``node`` writes, with all that belongs to it.

    Args:
        node: the node that takes the square root.
        stem: what it takes it of.
        fits: whether a constant of that shape may be γ or β.

    Returns:
        The normalization; in words why nobody may take its nodes for one; None where none comes of it.
    """
    constants: dict[str, ir.Value] = {}

    def leaves(value: ir.Value) -> Product | None:
        if value is node.outputs[0]:
            return product(s=stem.sign)
        if is_constant(value) and scalar_of(value) is None:
            constants[f"={value.name}"] = value
            return product(**{f"={value.name}": 1})
        return _of_rows(value, stem.x, stem.axes)

    found: dict[ir.Value, tuple[ir.Value | None, ir.Value | None]] = {}
    for output, total in outcomes(node.outputs[0], leaves):
        names = _parameters(total, centered=stem.centered)
        if names is not None:
            weight, bias = (constants[name] if name else None for name in names)
            if all(fits(stem, shape_of(v)) for v in (weight, bias) if v is not None):
                found[output] = weight, bias
    group = closed_group(groups_from(stem.x, list(reversed(found))))
    if group is None or isinstance(group, str):
        return group
    x, nodes = group
    return Norm(stem, x, tuple(nodes), *found[nodes[-1].outputs[0]])


def root_of(node: ir.Node) -> tuple[ir.Value | None, int]:
    """(what ``node`` takes the square root of, 1 or −1 for its reciprocal); (None, 0) where it takes none."""
    if is_standard(node, "Sqrt"):
        return node.inputs[0], 1
    exponent = scalar_of(node.inputs[1]) if is_standard(node, "Pow") and len(node.inputs) > 1 else None
    return (node.inputs[0], 1 if exponent > 0 else -1) if exponent in (0.5, -0.5) else (None, 0)


def groups_from(x: ir.Value, outputs: list[ir.Value]) -> Iterator[tuple[ir.Value, list[ir.Node]]]:
    """Inputs and nodes of the groups that compute ``outputs`` from ``x``, then from its one Cast."""
    casts = [user.outputs[0] for user in x.consumers() if passes_on(user)]
    for source in [x, *(casts if len(casts) == 1 else [])]:
        for output in outputs:
            nodes = nodes_between([source], output)
            if nodes is not None:
                yield source, nodes


def shape_of(constant: ir.Value) -> tuple[int, ...]:
    """Shape of a constant."""
    array = constant_array(constant)
    assert array is not None
    return array.shape


def trailing_fits(stem: Stem, shape: tuple[int, ...]) -> bool:
    """Whether a constant of ``shape`` varies along the (last) axes of the mean alone, and broadcasts to them."""
    count = len(stem.axes)
    if any(d != 1 for d in shape[:-count]) or (stem.rank is not None and len(shape) > stem.rank):
        return False
    sizes = stem.x.shape[-count:] if stem.x.shape is not None else ()
    pairs = zip(reversed(shape), reversed(sizes), strict=False)
    return all(d in (1, size) for d, size in pairs if isinstance(size, int))


def channel_fits(stem: Stem, shape: tuple[int, ...]) -> bool:
    """Whether a constant of ``shape`` varies along axis 1 of x [N, C, …] alone."""
    if stem.rank is None or not stem.rank - 1 <= len(shape) <= stem.rank:
        return False
    size = stem.x.shape[1] if stem.x.shape is not None else None
    whole = (1,) * (stem.rank - len(shape)) + shape
    return all(d == 1 for axis, d in enumerate(whole) if axis != 1) and (not isinstance(size, int) or whole[1] == size)


def _is_affine(norm: Norm | str | None) -> bool:
    return isinstance(norm, Norm) and (norm.weight is not None or norm.bias is not None)


def _why_not_trailing(stem: Stem) -> str:
    if stem.rank is None and any(axis >= 0 for axis in stem.axes):
        return "its axes are counted from the front and the rank is unknown; run infer-shapes first"
    return f"its mean is taken along {list(stem.axes)}, which are not the last axes"


def _stem_of(node: ir.Node) -> Stem | None:
    """What ``node`` takes the square root of, where that has a mean of squares in it; else None."""
    argument, sign = root_of(node)
    mean = _mean_of_squares(argument) if argument is not None else None
    base = _base(mean) if mean is not None else None
    if argument is None or mean is None or base is None:
        return None
    total = expand(argument, lambda value: product(v=1) if reduction_of(value) == mean else None)
    epsilon, problem = (total or {}).get(ONE, 0.0), ""
    if total is None:
        problem = "its epsilon is not constant"
    elif not agree(total, {product(v=1): 1.0, **({ONE: epsilon} if epsilon else {})}, 0.0) or epsilon < 0:
        problem = "it is not the root of a mean of squares and an epsilon"
    return Stem(base[0], mean.axes, rank_of(base[0]), base[1], epsilon, sign, problem)


def _mean_of_squares(argument: ir.Value) -> Reduction | None:
    """The mean of squares that ``argument`` is, or has as a summand or factor."""
    values = [argument]
    for _ in range(3):
        for value in values:
            found = reduction_of(value)
            if found is not None and found.kind == "mean" and _base(found) is not None:
                return found
        nodes = [n for v in values if (n := v.producer()) is not None and is_standard(n, "Add", "Cast", "Div", "Mul")]
        values = [v for n in nodes for v in n.inputs if v is not None]
    return None


def _base(mean: Reduction) -> tuple[ir.Value, bool] | None:
    """(x, False) of the mean of x², (x, True) of that of (x − μ)²; None of anything else."""
    square = mean.source.producer()
    if square is None or not is_standard(square, "Mul", "Pow") or square.inputs[0] is None:
        return None
    x, centered = without_casts(square.inputs[0]), False
    difference = x.producer()
    if difference is not None and is_standard(difference, "Sub") and difference.inputs[0] is not None:
        source = without_casts(difference.inputs[0])
        if _of_rows(difference.inputs[1], source, mean.axes) == product(m=1):
            x, centered = source, True
    total = expand(mean.source, lambda value: _of_rows(value, x, mean.axes))
    return (x, centered) if agree(total, CENTERED_SQUARE if centered else SQUARE, 0.0) else None


def _of_rows(value: ir.Value | None, x: ir.Value, axes: tuple[int, ...]) -> Product | None:
    """x for ``x`` itself, m for its mean along ``axes``."""
    if value is x:
        return product(x=1)
    mean = reduction_of(value)
    if mean is not None and mean.kind == "mean" and mean.axes == axes and without_casts(mean.source) is x:
        return product(m=1)
    return None


def _parameters(total: Sum, *, centered: bool) -> tuple[str, str] | None:
    """Names of γ and β, empty where there is none, if ``total`` is (x − m)/s·γ + β, or x/s·γ; else None."""
    by_x = [dict(term) for term in total if ("x", 1) in term]
    alone = [term[0][0] for term in total if len(term) == 1 and term[0][0].startswith("=")]
    if len(by_x) != 1 or len(alone) > 1:
        return None
    gamma, beta = [name for name in by_x[0] if name.startswith("=")], alone[0] if alone else ""
    if len(gamma) > 1 or (beta and not centered):
        return None
    factor = dict.fromkeys(gamma, 1)
    wanted = {product(x=1, s=-1, **factor): 1.0}
    if centered:
        wanted[product(m=1, s=-1, **factor)] = -1.0
    if beta:
        wanted[product(**{beta: 1})] = 1.0
    return (gamma[0] if gamma else "", beta) if agree(total, wanted, 0.0) else None


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

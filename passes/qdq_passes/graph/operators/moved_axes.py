"""Where the elements of a tensor that was only moved come from, axis by axis, without looking at an element.

An axis is a product of factors, outermost first; a factor of size n and stride s runs over 0, s, … (n-1)·s of one axis of
the source, or repeats what it holds. Transpose permutes axes, Reshape regroups factors in row-major order (splitting some),
Expand and Tile repeat."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.uses import constant_array, integers_of, is_constant, is_standard

#: ``source`` of a factor that repeats.
REPEAT = -1
#: Multiply or divide each element alike where the other operand is one constant number.
_SCALES = ("Mul", "Div")


@dataclass(frozen=True)
class Factor:
    """Part of an axis.

    Args:
        source: axis of the source, or `REPEAT`.
        stride: distance of two neighbours along that axis.
        size: how many there are, 2 or more.
    """

    source: int
    stride: int
    size: int


Axes = tuple[tuple[Factor, ...], ...]


@dataclass(frozen=True)
class Moved:
    """A value and the chain that made it of an earlier one.

    Args:
        source: the earlier value.
        axes: the factors of each axis of the value.
        scales: the Mul and Div by one constant number on the way, from the source on.
    """

    source: ir.Value
    axes: Axes
    scales: tuple[ir.Node, ...]


def sources_of(value: ir.Value, sizes_of: Callable[[ir.Value], list[int] | None]) -> list[Moved]:
    """What ``value`` was moved from, the nearest first: ``value`` itself, if its sizes are known, is the first.

    Args:
        value: a value.
        sizes_of: sizes of a value, None unless all are known.
    """
    sizes = sizes_of(value)
    if sizes is None:
        return []
    chain: list[ir.Node] = []
    found = [Moved(value, _whole(sizes), ())]
    while (node := found[-1].source.producer()) is not None and (source := _moved(node)) is not None:
        before = sizes_of(source)
        if before is None:
            break
        chain.insert(0, node)
        axes = _through(chain, before, sizes_of)
        if axes is None:
            break
        found.append(Moved(source, axes, tuple(n for n in chain if is_standard(n, *_SCALES))))
    return found


def _moved(node: ir.Node) -> ir.Value | None:
    """The operand whose elements ``node`` moves, each scaled alike at most."""
    if is_standard(node, *_SCALES) and len(node.inputs) == 2:
        first, second = node.inputs
        if _is_number(second):
            return first
        return second if _is_number(first) and node.op_type == "Mul" else None
    known = ("Expand", "Identity", "Reshape", "Squeeze", "Tile", "Transpose", "Unsqueeze")
    return node.inputs[0] if is_standard(node, *known) and node.inputs else None


def _is_number(value: ir.Value | None) -> bool:
    if not is_constant(value):
        return False
    array = constant_array(value)
    return array is not None and array.size == 1 and array.ndim <= 1


def _whole(sizes: Sequence[int]) -> Axes:
    return tuple((Factor(axis, 1, size),) if size > 1 else () for axis, size in enumerate(sizes))


def _through(
    chain: Sequence[ir.Node], sizes: Sequence[int], sizes_of: Callable[[ir.Value], list[int] | None]
) -> Axes | None:
    """The factors behind ``chain``; None where a step cannot be followed."""
    axes: Axes | None = _whole(sizes)
    for node in chain:
        after = sizes_of(node.outputs[0])
        if axes is None or after is None:
            return None
        axes = _step(node, axes, after)
    return axes


def _step(node: ir.Node, axes: Axes, after: Sequence[int]) -> Axes | None:
    if is_standard(node, "Transpose"):
        order = integers_of(node, "perm") or list(range(len(axes)))[::-1]
        return tuple(axes[axis] for axis in order)
    if is_standard(node, "Expand", "Tile"):
        padded = ((),) * (len(after) - len(axes)) + axes
        return tuple(_repeated(factors, size) for factors, size in zip(padded, after, strict=True))
    if is_standard(node, *_SCALES):
        return axes if len(axes) == len(after) else None
    return _regrouped([factor for factors in axes for factor in factors], after)


def _repeated(factors: tuple[Factor, ...], size: int) -> tuple[Factor, ...]:
    count = size // max(_size(factors), 1)
    return (Factor(REPEAT, 0, count), *factors) if count > 1 else factors


def _regrouped(factors: list[Factor], sizes: Sequence[int]) -> Axes | None:
    """``factors`` in axes of ``sizes``; None where one would have to be cut between its digits."""
    left, axes = list(factors), []
    for size in sizes:
        group: list[Factor] = []
        while size > 1:
            if not left:
                return None
            factor = left.pop(0)
            if size % factor.size == 0:
                size //= factor.size
            elif factor.size % size == 0:  # its outer part belongs here, the inner one to the next axis
                inner = factor.size // size
                left.insert(0, Factor(factor.source, factor.stride, inner))
                factor, size = Factor(factor.source, factor.stride * inner, size), 1
            else:
                return None
            group.append(factor)
        axes.append(tuple(group))
    return None if left else tuple(axes)


def _size(factors: Sequence[Factor]) -> int:
    total = 1
    for factor in factors:
        total *= factor.size
    return total


def indices_along(factors: Sequence[Factor], source: int) -> list[int] | None:
    """Of each index along an axis of ``factors``, the index along axis ``source``; None where another axis has a part in it."""
    found = [0]
    for factor in factors:
        if factor.source not in (source, REPEAT):
            return None
        found = [base + number * factor.stride for base in found for number in range(factor.size)]
    return found


def is_whole(factors: Sequence[Factor], source: int, size: int) -> bool:
    """Whether an axis of ``factors`` is axis ``source`` of ``size`` elements, in its order."""
    joined = _joined(factors)
    return joined == ([Factor(source, 1, size)] if size > 1 else [])


def _joined(factors: Sequence[Factor]) -> list[Factor]:
    """Neighbours that are one factor, put together again."""
    found: list[Factor] = []
    for factor in factors:
        last = found[-1] if found else None
        if last is not None and last.source == factor.source and last.stride == factor.stride * factor.size:
            found[-1] = Factor(factor.source, factor.stride, last.size * factor.size)
        else:
            found.append(factor)
    return found

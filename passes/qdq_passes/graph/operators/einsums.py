"""Einsum of two operands as one product of matrices.

    "bhqd,bhkd->bhqk"    batch bh, rows q, columns k, depth d
    left  → Transpose [batch, rows, depth]    → Reshape [batch, ∏rows, ∏depth]
    right → Transpose [batch, depth, columns] → Reshape [batch, ∏depth, ∏columns]
    MatMul → Reshape [batch, rows, columns] → Transpose to the order of the result

Batch are the labels of both operands and the result, depth those of both operands alone. Without a batch the right operand is one
matrix, and all rows but the last stay axes before it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from qdq_passes._lazy_dataclass import dataclass

#: A size: a number, the name of one, or None where nothing is known.
Dim = int | str | None
#: Labels that stand for the axes of an ellipsis; equations have letters.
_ELLIPSIS = "0123456789"


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A Transpose and a Reshape, in this order before the product, in the other behind it.

    Args:
        permutation: of the Transpose; None where it changes nothing.
        shape: of the Reshape, 0 for what stays and −1 for what is left; None where it changes nothing.
        sizes: of what comes out, in words of `Dim`.
    """

    permutation: tuple[int, ...] | None
    shape: tuple[int, ...] | None
    sizes: tuple[Dim, ...]


@dataclass(frozen=True, kw_only=True)
class Contraction:
    """An Einsum of two operands.

    Args:
        left: what becomes of the first operand; then
        right: of the second; and
        result: of the product: Reshape, then Transpose.
        product: sizes of the product.
        labels: of the second operand, one per axis.
        batch: labels of both operands and the result; then
        rows: of the first and the result;
        columns: of the second and the result;
        depth: of both operands alone.
    """

    left: Turn
    right: Turn
    result: Turn
    product: tuple[Dim, ...]
    labels: str
    batch: str
    rows: str
    columns: str
    depth: str


def contraction(equation: str, left: Sequence[Dim], right: Sequence[Dim]) -> Contraction | str:
    """How ``equation`` on operands of these sizes is a product of matrices; in words why it is none."""
    terms = _terms(equation, len(left), len(right))
    if isinstance(terms, str):
        return terms
    first, second, result = terms
    sizes: dict[str, Dim] = dict(zip(first, left, strict=True))
    for label, size in zip(second, right, strict=True):
        known = sizes.setdefault(label, size)
        if label in first and (known is None or known != size):
            return f"the sizes of its axis {_shown(label)} are {known} and {size}, which may differ"
    batch = "".join(label for label in first if label in second and label in result)
    rows = "".join(label for label in first if label not in second)
    columns = "".join(label for label in second if label not in first)
    depth = "".join(label for label in first if label in second and label not in result)
    lost = [label for label in rows + columns if label not in result]
    if lost:
        return f"adds up its axis {_shown(lost[0])}, which one operand alone has"
    lead, inner = (batch, rows) if batch else (rows[:-1], rows[-1:])  # rows before a matrix stay axes of their own
    shapes = [
        _merged(lead, (inner, depth), sizes),
        _merged(batch, (depth, columns), sizes),
        _split(lead, (inner, columns), sizes),
    ]
    for shape in shapes:
        if isinstance(shape, str):
            return shape
    empty = next((label for label, size in sizes.items() if size == 0), None)
    if empty is not None and any(shape is not None for shape in shapes):
        return f"its axis {_shown(empty)} is empty, and a Reshape takes 0 for what stays"
    orders = [(first, batch + rows + depth), (second, batch + depth + columns), (batch + rows + columns, result)]
    product = (*(sizes[label] for label in lead), _size(inner, sizes), _size(columns, sizes))
    outs = [
        (*(sizes[label] for label in front), _size(a, sizes), _size(b, sizes))
        for front, a, b in ((lead, inner, depth), (batch, depth, columns))
    ]
    ends = [*outs, tuple(sizes[label] for label in result)]
    turns = [
        Turn(permutation=_permutation(*order), shape=shape, sizes=end)  # type: ignore[arg-type]
        for order, shape, end in zip(orders, shapes, ends, strict=True)
    ]
    return Contraction(
        left=turns[0], right=turns[1], result=turns[2], product=product, labels=second, batch=batch, rows=rows,
        columns=columns, depth=depth,
    )  # fmt: skip


def permutation(equation: str, rank: int) -> tuple[int, ...] | None:
    """The order of axes that ``equation`` gives its one operand, which has ``rank``; None where it does more."""
    terms = _terms(equation, rank)
    if isinstance(terms, str) or len(terms[0]) != len(terms[1]):
        return None
    return tuple(terms[0].index(label) for label in terms[1])


def _terms(equation: str, *ranks: int) -> tuple[str, ...] | str:
    """The labels of the operands and of the result, one a letter for each axis."""
    sides = equation.replace(" ", "").split("->")
    operands = sides[0].split(",")
    if len(operands) != len(ranks):
        return f"has {len(operands)} operands, and a product of matrices has 2"
    if len(sides) > 2:
        return "has no equation"
    hidden = 0
    for term, rank in zip(operands, ranks, strict=True):
        if "..." in term:
            hidden = max(hidden, rank - len(term.replace("...", "")))
    if hidden > len(_ELLIPSIS):
        return f"has {hidden} axes in an ellipsis"
    found = []
    for term, rank in zip(operands, ranks, strict=True):
        count = rank - len(term.replace("...", ""))
        term = term.replace("...", _ELLIPSIS[hidden - max(count, 0) : hidden])
        if len(term) != rank:
            return f"has {len(term)} labels for {rank} axes"
        found.append(term)
    together = "".join(found)
    if len(sides) == 2:
        result = sides[1].replace("...", _ELLIPSIS[:hidden])
    else:
        letters = sorted({label for label in together if together.count(label) == 1 and label not in _ELLIPSIS})
        result = _ELLIPSIS[:hidden] + "".join(letters)
    for term in (*found, result):
        if len(set(term)) != len(term):
            return "takes a diagonal: one label stands for two axes of an operand"
    if set(result) - set(together):
        return "has labels in its result that no operand has"
    return (*found, result)


def _permutation(source: str, wanted: str) -> tuple[int, ...] | None:
    return None if source == wanted else tuple(source.index(label) for label in wanted)


def _merged(batch: str, groups: Sequence[str], sizes: Mapping[str, Dim]) -> tuple[int, ...] | str | None:
    """The shape that makes one axis of each group, behind the batch."""
    if all(len(group) == 1 for group in groups):
        return None
    shape = [0] * len(batch)
    for place, group in enumerate(groups):
        stays = len(group) == 1 and all(len(before) == 1 for before in groups[:place])
        size = _size(group, sizes)
        shape.append(0 if stays else size if isinstance(size, int) else -1)
    return _checked(shape)


def _split(batch: str, groups: Sequence[str], sizes: Mapping[str, Dim]) -> tuple[int, ...] | str | None:
    """The shape that takes the groups apart again."""
    if all(len(group) == 1 for group in groups):
        return None
    shape = [0] * len(batch)
    for place, group in enumerate(groups):
        stays = len(group) == 1 and all(len(before) == 1 for before in groups[:place])
        for label in group:
            size = sizes[label]
            shape.append(0 if stays else size if isinstance(size, int) else -1)
    return _checked(shape)


def _checked(shape: list[int]) -> tuple[int, ...] | str:
    if shape.count(-1) > 1:
        return "the sizes of axes that are put together are not known; run infer-shapes or fix-shapes first"
    return tuple(shape)


def _size(group: str, sizes: Mapping[str, Dim]) -> Dim:
    if len(group) == 1:
        return sizes[group]
    known = [size for label in group if isinstance(size := sizes[label], int)]
    return math.prod(known) if len(known) == len(group) else None


def _shown(label: str) -> str:
    return "of the ellipsis" if label in _ELLIPSIS else label

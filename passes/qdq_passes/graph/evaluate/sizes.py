"""Shapes of which not all sizes are known: what nodes pick and compute of them may be known all the same.

A size is a number, an expression in symbolic sizes (``batch``, ``16*batch``), or not known: None. None is below 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.dimensions import combined
from qdq_passes.graph.evaluate.exact import exact
from qdq_passes.graph.uses import integer_of, is_standard
from qdq_passes.numerics.arrays import Array

Size = int | str | None

#: Operators that pick, move or join the elements of a shape.
_PICKING = ("Cast", "Concat", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze")
#: Operators that are computed element by element.
_ELEMENTWISE = ("Add", "Div", "Equal", "Mul", "Where")
#: First opset in which axes, bounds and shapes are inputs of all of them.
_OPSET = 13


@dataclass(frozen=True)
class Parts:
    """What is known of a value that holds sizes.

    Args:
        sizes: its elements in order.
        shape: its own shape.
    """

    sizes: list[Size]
    shape: tuple[int, ...]


def partly_known(
    node: ir.Node, parts: Mapping[ir.Value, Parts], arrays: Mapping[ir.Value, Array]
) -> Parts | Array | None:
    """What is known of the output of ``node``, which picks, joins or computes sizes; an array where that is all of it; None where
    it does something else.

    Args:
        node: the node.
        parts: values that hold sizes of which some are not known.
        arrays: constants.
    """
    given = [value for value in node.inputs if value is not None]
    if not any(value in parts for value in given) or any(v not in parts and v not in arrays for v in given):
        return None
    if is_standard(node, *_ELEMENTWISE):
        return _elementwise(node, [parts.get(value) or _of_array(arrays[value]) for value in given])
    if not is_standard(node, *_PICKING) or (node.op_type == "Cast" and integer_of(node, "to", 0) != ir.DataType.INT64):
        return None
    movable = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    if any(value in parts and value not in movable for value in given):
        return None
    table: list[Size] = []
    inputs: list[Array | None] = []
    for value in node.inputs:
        if value is None or value not in movable:
            inputs.append(None if value is None else arrays[value])
            continue
        known = parts.get(value) or _of_array(arrays[value])
        places = np.arange(len(table), len(table) + len(known.sizes), dtype=np.int64)
        inputs.append(places.reshape(known.shape))
        table += known.sizes
    found = exact(node, inputs, _OPSET)
    return None if found is None else _whole([table[int(i)] for i in found[0].reshape(-1)], found[0].shape)


def _of_array(array: Array) -> Parts:
    return Parts([int(i) for i in array.reshape(-1)], array.shape)


def _whole(sizes: list[Size], shape: tuple[int, ...]) -> Parts | Array:
    numbers = [size for size in sizes if isinstance(size, int)]
    return np.array(numbers, np.int64).reshape(shape) if len(numbers) == len(sizes) else Parts(sizes, shape)


def _elementwise(node: ir.Node, given: list[Parts]) -> Parts | Array | None:
    try:
        places = np.broadcast_arrays(*[np.arange(len(part.sizes)).reshape(part.shape) for part in given])
    except ValueError:
        return None
    rows = zip(
        *([part.sizes[int(i)] for i in at.reshape(-1)] for part, at in zip(given, places, strict=True)), strict=True
    )
    shape = places[0].shape
    if node.op_type == "Equal":
        answers = [_equal(a, b) for a, b in rows]
        return None if None in answers else np.array(answers, np.bool_).reshape(shape)
    if node.op_type == "Where":
        return _whole([(a if c else b) if isinstance(c, int) else None for c, a, b in rows], shape)
    compute = {"Add": added, "Div": divided, "Mul": multiplied}[node.op_type]
    return _whole([compute(a, b) for a, b in rows], shape)


def _equal(a: Size, b: Size) -> bool | None:
    """Whether two sizes are equal; a size that is not known is none below 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    is_below = any(isinstance(size, int) and size < 0 for size in (a, b))
    return False if is_below else True if a == b and a is not None else None


def multiplied(a: Size, b: Size) -> Size:
    """a·b."""
    return _combined(a, "*", b)


def added(a: Size, b: Size) -> Size:
    """a + b."""
    return _combined(a, "+", b)


def divided(a: Size, b: Size) -> Size:
    """⌊a/b⌋ of sizes: none is below 0."""
    is_below = (isinstance(a, int) and a < 0) or (isinstance(b, int) and b <= 0)
    return None if is_below else _combined(a, "//", b)


@lru_cache(maxsize=4096)
def _combined(a: Size, operator: str, b: Size) -> Size:
    return None if a is None or b is None else combined(a, operator, b)


def is_made_up(name: str) -> bool:
    """Whether ``name`` is one that onnx's inference gives to a size that it knows nothing of."""
    return name.startswith("unk__")


def reshaped(sizes: Sequence[Size] | None, target: Sequence[Size], *, allow_zero: bool) -> list[Size]:
    """The shape that Reshape to ``target`` gives of ``sizes`` (None: unknown): 0 copies a size, −1 is what is left."""
    found = list(target)
    for axis, size in enumerate(target):
        if size == 0 and not allow_zero:
            found[axis] = sizes[axis] if sizes is not None and axis < len(sizes) else None
    if -1 in found:
        others: Size = 1
        for size in found:
            others = others if size == -1 else multiplied(others, size)
        whole: Size = 1
        for size in [None] if sizes is None else sizes:
            whole = multiplied(whole, size)
        rest = divided(whole, others)
        found[found.index(-1)] = rest if multiplied(rest, others) == whole else None
    return found


def expanded(sizes: Sequence[Size], target: Sequence[Size]) -> list[Size]:
    """The shape that Expand to ``target`` gives of ``sizes``."""
    rank = max(len(sizes), len(target))
    pairs = zip([1] * (rank - len(sizes)) + list(sizes), [1] * (rank - len(target)) + list(target), strict=True)
    return [_broadcast(a, b) for a, b in pairs]


def _broadcast(a: Size, b: Size) -> Size:
    if a == 1 or b == 1:
        return b if a == 1 else a
    numbers = [size for size in (a, b) if isinstance(size, int)]
    return a if a == b else numbers[0] if numbers else None


def flattened(sizes: Sequence[Size], axis: int) -> list[Size]:
    """The shape that Flatten at ``axis`` gives of ``sizes``."""
    parts: list[Size] = [1, 1]
    for place, size in enumerate(sizes):
        half = int(place >= axis)
        parts[half] = multiplied(parts[half], size)
    return parts

"""Sizes of values as the file says them: numbers, names of dynamic sizes, None where nothing is known. `Inferred` tells more."""

from __future__ import annotations

import onnx_ir as ir

from qdq_passes.graph.uses import constant_array

Size = int | str | None


def dims_of(shape: ir.Shape) -> list[Size]:
    """The sizes of ``shape``."""
    return [dim if isinstance(dim, int) else dim.value for dim in shape]


def sizes_of(value: ir.Value | None) -> list[Size] | None:
    """The sizes of ``value``; None where not even their number is known."""
    return None if value is None or value.shape is None else dims_of(value.shape)


def static_sizes(value: ir.Value | None) -> list[int] | None:
    """The sizes of ``value``; None unless all are numbers."""
    found = sizes_of(value)
    known = [size for size in found or () if isinstance(size, int)]
    return known if found is not None and len(known) == len(found) else None


def size_at(value: ir.Value | None, axis: int, rank: int | None = None) -> int | None:
    """The size of ``value`` along ``axis``; None where it is no number, there is no such axis, or there are not ``rank`` axes."""
    found = sizes_of(value)
    if found is None or not -len(found) <= axis < len(found) or (rank is not None and len(found) != rank):
        return None
    size = found[axis]
    return size if isinstance(size, int) else None


def rank_of(value: ir.Value | None) -> int | None:
    """The number of axes of ``value``; None where it is not known."""
    return None if value is None or value.shape is None else len(value.shape)


def rank_or(value: ir.Value, otherwise: int) -> int:
    """The number of axes of ``value``, or ``otherwise``."""
    return otherwise if value.shape is None else len(value.shape)


def data_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape of the data that ``value`` has: an initializer's, a Constant's; None where it has none. Weights are not read."""
    if value is not None and value.const_value is not None:
        return tuple(value.const_value.shape.numpy())
    array = constant_array(value)
    return None if array is None else array.shape


def known_rank(value: ir.Value | None) -> int | None:
    """The number of axes of ``value``, its own or that of its data."""
    if value is not None and value.shape is not None:
        return len(value.shape)
    shape = data_shape(value)
    return None if shape is None else len(shape)

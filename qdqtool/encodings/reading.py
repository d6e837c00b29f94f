"""From entries of a file to encodings of tensors: placed, fitted to the shape, and counted as the hints say."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
from qdq_passes.errors import UnsupportedError
from qdq_passes.numerics.encoding import Encoding, encoding_of_weight, integer_format, is_integer_type, parse_dtype

from qdqtool.encodings.biases import smallest_scale
from qdqtool.encodings.entries import Content, Entry, Lpbq, Wish
from qdqtool.encodings.grid import as_type, is_whole
from qdqtool.encodings.hints import TensorHint
from qdqtool.encodings.tensors import fitted, place, shape_of


def encoding_for(entry: Entry, value: ir.Value, hint: TensorHint | None) -> Encoding | None:
    """The encoding that ``entry`` gives ``value``; None when it stays float, or nothing but a wish is known.

    Raises:
        UnsupportedError: the axis cannot be told, or ONNX cannot hold it.
        ModelError: as many scales as do not fit the tensor.
    """
    return made_of(entry.holds, value, hint)


def made_of(holds: Content, value: ir.Value, hint: TensorHint | None = None) -> Encoding | None:
    """`encoding_for` of a content."""
    placed = place(holds, value)
    if isinstance(placed, Wish):
        return of_range(placed, smallest_scale(value)) if placed.low else None
    encoding = placed.encoding if isinstance(placed, Lpbq) else placed
    if not isinstance(encoding, Encoding):
        return None
    if not is_whole(encoding):
        raise UnsupportedError(
            f"the zero point {encoding.zero_point[0]} is no integer, which ONNX wants", where=value.name
        )
    encoding = fitted(encoding, value)
    return encoding if hint is None else represented(encoding, hint, value)


def of_range(wish: Wish, smallest: float) -> Encoding:
    """The encoding that covers the range, or the ranges per channel, that a file asks for; asymmetric uint8 by default."""
    ends = np.array([wish.low, wish.high], np.float64)
    found = encoding_of_weight(
        ends, None if wish.axis is None else 1, dtype=wish.dtype or ir.DataType.UINT8, symmetric=bool(wish.symmetric),
        power_of_two=False, smallest=smallest, reduced=bool(wish.reduce_range),
    )  # fmt: skip
    return dataclasses.replace(found, axis=wish.axis)


def represented(encoding: Encoding, hint: TensorHint, value: ir.Value) -> Encoding:
    """The same grid, counted in the type and along the axis that ``hint`` says, where they mean the same."""
    if hint.dtype is not None:
        dtype = parse_dtype(hint.dtype)
        if is_integer_type(dtype) and integer_format(dtype)[1] == integer_format(encoding.dtype)[1]:
            encoding = as_type(encoding, dtype)
    shape = shape_of(value)
    if hint.axis is None or shape is None or not -len(shape) <= hint.axis < len(shape):
        return encoding
    if encoding.axis is None and shape[hint.axis] == 1 and len(encoding.scale) == 1:
        return dataclasses.replace(encoding, axis=hint.axis, shape=(1,))
    if encoding.axis is not None and encoding.axis % len(shape) == hint.axis % len(shape):
        return dataclasses.replace(encoding, axis=hint.axis)
    return encoding

"""Integers that a float tensor cannot tell: an int32 bias beyond 2^24 steps loses its last bits when it becomes float32, an int16
one beyond 2^11 when it becomes float16.

So that removing and inserting a pair gives the same integers, they are kept in the metadata of the float tensor, where it is no
larger than a bias, and count as long as it holds the values they stand for."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.errors import ModelError, QdqError
from qdq_passes.numerics.documents import json_of
from qdq_passes.numerics.encoding import Encoding, integer_format, integer_range, is_integer_type
from qdq_passes.numerics.quantize import dequantize, quantize

#: In ``metadata_props`` of an initializer: the encoding and the integers, little endian, base64.
KEY = "qdqtool.integers"
#: Elements up to which integers are kept: biases, not weights.
LARGEST = 1 << 16


def remember_integers(value: ir.Value, integers: npt.NDArray[Any], encoding: Encoding) -> None:
    """Note ``integers`` on their dequantized ``value`` if quantizing it would give others.

    Not asked of up to 16 bits in float32, where that is exact: |q| < 2^16, and two roundings of 2^-24 each are far below 1/2.
    """
    assert value.const_value is not None
    real = value.const_value.numpy()
    if integers.size > LARGEST or not is_integer_type(encoding.dtype):
        return
    if (integer_format(encoding.dtype)[1] <= 16 and real.dtype == np.float32) or np.array_equal(
        quantize(real, encoding), integers
    ):
        return
    data = base64.b64encode(np.ascontiguousarray(integers).astype("<i8").tobytes()).decode()
    note = {"data": data, "encoding": encoding.to_json()}
    value.metadata_props[KEY] = json.dumps(note, sort_keys=True, separators=(",", ":"))


def integers_of(
    value: ir.Value, array: npt.NDArray[Any], encoding: Encoding, *, narrow: bool = False
) -> npt.NDArray[Any]:
    """``array``, the data of ``value``, in ``encoding``: the integers noted on it if they still mean it, else by quantizing.

    ``narrow`` leaves out the most negative integer, see `quantize`.

    Raises:
        ModelError: the note is broken.
    """
    text = value.metadata_props.get(KEY)
    known = None if text is None else _noted(value, text, encoding)
    if known is not None and known.size == array.size:
        integers = known.astype(encoding.dtype.numpy()).reshape(array.shape)
        is_outside = narrow and known.min(initial=0) < integer_range(encoding.dtype, symmetric=True)[0]
        if not is_outside and np.array_equal(dequantize(integers, encoding, array.dtype), array):
            return integers
    return quantize(array, encoding, symmetric_range=narrow)


def _noted(value: ir.Value, text: str, encoding: Encoding) -> npt.NDArray[np.int64] | None:
    try:
        note = json_of(text)
        if Encoding.from_json(note["encoding"]) != encoding:
            return None
        return np.frombuffer(base64.b64decode(note["data"], validate=True), "<i8")
    except (ValueError, KeyError, TypeError, QdqError) as error:
        raise ModelError(
            f"its metadata {KEY} is broken: {error}", where=value.name, hint="remove that entry"
        ) from error

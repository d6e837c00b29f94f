"""What a dumped tensor holds: bytes and integers as the float numbers that they stand for, in the model's layout."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from qdq_passes.errors import ModelError
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import Encoding, is_integer_type
from qdq_passes.numerics.quantize import dequantize

#: Kinds of numpy's types that may be a tensor's: floats (``V``: of ml_dtypes), integers, truth values.
NUMBERS = "fViub"
#: ``nhwc``: dumps of four and five dimensions have their channels last; ``auto``: where only that fits the shape.
Layout = Literal["auto", "nchw", "nhwc"]


def read_dump(dumped: Array | bytes, like: Array, encoding: Encoding | None, layout: Layout = "auto") -> Array:
    """``dumped`` as an array in the shape of ``like``.

    Args:
        dumped: an array, or bytes: float32, float64, float16 or integers of the encoding, whichever their number says; where two
            may be meant, the encoding's.
        like: the model's tensor.
        encoding: of the tensor, for integers; None where it has none.
        layout: of the dump.

    Raises:
        ModelError: it does not fit; the message says why.
    """
    array = _typed(dumped, like, encoding) if isinstance(dumped, bytes) else dumped
    if array.dtype.kind not in NUMBERS or (array.dtype.kind == "b" and like.dtype.kind != "b"):
        raise ModelError(f"holds {array.dtype}, the model {like.dtype}")
    if array.size != like.size:
        raise ModelError(f"has {list(array.shape)}, the model {list(like.shape)}")
    turned = _arranged(array, like, layout, is_flat=isinstance(dumped, bytes))
    if turned.dtype.kind not in "iu" or like.dtype.kind in "iub":
        return turned
    if encoding is None:
        raise ModelError("holds integers, and no pair says what they stand for; give the quantized model as B")
    if not is_integer_type(encoding.dtype):
        raise ModelError(f"holds integers, the pair has {encoding.dtype.name.lower()}")
    stored = encoding.dtype.numpy()
    if turned.dtype.itemsize < np.dtype(stored).itemsize or (
        turned.dtype.itemsize == np.dtype(stored).itemsize and turned.dtype != stored
    ):
        raise ModelError(f"holds {turned.dtype}, the pair has {encoding.dtype.name.lower()}")
    return dequantize(turned, encoding)


def _typed(data: bytes, like: Array, encoding: Encoding | None) -> Array:
    """Bytes as an array [n]: of the encoding's type where they are as many as that needs, else of the float type that fits."""
    count = like.size
    types: list[Any] = [like.dtype] if like.dtype.kind in "iub" else []
    if encoding is not None and is_integer_type(encoding.dtype) and encoding.dtype.bitwidth % 8 == 0:
        types.append(encoding.dtype.numpy())
    for dtype in (*types, np.float32, np.float16, np.float64):
        if count and len(data) == count * np.dtype(dtype).itemsize:
            return np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).astype(dtype, copy=False)
    raise ModelError(f"has {len(data)} bytes, the model's tensor {list(like.shape)} of {like.dtype} has {like.nbytes}")


def _arranged(array: Array, like: Array, layout: Layout, *, is_flat: bool) -> Array:
    channels_last = (like.shape[0], *like.shape[2:], like.shape[1]) if like.ndim >= 3 else like.shape
    if layout == "nhwc" and like.ndim >= 4:
        return np.moveaxis(array.reshape(channels_last), -1, 1)
    fits = is_flat or layout == "nchw" or _bare(array.shape) == _bare(like.shape)
    if not fits and _bare(array.shape) == _bare(channels_last):
        return np.moveaxis(array.reshape(channels_last), -1, 1)
    return array.reshape(like.shape)


def _bare(shape: tuple[int, ...]) -> list[int]:
    """A shape without its dimensions of one."""
    return [d for d in shape if d != 1]

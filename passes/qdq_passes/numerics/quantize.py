"""QuantizeLinear and DequantizeLinear in numpy, bit for bit as onnxruntime computes them with optimization disabled.

q = saturate(round_half_even(x / scale) + zero_point), the division in float32 (float16 too); x' = (q − zero_point)·scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from qdq_passes.numerics.encoding import Encoding, integer_range, is_integer_type


def quantize(x: npt.NDArray[Any], encoding: Encoding, *, symmetric_range: bool = False) -> npt.NDArray[Any]:
    """Integers of ``x`` (float, any shape) in the storage type of ``encoding``, same shape.

    Args:
        x: float tensor.
        encoding: integer encoding.
        symmetric_range: clip at −qmax instead of qmin (stored int8 weights of the Vitis line stay within ±127).

    Raises:
        UsageError: the storage type is not an integer type.
        ModelError: the scales do not fit the shape of ``x``.
    """
    granularity, wide = encoding.granularity, _wide(x.dtype)
    scale = granularity.expand(encoding.scale_array().astype(x.dtype), x.shape)
    zero_point = granularity.expand(np.array(encoding.zero_point, np.int64).reshape(encoding.shape), x.shape)
    qmin, qmax = integer_range(encoding.dtype, symmetric=symmetric_range)
    rounded = np.rint(np.divide(x.astype(wide), scale.astype(wide)))
    shifted = np.add(rounded.astype(np.float64), zero_point.astype(np.float64))
    integers: npt.NDArray[Any] = np.clip(shifted, qmin, qmax).astype(np.int64).astype(encoding.dtype.numpy())
    return integers


def dequantize(q: npt.NDArray[Any], encoding: Encoding, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
    """Real values of the integers ``q`` (any shape) as ``dtype``, same shape."""
    granularity, wide = encoding.granularity, _wide(np.dtype(dtype))
    scale = granularity.expand(encoding.scale_array().astype(dtype), q.shape)
    zero_point = granularity.expand(np.array(encoding.zero_point, np.int64).reshape(encoding.shape), q.shape)
    if is_integer_type(encoding.dtype):
        difference = np.subtract(q.astype(np.int64), zero_point.astype(np.int64))
    else:
        difference = np.subtract(q.astype(wide), zero_point.astype(wide))
    real: npt.NDArray[Any] = np.multiply(difference.astype(wide), scale.astype(wide)).astype(dtype)
    return real


def _wide(dtype: np.dtype[Any]) -> npt.DTypeLike:
    """Where the arithmetic happens: onnxruntime computes float16 and bfloat16 in float32."""
    return np.float64 if dtype == np.float64 else np.float32

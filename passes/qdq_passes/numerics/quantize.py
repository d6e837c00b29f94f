"""QuantizeLinear and DequantizeLinear in numpy, bit for bit as onnxruntime computes them with optimization disabled.

q = saturate(round_half_even(x / scale) + zero_point), the division in x's own float type; x' = (q − zero_point)·scale."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qdq_passes.numerics.encoding import Encoding, integer_range


def quantize(
    x: npt.NDArray[np.generic], encoding: Encoding, *, symmetric_range: bool = False
) -> npt.NDArray[np.generic]:
    """Integers of ``x`` (float, any shape) in the storage type of ``encoding``, same shape.

    Args:
        x: float tensor.
        encoding: integer encoding.
        symmetric_range: clip at −qmax instead of qmin (stored int8 weights of the Vitis line stay within ±127).

    Raises:
        UsageError: the storage type is not an integer type.
        ModelError: the scales do not fit the shape of ``x``.
    """
    granularity, shape = encoding.granularity, x.shape
    scale = granularity.expand(encoding.scale_array(), shape)
    zero_point = granularity.expand(np.array(encoding.zero_point, np.int64).reshape(encoding.shape), shape)
    qmin, qmax = integer_range(encoding.dtype, symmetric=symmetric_range)
    rounded = np.rint(x / scale.astype(x.dtype)).astype(np.float64) + zero_point  # type: ignore[operator]
    return np.clip(rounded, qmin, qmax).astype(np.int64).astype(encoding.dtype.numpy())


def dequantize(
    q: npt.NDArray[np.generic], encoding: Encoding, dtype: npt.DTypeLike = np.float32
) -> npt.NDArray[np.generic]:
    """Real values of the integers ``q`` (any shape) as ``dtype``, same shape."""
    granularity = encoding.granularity
    scale = granularity.expand(encoding.scale_array().astype(dtype), q.shape)
    zero_point = granularity.expand(np.array(encoding.zero_point, np.int64).reshape(encoding.shape), q.shape)
    return (q.astype(np.int64) - zero_point).astype(dtype) * scale  # type: ignore[operator, no-any-return]

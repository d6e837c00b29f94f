"""QuantizeLinear and DequantizeLinear in numpy, bit for bit as onnxruntime computes them with optimization disabled.

q = saturate(round_half_even(x / scale) + zero_point), the division in float32 (float16 too); x' = (q − zero_point)·scale.
What is no number (NaN) becomes the smallest integer: measured with 1.23.2 and 1.31.1 on x86-64, 8 and 16 bits, signed or not.
Float storage types (float8, float4, and the float16 of vendor operators) saturate at their largest number and round half to
even; their zero point is 0. No operator makes int32: stored biases are divided in float64, which keeps all their bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.numerics.encoding import Encoding, integer_range, is_integer_type


def quantize(x: npt.NDArray[Any], encoding: Encoding, *, symmetric_range: bool = False) -> npt.NDArray[Any]:
    """``x`` (float, any shape) in the storage type of ``encoding``, same shape.

    Args:
        x: float tensor.
        encoding: how to store it.
        symmetric_range: clip at −qmax instead of qmin (stored int8 weights of the Vitis line stay within ±127).

    Raises:
        ModelError: the scales do not fit the shape of ``x``.
    """
    granularity = encoding.granularity
    wide = np.float64 if encoding.dtype == ir.DataType.INT32 else _wide(x.dtype)
    scale = granularity.expand(encoding.scale_array().astype(x.dtype), x.shape)
    if not is_integer_type(encoding.dtype):
        return _to_float_type(np.divide(x.astype(wide), scale.astype(wide)), encoding.dtype)
    qmin, qmax = integer_range(encoding.dtype, symmetric=symmetric_range)
    work = np.asarray(np.divide(x.astype(wide, copy=False), scale.astype(wide)))
    np.rint(work, out=work)
    if (
        not encoding.is_symmetric or encoding.dtype.bitwidth > 16
    ):  # float32 holds all integers of 16 bits, not sums beyond
        zero_point = granularity.expand(np.array(encoding.zero_point, np.int64).reshape(encoding.shape), x.shape)
        work = np.asarray(np.add(work.astype(np.float64), zero_point.astype(np.float64)))
    np.clip(work, qmin, qmax, out=work)
    if np.isnan(work.min(initial=0)):  # a cast of it would be any integer
        work[np.isnan(work)] = qmin
    integers: npt.NDArray[Any] = work.astype(np.int32 if encoding.dtype.bitwidth <= 16 else np.int64)
    return integers.astype(encoding.dtype.numpy())


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


def _to_float_type(x: npt.NDArray[Any], dtype: ir.DataType) -> npt.NDArray[Any]:
    """``x`` rounded to a float storage type; what lies beyond its largest number becomes that number, NaN stays."""
    stored = dtype.numpy()
    largest = float(ml_dtypes.finfo(stored).max)  # type: ignore[no-untyped-call]
    rounded: npt.NDArray[Any] = np.clip(x, -largest, largest).astype(stored)
    return rounded


def _wide(dtype: np.dtype[Any]) -> npt.DTypeLike:
    """Where the arithmetic happens: onnxruntime computes float16 and bfloat16 in float32."""
    return np.float64 if dtype == np.float64 else np.float32

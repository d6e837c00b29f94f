"""Matrix products of the reference whose weight has a scale per block of its depth, and what sums of products share.

    S_g = Σ_{k in block g} (x − z_x)(w − z_w[g, n])     exact
    t = t + float32(S_g)·scale[g, n]                     from 0 on, g by g, each operation rounded to float32
    y = round(t / s_y) + z_y                             after + float32 bias, see `requantize.requantize_float`

with scale[g, n] = float32(s_x·s_w[g, n])."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from qdq_passes.npu.reference.values import NotRepresentable, Real, Stored
from qdq_passes.numerics.arrays import Array, Reals
from qdq_passes.numerics.requantize import Floats, Integers

#: float64 holds every integer below.
_FLOAT64_EXACT = 1 << 53


def blocked_product(
    first: Integers, weight: Stored, bias: Stored | Array | None, x_scale: Reals, *, flipped: bool
) -> Real:
    """The sums of ``first`` [..., M, K] or [K], minus its zero point, and a ``weight`` with scales per block.

    Args:
        first: the data, int64.
        weight: [K, N] with blocks along axis 0; [N, K] along axis 1 where ``flipped``.
        bias: [N] or one number; None without.
        x_scale: of the data, float64 [1].
        flipped: whether the weight is transposed.

    Raises:
        NotRepresentable: the weight is no matrix, or its blocks lie along the columns of the output.
    """
    encoding, size = weight.encoding, weight.encoding.block_size
    if weight.integers.ndim != 2 or (encoding.axis or 0) % 2 != int(flipped):
        raise NotRepresentable("the blocks of its weight do not lie along the depth of a matrix")
    second, scales = weight.centered(), np.array(encoding.scale, np.float64).reshape(encoding.shape)
    second, scales = (second.T, scales.T) if flipped else (second, scales)
    factors = (x_scale * scales).astype(np.float32)
    total: Floats = np.zeros((*first.shape[:-1], second.shape[1]), np.float32)
    for block, factor in enumerate(factors):
        part = slice(block * size, (block + 1) * size)
        sums = exact_matmul(first[..., part], second[part]).astype(np.float32)
        total = np.asarray(total + sums * factor, np.float32)
    if bias is not None:
        numbers = bias.real() if isinstance(bias, Stored) else bias
        total = np.asarray(total + per_channel(numbers, second.shape[1]).astype(np.float32), np.float32)
    return Real(numbers=total)


def exact_matmul(a: Integers, b: Integers) -> Integers:
    """numpy's matmul on integers, without an overflow."""
    bound = _largest(a) * _largest(b) * (a.shape[-1] if a.ndim else 1)
    if bound < _FLOAT64_EXACT:
        return np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64))).astype(np.int64)
    return np.asarray(np.matmul(a.astype(object), b.astype(object)))


def per_channel(bias: npt.NDArray[Any], channels: int) -> npt.NDArray[Any]:
    """``bias`` flat, [C] or [1].

    Raises:
        NotRepresentable: it differs along another axis.
    """
    if bias.size not in (1, channels) or (bias.size > 1 and bias.shape[-1] != channels):
        raise NotRepresentable(f"its bias of shape {list(bias.shape)} is not one number per channel")
    return bias.reshape(-1)


def _largest(array: Integers) -> int:
    return int(np.abs(array.astype(np.int64)).max(initial=0))

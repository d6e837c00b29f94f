"""The sums of the reference: convolutions, matrix products, means, softmax, Add, Mul; on integers minus their zero points.

Every sum is an exact integer: in float64 matrix products where all of their sums are below 2^53, in Python's integers beyond.

A weight with a scale per block of its depth is multiplied block by block:

    S_g = Σ_{k in block g} (x − z_x)(w − z_w[g, n])     exact
    t = t + float32(S_g)·scale[g, n]                     from 0 on, g by g, each operation rounded to float32
    y = round(t / s_y) + z_y                             after + float32 bias, see `requantize.requantize_float`

with scale[g, n] = float32(s_x·s_w[g, n])."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.npu.reference.values import Addends, NotRepresentable, Real, Stored, Sum
from qdq_passes.npu.reference.windows import last, spread_of, window_of
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.arrays import Array, Reals
from qdq_passes.numerics.encoding import integer_range, is_wide
from qdq_passes.numerics.requantize import Floats, Integers, accumulator_bias, exact_product, exact_sum, fit_accumulator

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


def convolution(node: ir.Node, x: Stored, w: Stored, bias: Stored | Array | None, arithmetic: Arithmetic) -> Sum:
    """Conv: x [N, C, spatial…], w [M, C/group, kernel…] with an encoding per-tensor or along axis 0."""
    data, weight, group = x.centered(), w.centered(), node.attributes.get_int("group", 1)
    window = window_of(node, data.shape[2:], weight.shape[2:])
    rank, batch, count = data.ndim, data.shape[0], weight.shape[0]
    parts = weight.reshape(group, count // group, *weight.shape[1:])
    acc: Integers = np.zeros((batch, group, count // group, math.prod(window.output)), np.int64)
    for place, tap in window.taps(data, 0):
        columns = tap.reshape(batch, group, -1, math.prod(window.output))
        acc = exact_sum(acc, exact_matmul(parts[last(place)], columns))
    acc = acc.reshape(batch, count, *window.output)
    return _product_sum(acc, x, w, bias, arithmetic, scales=_channel_scales(w, 0), axis=1 - rank)


def transposed_convolution(
    node: ir.Node, x: Stored, w: Stored, bias: Stored | Array | None, arithmetic: Arithmetic
) -> Sum:
    """ConvTranspose: x [N, C, spatial…], w [C, M/group, kernel…] with an encoding per-tensor or along axis 1."""
    data, weight, group = x.centered(), w.centered(), node.attributes.get_int("group", 1)
    spread = spread_of(node, data.shape[2:], weight.shape[2:])
    batch, channels, rank = data.shape[0], weight.shape[1] * group, len(spread.sizes)
    acc: Integers = np.zeros((batch, channels, *spread.full), np.int64)
    columns = data.reshape(batch, group, data.shape[1] // group, -1)
    parts = np.moveaxis(weight.reshape(group, -1, *weight.shape[1:]), 1, 2)  # [group, M/group, C/group, kernel…]
    for place, where in spread.places():
        added = exact_matmul(parts[last(place)], columns).reshape(batch, channels, *spread.sizes)
        found = np.zeros_like(acc, dtype=added.dtype)
        found[where] = added
        acc = exact_sum(acc, found)
    scales = _channel_scales(w, 1)
    scales = np.tile(scales, group) if scales.size > 1 else scales
    return _product_sum(acc[spread.kept], x, w, bias, arithmetic, scales=scales, axis=-1 - rank)


def matrix_product(
    node: ir.Node, a: Stored, b: Stored, bias: Stored | Array | None, arithmetic: Arithmetic
) -> Sum | Real:
    """MatMul, Gemm with alpha = beta = 1: a per-tensor, b per-tensor, along the axis of the output's columns, or in blocks along
    the other one."""
    if any(node.attributes.get_float(name, 1.0) != 1.0 for name in ("alpha", *(["beta"] if bias is not None else []))):
        raise NotRepresentable("its alpha and beta are not 1")
    first, second = a.centered(), b.centered()
    first = first.T if node.attributes.get_int("transA", 0) else first
    flipped = bool(node.attributes.get_int("transB", 0))
    if b.encoding.block_size:
        return blocked_product(first, b, bias, _scale(a), flipped=flipped)
    acc = exact_matmul(first, second.T if flipped else second)
    scales = _channel_scales(b, 0 if flipped else second.ndim - 1 if second.ndim > 1 else None)
    return _product_sum(acc, a, b, bias, arithmetic, scales=scales, axis=-1)


def product(a: Stored, b: Stored, arithmetic: Arithmetic) -> Sum:
    """Mul of two per-tensor operands, broadcast."""
    wide = is_wide(a.encoding.dtype) or is_wide(b.encoding.dtype)
    acc = fit_accumulator(exact_product(a.centered(), b.centered()), arithmetic, wide=wide)
    return Sum(acc=acc, product=_scale(a) * _scale(b))


def addends(node: ir.Node, a: Stored, b: Stored) -> Addends:
    """Add or Sub of two per-tensor operands, broadcast."""
    sign = -1.0 if node.op_type == "Sub" else 1.0
    return Addends(a=a.centered(), b=b.centered(), a_scale=float(_scale(a)[0]), b_scale=sign * float(_scale(b)[0]))


def average_pool(node: ir.Node, x: Stored, arithmetic: Arithmetic) -> Sum:
    """AveragePool: the divisor of an output is how many elements of the data, with count_include_pad also of the padding,
    its window covers, at least 1; what a window covers behind the padding (ceil_mode) never counts."""
    data = x.centered()
    window = window_of(node, data.shape[2:], ())
    acc = sum((tap for _, tap in window.taps(data, 0)), np.zeros((), np.int64))
    ones = np.ones((1, 1, *data.shape[2:]), np.int64)
    if node.attributes.get_int("count_include_pad", 0):
        around = [(0, 0), (0, 0), *zip(window.before, window.behind, strict=True)]
        padded = replace(window, before=(0,) * len(window.kernel))
        counts = sum(
            (tap for _, tap in padded.taps(np.pad(ones, around, constant_values=1), 0)), np.zeros((), np.int64)
        )
    else:
        counts = sum((tap for _, tap in window.taps(ones, 0)), np.zeros((), np.int64))
    acc = fit_accumulator(np.asarray(acc), arithmetic, wide=is_wide(x.encoding.dtype))
    return Sum(acc=acc, product=_scale(x), divisor=np.maximum(counts, 1))


def mean(x: Stored, axes: Sequence[int], arithmetic: Arithmetic, *, keepdims: bool) -> Sum:
    """GlobalAveragePool and ReduceMean over ``axes``."""
    data = x.centered()
    acc = np.asarray(np.sum(data, axis=tuple(axes), keepdims=keepdims))
    count = math.prod(data.shape[axis] for axis in axes)
    acc = fit_accumulator(acc, arithmetic, wide=is_wide(x.encoding.dtype))
    return Sum(acc=acc, product=_scale(x), divisor=np.array(max(count, 1)))


def softmax(x: Stored, axis: int) -> Sum:
    """E[d] = round_half_even(exp(−d·s_x)·2^30), d = max − x along ``axis``; E / ΣE."""
    lowest = integer_range(x.encoding.dtype, symmetric=False)[0]
    distance = x.integers.max(axis=axis, keepdims=True, initial=lowest) - x.integers
    exponentials = np.exp(-np.arange(int(distance.max(initial=0)) + 1) * _scale(x))
    table = np.rint(exponentials * 2.0**30).astype(np.int64)
    found = table[distance]
    return Sum(acc=found, product=np.ones(1), divisor=found.sum(axis=axis, keepdims=True), integral=True)


def _product_sum(
    acc: Integers,
    x: Stored,
    w: Stored,
    bias: Stored | Array | None,
    arithmetic: Arithmetic,
    *,
    scales: Reals,
    axis: int,
) -> Sum:
    """A sum of products with its bias [C] or [1] along ``axis``."""
    steps, x_shift = _scale(x) * scales, 0
    if bias is not None:
        numbers = bias.centered() if isinstance(bias, Stored) else bias
        channels = acc.shape[axis] if acc.ndim >= -axis else 1
        flat = per_channel(numbers, channels)
        scale = np.array(bias.encoding.scale, np.float64) if isinstance(bias, Stored) else None
        found = accumulator_bias(flat, steps, scale=scale)
        if isinstance(found, str):
            raise NotRepresentable(found)
        x_shift = found.x_shift
        laid = found.value.reshape([-1, *[1] * (-1 - axis)])
        acc = exact_sum(exact_product(acc, np.array(1 << x_shift)), laid)
    acc = fit_accumulator(acc, arithmetic, wide=is_wide(x.encoding.dtype) or is_wide(w.encoding.dtype))
    return Sum(acc=acc, product=np.ldexp(steps, -x_shift), axis=axis, has_slope=True)


def _scale(stored: Stored) -> Reals:
    """The one scale, float64 [1].

    Raises:
        NotRepresentable: there are several.
    """
    if len(stored.encoding.scale) != 1:
        raise NotRepresentable(f"data with {stored.encoding.granularity.kind} scales are read")
    return np.array(stored.encoding.scale, np.float64)


def _channel_scales(weight: Stored, axis: int | None) -> Reals:
    """The scales of a weight, [1] or one per index of ``axis``."""
    encoding = weight.encoding
    if len(encoding.scale) > 1 and (encoding.block_size or (encoding.axis or 0) % weight.integers.ndim != axis):
        raise NotRepresentable(f"its weight has {encoding.granularity.kind} scales along axis {encoding.axis}")
    return np.array(encoding.scale, np.float64)

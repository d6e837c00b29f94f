"""The sums of the reference: convolutions, matrix products, means, softmax, Add, Mul; on integers minus their zero points.

Every sum is an exact integer: in float64 matrix products where all of their sums are below 2^53, in Python's integers beyond."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from qdq_passes.npu.reference.blocks import blocked_product, exact_matmul, per_channel
from qdq_passes.npu.reference.values import Addends, NotRepresentable, Real, Stored, Sum
from qdq_passes.npu.reference.windows import last, spread_of, window_of
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.arrays import Array, Reals
from qdq_passes.numerics.encoding import integer_range, is_wide
from qdq_passes.numerics.requantize import Integers, accumulator_bias, exact_product, exact_sum, fit_accumulator


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

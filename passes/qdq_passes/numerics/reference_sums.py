"""The sums of the reference: convolutions, matrix products, means, softmax, Add, Mul; on integers minus their zero points.

Every sum is an exact integer: in float64 matrix products where all of their sums are below 2^53, in Python's integers beyond."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.padding import extent, same_total, split_evenly, transposed_total
from qdq_passes.numerics.reference_values import Addends, Array, NotRepresentable, Stored, Sum
from qdq_passes.numerics.requantize import Integers, Reals, accumulator_bias, exact_product, exact_sum, fit_accumulator

#: float64 holds every integer below.
_FLOAT64_EXACT = 1 << 53


@dataclass(frozen=True, kw_only=True)
class Window:
    """A window over the spatial axes of [N, C, spatial…].

    Args:
        kernel: elements per axis.
        strides: likewise.
        dilations: likewise.
        before: padding before each axis.
        behind: padding behind.
        output: size of the output per axis.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    behind: tuple[int, ...]
    output: tuple[int, ...]

    def taps(self, x: Array, fill: int) -> Iterator[tuple[tuple[int, ...], Array]]:
        """For each place in the kernel what the outputs read there, [N, C, output…]; ``fill`` where it is padding."""
        reach = [s * (o - 1) + extent(k, d) for s, o, k, d in self._axes()]
        behind = [max(r - b - n, 0) for r, b, n in zip(reach, self.before, x.shape[2:], strict=True)]
        around = [(0, 0), (0, 0), *zip(self.before, behind, strict=True)]
        padded = np.pad(x, around, constant_values=fill)
        for place in itertools.product(*map(range, self.kernel)):
            first = [i * d for i, d in zip(place, self.dilations, strict=True)]
            steps = zip(first, self.output, self.strides, strict=True)
            yield place, padded[_last(slice(f, f + s * (o - 1) + 1, s) for f, o, s in steps)]

    def _axes(self) -> Iterator[tuple[int, int, int, int]]:
        return zip(self.strides, self.output, self.kernel, self.dilations, strict=True)


def window_of(node: ir.Node, sizes: Sequence[int], kernel: Sequence[int]) -> Window:
    """The window of a Conv or pool over spatial ``sizes``.

    In ceil_mode an output starts inside of the data or the padding before it, as onnxruntime has it since 1.18.
    """
    kernel = node.attributes.get_ints("kernel_shape") or kernel
    strides, dilations = (node.attributes.get_ints(name) or [1] * len(kernel) for name in ("strides", "dilations"))
    extents = [extent(k, d) for k, d in zip(kernel, dilations, strict=True)]
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    pads = (
        list(node.attributes.get_ints("pads") or [0] * 2 * len(kernel)) if auto == "NOTSET" else [0] * 2 * len(kernel)
    )
    if auto.startswith("SAME"):
        totals = [max(same_total(*axis) or 0, 0) for axis in zip(sizes, kernel, strides, dilations, strict=True)]
        pads = split_evenly(totals, odd_behind=auto == "SAME_UPPER")
    before, behind = pads[: len(kernel)], pads[len(kernel) :]
    output = []
    for size, first, last, stride, reach in zip(sizes, before, behind, strides, extents, strict=True):
        room = size + first + last - reach
        count = room // stride + 1
        if node.attributes.get_int("ceil_mode", 0) and room % stride and count * stride < size + first:
            count += 1
        output.append(count)
    return Window(
        kernel=tuple(kernel), strides=tuple(strides), dilations=tuple(dilations), before=tuple(before), behind=tuple(behind),
        output=tuple(output),
    )  # fmt: skip


def convolution(node: ir.Node, x: Stored, w: Stored, bias: Stored | Array | None, arithmetic: Arithmetic) -> Sum:
    """Conv: x [N, C, spatial…], w [M, C/group, kernel…] with an encoding per-tensor or along axis 0."""
    data, weight, group = x.centered(), w.centered(), node.attributes.get_int("group", 1)
    window = window_of(node, data.shape[2:], weight.shape[2:])
    rank, batch, count = data.ndim, data.shape[0], weight.shape[0]
    parts = weight.reshape(group, count // group, *weight.shape[1:])
    acc: Integers = np.zeros((batch, group, count // group, math.prod(window.output)), np.int64)
    for place, tap in window.taps(data, 0):
        columns = tap.reshape(batch, group, -1, math.prod(window.output))
        acc = exact_sum(acc, exact_matmul(parts[_last(place)], columns))
    acc = acc.reshape(batch, count, *window.output)
    return _product_sum(acc, x, w, bias, arithmetic, scales=_channel_scales(w, 0), axis=1 - rank)


def transposed_convolution(
    node: ir.Node, x: Stored, w: Stored, bias: Stored | Array | None, arithmetic: Arithmetic
) -> Sum:
    """ConvTranspose: x [N, C, spatial…], w [C, M/group, kernel…] with an encoding per-tensor or along axis 1."""
    data, weight, group = x.centered(), w.centered(), node.attributes.get_int("group", 1)
    sizes, kernel = data.shape[2:], weight.shape[2:]
    batch, channels, rank = data.shape[0], weight.shape[1] * group, len(kernel)
    strides, dilations = (node.attributes.get_ints(name) or [1] * rank for name in ("strides", "dilations"))
    more = node.attributes.get_ints("output_padding") or [0] * rank
    steps = list(zip(sizes, kernel, strides, dilations, more, strict=True))
    before, behind = _transposed_pads(node, steps)
    full = [transposed_total(*step, 0) for step in steps]
    acc: Integers = np.zeros((batch, channels, *full), np.int64)
    columns = data.reshape(batch, group, data.shape[1] // group, -1)
    parts = np.moveaxis(weight.reshape(group, -1, *weight.shape[1:]), 1, 2)  # [group, M/group, C/group, kernel…]
    for place in itertools.product(*map(range, kernel)):
        added = exact_matmul(parts[_last(place)], columns).reshape(batch, channels, *sizes)
        first = [i * d for i, d in zip(place, dilations, strict=True)]
        where = _last(slice(f, f + s * (n - 1) + 1, s) for f, n, s in zip(first, sizes, strides, strict=True))
        spread = np.zeros_like(acc, dtype=added.dtype)
        spread[where] = added
        acc = exact_sum(acc, spread)
    kept = (slice(b, n - e) for b, n, e in zip(before, full, behind, strict=True))
    scales = _channel_scales(w, 1)
    scales = np.tile(scales, group) if scales.size > 1 else scales
    return _product_sum(acc[_last(kept)], x, w, bias, arithmetic, scales=scales, axis=-1 - rank)


def _transposed_pads(node: ir.Node, steps: list[tuple[int, int, int, int, int]]) -> tuple[list[int], list[int]]:
    auto, wanted = node.attributes.get_string("auto_pad", "NOTSET"), node.attributes.get_ints("output_shape")
    if not wanted and not auto.startswith("SAME"):
        pads = list(node.attributes.get_ints("pads") or []) if auto == "NOTSET" else []
        pads = pads or [0] * 2 * len(steps)
    else:
        ends = list(wanted[-len(steps) :]) if wanted else [size * stride for size, _, stride, _, _ in steps]
        totals = [transposed_total(*step, end) for step, end in zip(steps, ends, strict=True)]
        if min(totals) < 0:
            raise NotRepresentable("it writes more elements than its windows reach, of which runtimes do not agree")
        pads = split_evenly(totals, odd_behind=auto == "SAME_UPPER")
    return pads[: len(steps)], pads[len(steps) :]


def matrix_product(node: ir.Node, a: Stored, b: Stored, bias: Stored | Array | None, arithmetic: Arithmetic) -> Sum:
    """MatMul, Gemm with alpha = beta = 1: a per-tensor, b per-tensor or along the axis of the output's columns."""
    if any(node.attributes.get_float(name, 1.0) != 1.0 for name in ("alpha", *(["beta"] if bias is not None else []))):
        raise NotRepresentable("its alpha and beta are not 1")
    first, second = a.centered(), b.centered()
    first = first.T if node.attributes.get_int("transA", 0) else first
    flipped = bool(node.attributes.get_int("transB", 0))
    acc = exact_matmul(first, second.T if flipped else second)
    scales = _channel_scales(b, 0 if flipped else second.ndim - 1 if second.ndim > 1 else None)
    return _product_sum(acc, a, b, bias, arithmetic, scales=scales, axis=-1)


def product(a: Stored, b: Stored, arithmetic: Arithmetic) -> Sum:
    """Mul of two per-tensor operands, broadcast."""
    acc = fit_accumulator(exact_product(a.centered(), b.centered()), arithmetic)
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
        padded = Window(
            kernel=window.kernel, strides=window.strides, dilations=window.dilations, before=(0,) * len(window.kernel),
            behind=window.behind, output=window.output,
        )  # fmt: skip
        counts = sum(
            (tap for _, tap in padded.taps(np.pad(ones, around, constant_values=1), 0)), np.zeros((), np.int64)
        )
    else:
        counts = sum((tap for _, tap in window.taps(ones, 0)), np.zeros((), np.int64))
    return Sum(acc=fit_accumulator(np.asarray(acc), arithmetic), product=_scale(x), divisor=np.maximum(counts, 1))


def mean(x: Stored, axes: Sequence[int], arithmetic: Arithmetic, *, keepdims: bool) -> Sum:
    """GlobalAveragePool and ReduceMean over ``axes``."""
    data = x.centered()
    acc = np.sum(data, axis=tuple(axes), keepdims=keepdims)
    count = math.prod(data.shape[axis] for axis in axes)
    return Sum(acc=fit_accumulator(np.asarray(acc), arithmetic), product=_scale(x), divisor=np.array(max(count, 1)))


def softmax(x: Stored, axis: int) -> Sum:
    """E[d] = round_half_even(exp(−d·s_x)·2^30), d = max − x along ``axis``; E / ΣE."""
    distance = x.integers.max(axis=axis, keepdims=True) - x.integers
    exponentials = np.exp(-np.arange(int(distance.max(initial=0)) + 1) * _scale(x))
    table = np.rint(exponentials * 2.0**30).astype(np.int64)
    found = table[distance]
    return Sum(acc=found, product=np.ones(1), divisor=found.sum(axis=axis, keepdims=True), integral=True)


def exact_matmul(a: Integers, b: Integers) -> Integers:
    """numpy's matmul on integers, without an overflow."""
    bound = _largest(a) * _largest(b) * (a.shape[-1] if a.ndim else 1)
    if bound < _FLOAT64_EXACT:
        return np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64))).astype(np.int64)
    return np.asarray(np.matmul(a.astype(object), b.astype(object)))


def _last(indices: Iterable[Any]) -> tuple[Any, ...]:
    """An index of the last axes."""
    return (..., *indices)


def _largest(array: Integers) -> int:
    return int(np.abs(array.astype(np.int64)).max(initial=0))


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
        flat = _per_channel(numbers, channels)
        scale = np.array(bias.encoding.scale, np.float64) if isinstance(bias, Stored) else None
        found = accumulator_bias(flat, steps, scale=scale)
        if isinstance(found, str):
            raise NotRepresentable(found)
        x_shift = found.x_shift
        laid = found.value.reshape([-1, *[1] * (-1 - axis)])
        acc = exact_sum(exact_product(acc, np.array(1 << x_shift)), laid)
    acc = fit_accumulator(acc, arithmetic)
    return Sum(acc=acc, product=np.ldexp(steps, -x_shift), axis=axis, has_slope=True)


def _per_channel(bias: npt.NDArray[Any], channels: int) -> npt.NDArray[Any]:
    """``bias`` flat, [C] or [1].

    Raises:
        NotRepresentable: it differs along another axis.
    """
    if bias.size not in (1, channels) or (bias.size > 1 and bias.shape[-1] != channels):
        raise NotRepresentable(f"its bias of shape {list(bias.shape)} is not one number per channel")
    return bias.reshape(-1)


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

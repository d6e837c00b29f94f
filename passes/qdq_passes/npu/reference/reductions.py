"""Reductions, average pools, softmax and normalizations of the reference. Of normalizations the sums are exact, with one root per
group in float64 and the rest in float32.

    S1 = Σ(x − z), S2 = Σ(x − z)² over a group of n
    v = n·S2 − S1², c = n·(x − z) − S1 about the mean; v = n·S2, c = n·(x − z) about 0
    k = s_x / n, r = float32(k / √(v·(k·k) + ε)), 0 where v = 0
    y = c·r·γ + β, each step in float32

An LpNormalization (p = 2) is one about 0 with γ = float32(1/√n) and ε = 0."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from qdq_passes.npu.reference import sums
from qdq_passes.npu.reference.movement import numbers_of
from qdq_passes.npu.reference.values import Moved, NotRepresentable, Real, ReferenceNode, Stored, Sum, Value
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import is_wide
from qdq_passes.numerics.requantize import Floats, exact_product, exact_sum, fit_accumulator


def reduced_sum(node: ReferenceNode) -> Sequence[Value]:
    """ReduceSum: an exact sum of integers minus their zero point."""
    x = node.stored(0)
    if len(x.encoding.scale) != 1:
        raise NotRepresentable(f"data with {x.encoding.granularity.kind} scales are read")
    acc = np.asarray(np.sum(x.centered(), axis=_axes(node, x.integers.ndim), keepdims=_keeps(node)))
    acc = fit_accumulator(acc, node.arithmetic, wide=is_wide(x.encoding.dtype))
    return [Sum(acc=acc, product=np.array(x.encoding.scale, np.float64))]


def reduced_mean(node: ReferenceNode) -> Sequence[Value]:
    """ReduceMean."""
    x, attributes = node.stored(0), node.node.attributes
    if not numbers_of(node.node, "axes", node.array(1)) and attributes.get_int("noop_with_empty_axes", 0) == 1:
        return [Moved(parts=(x,))]
    return [sums.mean(x, _axes(node, x.integers.ndim), node.arithmetic, keepdims=_keeps(node))]


def pooled_mean(node: ReferenceNode) -> Sequence[Value]:
    """AveragePool and GlobalAveragePool."""
    x = node.stored(0)
    if node.node.op_type == "AveragePool":
        return [sums.average_pool(node.node, x, node.arithmetic)]
    return [sums.mean(x, range(2, x.integers.ndim), node.arithmetic, keepdims=True)]


def softmax(node: ReferenceNode) -> Sequence[Value]:
    """Softmax along one axis."""
    x = node.stored(0)
    rank = x.integers.ndim
    axis = node.node.attributes.get_int("axis", -1 if node.opset >= 13 else 1) % rank
    if node.opset < 13 and axis != rank - 1:
        raise NotRepresentable(f"it works along all axes from {axis} on in opset {node.opset}")
    return [sums.softmax(x, axis)]


def reduced_extreme(node: ReferenceNode) -> Sequence[Value]:
    """ReduceMax and ReduceMin: the integer of the largest number is the largest."""
    x = node.stored(0)
    axes, keepdims = _axes(node, x.integers.ndim), _keeps(node)
    reduce = np.max if node.node.op_type == "ReduceMax" else np.min
    return [Moved(parts=(x.moved(lambda integers: np.asarray(reduce(integers, axis=axes, keepdims=keepdims))),))]


def _axes(node: ReferenceNode, rank: int) -> tuple[int, ...]:
    axes = numbers_of(node.node, "axes", node.array(1)) or []
    if not axes and node.node.attributes.get_int("noop_with_empty_axes", 0) == 1:
        raise NotRepresentable("it reduces no axis")
    return tuple(sorted({axis % rank for axis in axes})) or tuple(range(rank))


def _keeps(node: ReferenceNode) -> bool:
    return node.node.attributes.get_int("keepdims", 1) != 0


_EPSILON = 1e-5


def layer_norm(node: ReferenceNode) -> Sequence[Value]:
    """LayerNormalization: all axes from ``axis`` on; gain and shift are broadcast to x."""
    return [_over_axes(node, is_centered=True)]


def rms_norm(node: ReferenceNode) -> Sequence[Value]:
    """RMSNormalization and SimplifiedLayerNormalization."""
    return [_over_axes(node, is_centered=False)]


def instance_norm(node: ReferenceNode) -> Sequence[Value]:
    """InstanceNormalization: what is behind each channel of [N, C, …]."""
    x = node.stored(0)
    return [_over_channels(node, x, x.integers.shape[1], node.array(1), node.array(2))]


def group_norm(node: ReferenceNode) -> Sequence[Value]:
    """GroupNormalization; before opset 21 gain and shift are per group."""
    x, groups = node.stored(0), node.node.attributes.get_int("num_groups", 0)
    gain, shift = node.array(1), node.array(2)
    if node.opset < 21 and gain is not None and shift is not None:
        each = x.integers.shape[1] // groups
        gain, shift = np.repeat(gain, each), np.repeat(shift, each)
    return [_over_channels(node, x, groups, gain, shift)]


def lp_norm(node: ReferenceNode) -> Sequence[Value]:
    """LpNormalization with p = 2."""
    x = node.stored(0)
    if node.node.attributes.get_int("p", 2) != 2:
        raise NotRepresentable("it sums absolute values")
    axis = node.node.attributes.get_int("axis", -1) % x.integers.ndim
    if math.prod(x.integers.shape[axis + 1 :]) != 1:
        raise NotRepresentable("it does not normalize the last axis")
    gain = np.array(1.0 / np.sqrt(np.float64(x.integers.shape[axis])), np.float32)
    rows = x.integers.reshape(*x.integers.shape[: axis + 1], -1)
    real = _normalized(x, rows.reshape(*x.integers.shape[:axis], -1), 0.0, is_centered=False)
    return [Real(numbers=np.asarray(real * gain, np.float32).reshape(x.integers.shape))]


def _over_axes(node: ReferenceNode, *, is_centered: bool) -> Real:
    x = node.stored(0)
    shape = x.integers.shape
    axis = node.node.attributes.get_int("axis", -1) % len(shape)
    rows = x.integers.reshape(*shape[:axis], math.prod(shape[axis:]))
    real = _normalized(x, rows, _epsilon(node), is_centered=is_centered)
    return Real(numbers=_affine(real.reshape(shape), node.array(1), node.array(2)))


def _over_channels(node: ReferenceNode, x: Stored, groups: int, gain: Array | None, shift: Array | None) -> Real:
    shape = x.integers.shape
    real = _normalized(x, x.integers.reshape(shape[0], groups, -1), _epsilon(node), is_centered=True)
    per_channel = (shape[1], *[1] * (len(shape) - 2))
    parameters = [None if p is None else p.reshape(per_channel) for p in (gain, shift)]
    return Real(numbers=_affine(real.reshape(shape), *parameters))


def _epsilon(node: ReferenceNode) -> float:
    return float(np.float32(node.node.attributes.get_float("epsilon", _EPSILON)))


def _normalized(x: Stored, integers: Array, epsilon: float, *, is_centered: bool) -> Floats:
    """c·r along the last axis of ``integers``."""
    if len(x.encoding.scale) != 1:
        raise NotRepresentable(f"data with {x.encoding.granularity.kind} scales are read")
    data, count = integers - int(x.encoding.zero_point[0]), integers.shape[-1]
    total, n = data.sum(axis=-1, keepdims=True), np.array(count)
    squares = exact_product(n, (data * data).sum(axis=-1, keepdims=True))
    variance = exact_sum(squares, -exact_product(total, total)) if is_centered else squares
    centered = (exact_product(n, data) - (total if is_centered else 0)).astype(np.int64)
    step = np.float64(x.encoding.scale[0]) / np.float64(max(count, 1))
    wide = np.array([float(v) for v in variance.reshape(-1)], np.float64).reshape(variance.shape)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = (step / np.sqrt(wide * (step * step) + epsilon)).astype(np.float32)
    inverse = np.where(variance == 0, np.float32(0), inverse)
    return np.asarray(centered.astype(np.float32) * inverse, np.float32)


def _affine(real: Floats, gain: Array | None, shift: Array | None) -> Floats:
    with np.errstate(over="ignore"):
        for parameter, step in ((gain, np.multiply), (shift, np.add)):
            if parameter is None:
                continue
            if parameter.dtype != np.float32:
                raise NotRepresentable(f"a parameter is {parameter.dtype}")
            real = np.asarray(step(real, parameter), np.float32)
    return real

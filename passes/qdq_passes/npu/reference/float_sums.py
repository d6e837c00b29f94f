"""Sums that an NPU computes in floating point: products, reductions, softmax, normalizations, pools. Each sum is float32, starts
with 0, and adds one term after the other in the order of the index; each product is rounded to float32 before.
What moves elements and combines them besides: RotaryEmbedding, Resize that interpolates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from qdq_passes.npu.formulas.floats import batch_norm_factors, exponential
from qdq_passes.npu.reference.floats import ELEMENTWISE, FloatHandler, FloatNode, moved_floats
from qdq_passes.npu.reference.resize import taps_of
from qdq_passes.npu.reference.rotary import angles_of, heads_of
from qdq_passes.npu.reference.values import NotRepresentable
from qdq_passes.npu.reference.windows import last, spread_of, window_of
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.requantize import Floats


def product(a: Floats, b: Floats) -> Floats:
    """numpy's matmul in float32: Σ over k in its order."""
    if a.ndim == 1:
        return np.asarray(product(a[None], b)[..., 0, :] if b.ndim > 1 else product(a[None], b[:, None])[0, 0])
    if b.ndim == 1:
        return np.asarray(product(a, b[:, None])[..., 0])
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    total = np.zeros(shape, np.float32)
    for k in range(a.shape[-1]):
        total += a[..., :, k, None] * b[..., None, k, :]
    return total


def summed(x: Floats, axis: int = -1) -> Floats:
    """Σ along ``axis`` in float32, which stays with size 1."""
    x = np.moveaxis(x, axis, -1)
    total = np.zeros(x.shape[:-1], np.float32)
    for i in range(x.shape[-1]):
        total = total + x[..., i]
    return np.moveaxis(total[..., None], -1, axis)


def _matmul(node: FloatNode) -> list[Array]:
    return [product(node.number(0), node.number(1))]


def _gemm(node: FloatNode) -> list[Array]:
    """alpha·A·B + beta·C: the sum times alpha, C times beta, their sum; each rounded to float32."""
    a, b = node.number(0), node.number(1)
    attributes = node.node.attributes
    total = product(a.T if attributes.get_int("transA", 0) else a, b.T if attributes.get_int("transB", 0) else b)
    alpha, beta = (np.float32(attributes.get_float(name, 1.0)) for name in ("alpha", "beta"))
    total = total * alpha
    return [total if node.given(2) is None else total + node.number(2) * beta]


def _conv(node: FloatNode) -> list[Array]:
    """Σ over channel, then the places of the kernel; what lies in the padding is 0; then the bias."""
    x, w, group = node.number(0), node.number(1), node.node.attributes.get_int("group", 1)
    window = window_of(node.node, x.shape[2:], w.shape[2:])
    batch, count, pixels = x.shape[0], w.shape[0], math.prod(window.output)
    taps = np.stack([tap.reshape(batch, group, x.shape[1] // group, pixels) for _, tap in window.taps(x, 0)], axis=3)
    columns = taps.reshape(batch, group, -1, pixels)
    total = product(w.reshape(group, count // group, -1), columns).reshape(batch, count, *window.output)
    return [_with_bias(node, total)]


def _conv_transpose(node: FloatNode) -> list[Array]:
    """For each place of the kernel Σ over channels; these sums are added in the order of the places; then the bias."""
    x, w, group = node.number(0), node.number(1), node.node.attributes.get_int("group", 1)
    spread = spread_of(node.node, x.shape[2:], w.shape[2:])
    batch, channels = x.shape[0], w.shape[1] * group
    total = np.zeros((batch, channels, *spread.full), np.float32)
    columns = x.reshape(batch, group, x.shape[1] // group, -1)
    parts = np.moveaxis(w.reshape(group, -1, *w.shape[1:]), 1, 2)
    for place, where in spread.places():
        added = product(parts[last(place)], columns).reshape(batch, channels, *spread.sizes)
        total[where] = total[where] + added
    return [_with_bias(node, total[spread.kept])]


def _with_bias(node: FloatNode, total: Floats) -> Floats:
    if node.given(2) is None:
        return total
    return np.asarray(total + node.number(2).reshape(-1, *[1] * (total.ndim - 2)))


def _rows(x: Floats, axes: Sequence[int]) -> Floats:
    """``x`` with ``axes`` last and flat: their elements in the order of the index."""
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    turned = x.transpose(*kept, *sorted(axes))
    return turned.reshape(*turned.shape[: len(kept)], math.prod(x.shape[axis] for axis in axes))


def _reduction(reduce: Callable[[Floats], Floats]) -> FloatHandler:
    """A reduction of rows [..., n] to [..., 1]."""

    def handler(node: FloatNode) -> list[Array]:
        x = node.number(0)
        if node.node.op_type.startswith("Global"):
            axes, keep = list(range(2, x.ndim)), True
        else:
            given = node.integers("axes", 1) or []
            if not given and node.node.attributes.get_int("noop_with_empty_axes", 0) == 1:
                raise NotRepresentable("it reduces no axis")
            axes = sorted({axis % x.ndim for axis in given}) or list(range(x.ndim))
            keep = node.node.attributes.get_int("keepdims", 1) != 0
        found = reduce(_rows(x, axes))[..., 0]
        return [np.expand_dims(found, tuple(axes)) if keep else found]

    return handler


def _extreme(combine: np.ufunc) -> Callable[[Floats], Floats]:
    return lambda rows: np.asarray(combine.reduce(rows, axis=-1, keepdims=True) + np.float32(0))


def _mean(rows: Floats) -> Floats:
    return np.asarray(summed(rows) / np.float32(rows.shape[-1]))


def _softmax(node: FloatNode) -> list[Array]:
    """d = x − max, e = e^d, both rounded to the precision; e / Σe."""
    x = node.number(0)
    axis = node.node.attributes.get_int("axis", -1 if node.opset >= 13 else 1) % x.ndim
    if node.opset < 13 and axis != x.ndim - 1:
        raise NotRepresentable(f"it works along all axes from {axis} on in opset {node.opset}")
    e = node.rounded(exponential(node.rounded(x - x.max(axis=axis, keepdims=True, initial=-np.inf))))
    return [e / summed(e, axis)]


def normalized(x: Floats, epsilon: float, *, centered: bool) -> Floats:
    """(x − m) / √(v + ε) of rows [..., n], m = Σx / n, v = Σ(x − m)² / n; without ``centered`` m is 0."""
    count = np.float32(x.shape[-1])
    d = x - summed(x) / count if centered else x
    r = np.float32(1) / np.sqrt(summed(d * d) / count + np.float32(epsilon))
    return np.asarray(d * r)


def _layer_norm(*, centered: bool, epsilon: float) -> FloatHandler:
    """Over all axes from ``axis`` on; then times scale, plus bias, each rounded to float32."""

    def handler(node: FloatNode) -> list[Array]:
        _only_first(node)
        x = node.number(0)
        axis = node.node.attributes.get_int("axis", -1) % x.ndim
        rows = x.reshape(*x.shape[:axis], -1)
        found = normalized(rows, node.node.attributes.get_float("epsilon", epsilon), centered=centered).reshape(x.shape)
        found = found * node.number(1) if node.given(1) is not None else found
        return [found + node.number(2) if node.given(2) is not None else found]

    return handler


def _skip_norm(*, centered: bool) -> FloatHandler:
    """x + skip (+ bias), each sum rounded to the precision, then the normalization over the last axis; output 3 is that sum."""
    bias_at = 4 if centered else 3

    def handler(node: FloatNode) -> list[Array]:
        _only_first(node, but=3)
        total = node.stored(node.number(0) + node.number(1))
        if node.given(bias_at) is not None:
            total = node.stored(total + node.number(bias_at))
        found = normalized(total, node.node.attributes.get_float("epsilon", 1e-12), centered=centered) * node.number(2)
        if centered and node.given(3) is not None:
            found = found + node.number(3)
        nothing = np.zeros(0, np.float32)
        return [found, nothing, nothing, total][: len(node.node.outputs)]

    return handler


def _only_first(node: FloatNode, but: int = 0) -> None:
    read = [
        i for i, value in enumerate(node.node.outputs) if i and i != but and (value.uses() or value.is_graph_output())
    ]
    if read:
        raise NotRepresentable("its mean and variance are read")


def _group_norm(node: FloatNode) -> list[Array]:
    """Instance and group normalization of [N, C, …]: rows are groups; scale and bias per channel, or per group."""
    x = node.number(0)
    instance = node.node.op_type == "InstanceNormalization"
    groups = x.shape[1] if instance else node.node.attributes.get_int("num_groups", 1)
    rows = x.reshape(x.shape[0], groups, -1)
    found = normalized(rows, node.node.attributes.get_float("epsilon", 1e-5), centered=True).reshape(x.shape)
    scale, bias = (np.repeat(node.number(i), x.shape[1] // node.number(i).size) for i in (1, 2))
    laid = [-1, *[1] * (x.ndim - 2)]
    return [found * scale.reshape(laid) + bias.reshape(laid)]


def _batch_norm(node: FloatNode) -> list[Array]:
    """x·a + b, a = γ / √(σ² + ε) and b = β − μ·a in float32, then both and the product rounded to the precision."""
    x = node.number(0)
    scale, bias, mean, variance = (np.asarray(node.given(i), np.float32) for i in range(1, 5))
    a, b = batch_norm_factors(scale, bias, mean, variance, node.node.attributes.get_float("epsilon", 1e-5))
    laid = [-1, *[1] * (x.ndim - 2)]
    return [node.stored(x * node.rounded(a).reshape(laid)) + node.rounded(b).reshape(laid)]


def _lp_norm(node: FloatNode) -> list[Array]:
    """x / ‖x‖, the norm rounded to the precision; 0 where the norm is 0."""
    x = node.number(0)
    axis = node.node.attributes.get_int("axis", -1)
    squared = node.node.attributes.get_int("p", 2) == 2
    norm = node.stored(np.sqrt(summed(x * x, axis)) if squared else summed(np.abs(x), axis))
    return [np.where(norm == 0, np.float32(0), x / norm).astype(np.float32)]


def _max_pool(node: FloatNode) -> list[Array]:
    _only_first(node)
    x = node.number(0)
    window = window_of(node.node, x.shape[2:], ())
    found = np.maximum.reduce([tap for _, tap in window.taps(x, -np.inf)])
    return [np.asarray(found + np.float32(0), np.float32)]


def _average_pool(node: FloatNode) -> list[Array]:
    """Σ over the places of the kernel that lie in the data, divided by how many there are, with count_include_pad by those in
    the padding too."""
    x = node.number(0)
    window = window_of(node.node, x.shape[2:], ())
    total = np.zeros((*x.shape[:2], *window.output), np.float32)
    for _, tap in window.taps(x, 0):
        total = total + tap
    ones = np.ones((1, 1, *x.shape[2:]), np.float32)
    if node.node.attributes.get_int("count_include_pad", 0):
        around = [(0, 0), (0, 0), *zip(window.before, window.behind, strict=True)]
        ones = np.pad(ones, around, constant_values=1)
        window = replace(window, before=(0,) * len(window.kernel))
    counts = sum((tap for _, tap in window.taps(ones, 0)), np.zeros((), np.float32))
    return [total / np.maximum(counts, np.float32(1))]


#: Operator → what computes it.
HANDLERS: Mapping[tuple[str, str], FloatHandler] = {
    **ELEMENTWISE,
    ("", "MatMul"): _matmul,
    ("", "Gemm"): _gemm,
    ("", "Conv"): _conv,
    ("", "ConvTranspose"): _conv_transpose,
    ("", "ReduceSum"): _reduction(summed),
    ("", "ReduceMean"): _reduction(_mean),
    ("", "ReduceMax"): _reduction(_extreme(np.maximum)),
    ("", "ReduceMin"): _reduction(_extreme(np.minimum)),
    ("", "ReduceSumSquare"): _reduction(lambda rows: summed(rows * rows)),
    ("", "ReduceL1"): _reduction(lambda rows: summed(np.abs(rows))),
    ("", "ReduceL2"): _reduction(lambda rows: np.asarray(np.sqrt(summed(rows * rows)))),
    ("", "GlobalAveragePool"): _reduction(_mean),
    ("", "GlobalMaxPool"): _reduction(_extreme(np.maximum)),
    ("", "MaxPool"): _max_pool,
    ("", "AveragePool"): _average_pool,
    ("", "Softmax"): _softmax,
    ("", "LayerNormalization"): _layer_norm(centered=True, epsilon=1e-5),
    ("", "RMSNormalization"): _layer_norm(centered=False, epsilon=1e-5),
    ("", "SimplifiedLayerNormalization"): _layer_norm(centered=False, epsilon=1e-5),
    ("com.microsoft", "SkipLayerNormalization"): _skip_norm(centered=True),
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): _skip_norm(centered=False),
    ("", "InstanceNormalization"): _group_norm,
    ("", "GroupNormalization"): _group_norm,
    ("", "BatchNormalization"): _batch_norm,
    ("", "LpNormalization"): _lp_norm,
}


def _rotary(node: FloatNode, cosines: int, positions: Array | None) -> list[Array]:
    """y₁ = x₁·c − x₂·s, y₂ = x₂·c + x₁·s; products and results are rounded. What is read is moved first: it is stored too."""
    x, angles, sines = (node.stored(node.number(index)) for index in (0, cosines, cosines + 1))
    heads = heads_of(node.node, x.shape, angles.shape[-1])
    c, s = (angles_of(table, positions, heads) for table in (angles, sines))
    first, second = heads.pairs(x)
    y1 = node.stored(node.stored(first * c) - node.stored(second * s))
    y2 = node.stored(node.stored(second * c) + node.stored(first * s))
    return [heads.joined(y1, y2, heads.rest(x))]


def _onnx_rotary(node: FloatNode) -> list[Array]:
    return _rotary(node, 1, node.given(3))


def _contrib_rotary(node: FloatNode) -> list[Array]:
    return _rotary(node, 2, node.given(1))


def _resize(node: FloatNode) -> list[Array]:
    """Along each axis, the last but one first, a product with the matrix of interpolation, whose result is rounded."""
    if node.node.attributes.get_string("mode", "nearest") == "nearest":
        return moved_floats(node)
    x = node.number(0)
    for taps in taps_of(node.node, node.opset, x.shape, node.inputs[1:]):
        matrix = node.rounded(taps.matrix(x.shape[taps.axis]))
        if taps.axis == x.ndim - 2:
            x = node.stored(product(matrix, x))
        elif taps.axis == x.ndim - 1:
            x = node.stored(product(x, np.ascontiguousarray(matrix.T)))
        else:
            raise NotRepresentable("it interpolates along other than the last two axes")
    return [x]


#: Operator → what computes it.
MOVES: Mapping[tuple[str, str], FloatHandler] = {
    ("", "RotaryEmbedding"): _onnx_rotary,
    ("com.microsoft", "RotaryEmbedding"): _contrib_rotary,
    ("", "Resize"): _resize,
}

"""Surgery on biases: store one as integers, and let those at s_x·s_w follow when s_x or s_w has changed.

Their encoding in the accumulator of their layer is int32, scale s_x·s_w, zero point 0:
Y = Σ W·X + B with X = s_x·(q_x − z_x), W = s_w·q_w: the sum of integer products has the scale s_x·s_w, and an integer bias
of that scale is added without a multiplication (arXiv 1712.05877, equation 11). α and β of a Gemm do not enter: the
dequantized bias stands where the float one stood.

Where s_x·s_w is so small that int32 does not reach the bias, the weight can give way: with s_w' = |B| / (s_x·(2^31 − 1)) in that
channel the bias just fits, as onnxruntime's quantizer does it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.core.base import Change, skip
from qdq_passes.graph.annotate import ENCODING
from qdq_passes.graph.edit import Namer, drop_unread, new_constant, put_first, remove
from qdq_passes.graph.operators.channels import Use as BiasUse
from qdq_passes.graph.operators.channels import bias_channels
from qdq_passes.graph.operators.qdq_ops import is_quantize
from qdq_passes.graph.uses import constant_array, dtype_of, label, readers
from qdq_passes.numerics.arrays import Reals
from qdq_passes.numerics.encoding import FLOAT32_TINY, SMALLEST_SCALE, Encoding, integer_range
from qdq_passes.numerics.granularity import Granularity
from qdq_passes.numerics.quantize import dequantize, quantize
from qdq_passes.qdq.edit.pairs import Use, dequantize_node, fresh_base, members, requantize, write_encodings
from qdq_passes.qdq.look.biases import CoupledBias, float_type_of, product_at
from qdq_passes.qdq.look.grids import change_in_words
from qdq_passes.qdq.look.pairs import Pair, encoding_of, is_dequantize

INT32_MAX = 2**31 - 1
#: Widened scales leave this much room, so that rounding s_x·s_w to float32 (2^-24) does not undo it.
ROOM = 1 + 2.0**-20


def bias_encoding(value: ir.Value, uses: Sequence[BiasUse]) -> Encoding | str:
    """The int32 encoding of the bias ``value``, or why it has none.

    Args:
        value: a constant.
        uses: the (node, input index) that read it as a bias; input and weight of each are annotated or quantized already.

    A bias that layers of different products share has none (one tensor has one scale; onnxruntime's quantizer copies the bias for
    each layer instead); nor has one that int32 does not reach at that scale.
    """
    found = [_of_use(value, node) for node, _ in uses]
    for one in found:
        if isinstance(one, str):
            return one
    if any(one != found[0] for one in found[1:]):
        names = ", ".join(label(node) for node, _ in uses)
        return f"is shared by {names}, whose products s_x·s_w differ"
    return found[0]


def _of_use(value: ir.Value, node: ir.Node) -> Encoding | str:
    name = label(node)
    x, w = node.inputs[0], node.inputs[1]
    of_x, of_w = _encoding_at(x), _encoding_at(w)
    for source, encoding, what in ((x, of_x, "input"), (w, of_w, "weight")):
        if encoding is None:
            return f"the {what} {source.name if source is not None else ''} of {name} has no encoding"
    assert of_x is not None
    assert of_w is not None
    array = constant_array(value)
    assert array is not None
    if of_x.axis is not None or of_w.block_size:
        return f"the scales of {name} are not one per output channel"
    with np.errstate(over="ignore", under="ignore"):
        product = np.multiply(_stored_scale(x, of_x), _stored_scale(w, of_w), dtype=np.float32)
    axis = None
    if of_w.axis is not None:
        shape = constant_array(w)
        place = None if shape is None else bias_channels(node, of_w.axis % shape.ndim, shape.shape, array.shape)
        if place is None:
            return f"the scales of the weight of {name} do not run along its output channels"
        axis = place[0]
        product = np.tile(product, place[1])
    float_type = dtype_of(value) or ir.DataType.FLOAT
    with np.errstate(over="ignore", under="ignore"):
        scales = product.astype(float_type.numpy()).astype(np.float64)
    if (scales < SMALLEST_SCALE.get(float_type, FLOAT32_TINY)).any() or not np.isfinite(scales).all():
        shown = f"{float(product.min()):.3g} to {float(product.max()):.3g}"
        return f"s_x·s_w of {name} is {shown}, which {float_type.name.lower()} does not hold"
    magnitude = np.abs(array.astype(np.float64)) / Granularity(axis).expand(scales, array.shape)
    if magnitude.size and magnitude.max() > INT32_MAX:
        return f"is up to {float(magnitude.max()):.3g} steps of s_x·s_w of {name}, more than int32 holds"
    flat = tuple(scales.ravel().tolist())
    return Encoding(dtype=ir.DataType.INT32, scale=flat, zero_point=(0,) * len(flat), shape=scales.shape, axis=axis)


def _stored_scale(value: ir.Value | None, encoding: Encoding) -> npt.NDArray[np.float32]:
    """The scales as they are written, in the float type of ``value``."""
    float_type = (dtype_of(value) if value is not None else None) or ir.DataType.FLOAT
    return encoding.scale_array().astype(float_type.numpy()).astype(np.float32)


def _encoding_at(value: ir.Value | None) -> Encoding | None:
    """What a reader of ``value`` will see it quantized with."""
    if value is None:
        return None
    producer = value.producer()
    return ENCODING.get(value) or (encoding_of(producer) if producer is not None and is_dequantize(producer) else None)


def widen_weight(value: ir.Value, node: ir.Node, *, power_of_two: bool) -> float | None:
    """Raise the scales of the weight of ``node`` where int32 does not reach its bias ``value`` otherwise.

    Args:
        value: a constant.
        node: a layer that reads it as its bias.
        power_of_two: scales are raised by powers of two.

    Returns:
        The largest factor by which the annotation of the weight was raised; None where it was not: all fits, or the weight is
        quantized already, other nodes read it too, or its scales do not run along the channels.
    """
    w = node.inputs[1]
    of_x, of_w, array = _encoding_at(node.inputs[0]), ENCODING.get(w) if w is not None else None, constant_array(value)
    if w is None or of_x is None or of_w is None or of_x.axis is not None or of_w.block_size or array is None:
        return None
    if array.size == 0 or len(w.uses()) != 1:
        return None
    largest = np.abs(array.astype(np.float64))
    if of_w.axis is None:
        needed = largest.max(keepdims=False).reshape(1)
    else:
        place = bias_channels(node, of_w.axis % w.shape.rank(), w.shape.numpy(), array.shape) if w.shape else None
        if place is None:
            return None
        axis, repeats = place
        per_channel = np.moveaxis(largest, axis, 0).reshape(largest.shape[axis], -1).max(axis=1)
        needed = per_channel.reshape(repeats, -1).max(axis=0)
    scales = np.array(of_w.scale)
    factors = needed * ROOM / (float(_stored_scale(node.inputs[0], of_x)[()]) * INT32_MAX * scales)
    if power_of_two:
        factors = np.exp2(np.ceil(np.log2(np.maximum(factors, 1.0))))
    if not (np.isfinite(factors).all() and (factors > 1).any()):
        return None
    widened = np.where(factors > 1, (scales * factors).astype(np.float32).astype(np.float64), scales)
    if not np.isfinite(widened).all():
        return None
    ENCODING.set(w, replace(of_w, scale=tuple(widened.tolist())))
    return float(factors.max())


def values_of(pair: Pair) -> Reals | None:
    """The real values of a constant with a pair, in float64: float data before its Q, or what the integers stand for."""
    array, encoding = constant_array(pair.stored), pair.encoding
    if array is None or (pair.q is None and encoding is None):
        return None
    return (
        array.astype(np.float64) if pair.q is not None or encoding is None else dequantize(array, encoding, np.float64)
    )


def fits(values: Reals, encoding: Encoding) -> bool:
    """Whether the integers of ``values`` are within the type of ``encoding``, so that none is out by more than half a step."""
    scale = encoding.granularity.expand(encoding.scale_array().astype(np.float64), values.shape)
    low, high = integer_range(encoding.dtype, symmetric=False)
    steps = np.rint(values / scale)
    return bool(np.all((low <= steps) & (steps <= high)))


def store_bias(
    source: ir.Value, values: npt.NDArray[Any], encoding: Encoding, uses: Sequence[Use], namer: Namer,
    *, base: str, domain: str = "",
) -> ir.Node:  # fmt: skip
    """Give ``uses`` of the bias ``source`` integers of their own with a DequantizeLinear, which stands where ``source`` does.

    Args:
        source: what they read so far.
        values: its real values.
        encoding: how they are stored.
        uses: (node, input index) of the layers.
        namer: names of this run.
        base: float name that the new names start with.
        domain: domain of the DequantizeLinear.
    """
    graph, near = source.graph, [uses[0][0]]
    assert graph is not None
    scales = encoding.scale_array().astype(float_type_of(*uses[0]).numpy())
    scale = new_constant(graph, namer, f"{base}_scale", scales, near)
    zeros = ir.tensor(encoding.zero_point_array(), dtype=encoding.dtype)
    zero_point = new_constant(graph, namer, f"{base}_zero_point", zeros, near)
    integers = ir.tensor(quantize(values.astype(np.float64), encoding), dtype=encoding.dtype)
    stored = new_constant(graph, namer, f"{base}_quantized", integers, near)
    dq = dequantize_node(
        stored, scale, zero_point, encoding, namer, base=base, like=source, domain=domain, stands_for=near
    )
    put_first(graph, [dq])
    for node, index in uses:
        node.replace_input_with(index, dq.outputs[0])
    return dq


def follow_biases(coupled: Sequence[CoupledBias], edited: Collection[ir.Node], namer: Namer) -> Iterator[Change]:
    """Put biases back on s_x·s_w after the nodes ``edited`` got other encodings.

    A bias that several layers read is copied where their products have come to differ. One that int32 does not reach, or whose
    layer has no product any more, keeps its scale.

    Args:
        coupled: what `coupled_biases` found before the edit.
        edited: DequantizeLinear nodes whose encoding has changed.
        namer: names of this run.
    """
    touched: dict[ir.Node, list[CoupledBias]] = {}
    for one in coupled:
        if one.bias.dq not in edited and any(source in edited for source in one.sources):
            touched.setdefault(one.bias.dq, []).append(one)
    for dq, group in touched.items():
        wanted: dict[Encoding, list[Use]] = {}
        for one in group:
            target = _target(one)
            if isinstance(target, str):
                yield skip(dq, target)
            elif one.bias.encoding is not None and target.scale != one.bias.encoding.scale:
                wanted.setdefault(target, []).append((one.node, one.index))
        yield from _put(group[0].bias, wanted, namer)


def _target(one: CoupledBias) -> Encoding | str:
    target = product_at(one.node, one.index, one.factor)
    if isinstance(target, str):
        return f"keeps its scale: {target}"
    values = values_of(one.bias)
    if values is None or not fits(values, target):
        return f"keeps its scale: at s_x·s_w of {label(one.node)} int32 does not hold it"
    return target


def _put(pair: Pair, wanted: dict[Encoding, list[Use]], namer: Namer) -> Iterator[Change]:
    old, values = pair.encoding, values_of(pair)
    assert old is not None
    assert values is not None
    everyone = set(readers(pair.output))
    for new, uses in wanted.items():
        layers = ", ".join(dict.fromkeys(label(node) for node, _ in uses))
        because = f"follows s_x·s_w of {layers}: {change_in_words(old, new)}"
        if everyone == set(uses) and not pair.output.is_graph_output():
            if pair.q is None:
                requantize(pair, new, namer, integers=quantize(values, new))
            write_encodings(dict.fromkeys(members(pair), new), namer)
            yield Change("edit", pair.tensor, because)
            continue
        base = fresh_base(namer, pair.tensor or "bias")
        store_bias(pair.output, values, new, uses, namer, base=base, domain=pair.dq.domain)
        yield Change("insert", base, f"copy of {pair.tensor}, {because}")
    yield from drop_pair(pair)


def drop_pair(pair: Pair) -> Iterator[Change]:
    """Remove ``pair`` and what belongs to it alone, if nobody reads it any more."""
    yield from drop_pair_of(pair.dq)


def drop_pair_of(dq: ir.Node) -> Iterator[Change]:
    """Remove a DequantizeLinear that nobody reads, then the QuantizeLinear before it and the constants of both, if so."""
    integers = dq.inputs[0]
    q = integers.producer() if integers is not None else None
    for node in [dq, *([q] if q is not None and is_quantize(q) else [])]:
        if any(v.uses() or v.is_graph_output() for v in node.outputs):
            return
        inputs = list(node.inputs)
        yield from remove(node, "nobody reads it any more")
        yield from drop_unread(inputs)

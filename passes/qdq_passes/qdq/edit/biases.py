"""Surgery on biases: store one as integers, and let those at s_x·s_w follow when s_x or s_w has changed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.core.base import Change, skip
from qdq_passes.graph.edit import Namer, drop_unread, new_constant, put_first, remove
from qdq_passes.graph.operators.qdq_ops import is_quantize
from qdq_passes.graph.uses import constant_array, label, readers
from qdq_passes.numerics.arrays import Reals
from qdq_passes.numerics.encoding import Encoding, integer_range
from qdq_passes.numerics.quantize import dequantize, quantize
from qdq_passes.qdq.edit.encoding_words import change_in_words
from qdq_passes.qdq.edit.pairs import Use, dequantize_node, fresh_base, members, requantize, write_encodings
from qdq_passes.qdq.look.biases import CoupledBias, float_type_of, product_at
from qdq_passes.qdq.look.pairs import Pair


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

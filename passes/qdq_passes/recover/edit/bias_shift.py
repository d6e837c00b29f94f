"""Adding to the bias of a layer, or giving it one."""

from __future__ import annotations

from typing import Literal

import numpy as np
import onnx_ir as ir

from qdq_passes.core.base import Change, skip
from qdq_passes.graph.edit import Namer, graph_of, new_constant
from qdq_passes.graph.uses import constant_array, only_reader
from qdq_passes.numerics.arrays import Array, Reals
from qdq_passes.numerics.encoding import encoding_of_weight, is_integer_type
from qdq_passes.numerics.quantize import quantize
from qdq_passes.qdq.edit.biases import bias_encoding, store_bias, values_of
from qdq_passes.qdq.edit.pairs import insert_pairs, requantize, write_constant
from qdq_passes.qdq.look.pairs import Pair, pair_of
from qdq_passes.qdq.look.weighted_layers import WeightedLayer

#: What a bias becomes that was not there: int32 at s_x·s_w, int8 with a scale of its own, float, or none.
Made = Literal["float", "int32", "int8", "none"]


def shift_bias(
    model: ir.Model, layer: WeightedLayer, shift: Reals, made: Made, namer: Namer, *, because: str
) -> Change:
    """Add ``shift`` [output channels] to the bias of ``layer``, in the numbers that its node reads; a layer without one gets one.

    A quantized bias is rounded to its own grid. What cannot be changed is skipped, with the reason.
    """
    if layer.bias is None:
        return _make(model, layer, shift, made, namer, because)
    return _add(layer, *layer.bias, shift, namer, because)


def _make(model: ir.Model, layer: WeightedLayer, shift: Reals, made: Made, namer: Namer, because: str) -> Change:
    node, weight = layer.node, layer.weight_value
    if node.op_type == "MatMul":
        return skip(node, "has no bias, no Add of a constant stands behind it")
    if made == "none":
        return skip(node, "has no bias")
    kept = constant_array(layer.stored)
    dtype = (
        kept.dtype if kept is not None and layer.pair is not None and layer.pair.q is not None else np.dtype(np.float32)
    )
    if weight.dtype is not None:
        dtype = weight.dtype.numpy()
    data = shift.reshape(-1, 1) if layer.form.is_first else shift
    value = new_constant(graph_of(node), namer, f"{node.name}_bias", data.astype(dtype), [node])
    node.attributes.pop("beta", None)
    node.resize_inputs(max(3, len(node.inputs)))
    node.replace_input_with(2, value)
    kind = "float"
    if made == "int32":
        encoding = bias_encoding(value, [(node, 2)])
        if not isinstance(encoding, str):
            store_bias(value, data, encoding, [(node, 2)], namer, base=value.name or "bias")
            del graph_of(node).initializers[value.name or ""]
            kind = "int32"
    elif made == "int8":
        pow2 = layer.pair is not None and layer.pair.encoding is not None and layer.pair.encoding.position is not None
        encoding = encoding_of_weight(data, None, dtype=ir.DataType.INT8, symmetric=True, power_of_two=pow2)
        insert_pairs(model, value, encoding, namer)
        kind = "int8"
    return Change("insert", f"{node.name}_bias", f"{kind}, {_words(shift)} {because}")


def _add(layer: WeightedLayer, node: ir.Node, position: int, shift: Reals, namer: Namer, because: str) -> Change:
    """Add ``shift`` to the bias at input ``position`` of ``node``."""
    value = node.inputs[position]
    assert value is not None
    producer = value.producer()
    pair = pair_of(producer) if producer is not None else None
    data = shift.reshape(-1, 1) if layer.form.is_first else shift
    if pair is not None:
        return _add_quantized(layer, pair, data, shift, namer, because)
    old = constant_array(value)
    if old is None:
        return skip(layer.node, "its bias is computed")
    new = (old.astype(np.float64) + data).astype(old.dtype)
    made = write_constant(
        value, new if value.dtype is None else ir.tensor(new, dtype=value.dtype), [(node, position)], namer
    )
    return Change("edit", made.name or "", f"{_words(shift)} {because}")


def _add_quantized(layer: WeightedLayer, pair: Pair, data: Reals, shift: Reals, namer: Namer, because: str) -> Change:
    old, encoding = values_of(pair), pair.encoding
    if old is None or encoding is None or not is_integer_type(encoding.dtype):
        return skip(layer.node, "the scale of its bias is not constant")
    if only_reader(pair.output) is None or (pair.q is not None and only_reader(pair.q.outputs[0]) is None):
        return skip(layer.node, "others read its bias too")
    new = old + data
    if new.shape != old.shape and (encoding.axis is not None or pair.q is None):
        return skip(layer.node, f"its bias {list(old.shape)} is not one number for each output")
    if pair.q is None:
        requantize(pair, encoding, namer, integers=quantize(new, encoding))
    else:
        assert pair.stored is not None
        array = constant_array(pair.stored)
        assert array is not None
        kept: Array | ir.TensorProtocol = new.astype(array.dtype)
        if pair.stored.dtype is not None:
            kept = ir.tensor(new.astype(array.dtype), dtype=pair.stored.dtype)
        write_constant(pair.stored, kept, [(pair.q, 0)], namer)
    return Change("edit", pair.tensor, f"{_words(shift)} {because}")


def _words(shift: Reals) -> str:
    return f"up to {float(np.abs(shift).max(initial=0.0)):.4g} added"

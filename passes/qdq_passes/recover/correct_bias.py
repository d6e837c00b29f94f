"""correct-bias"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import onnx_ir as ir

from qdq_passes.core.base import Change, Keeps, Named, Pass, skip
from qdq_passes.graph.edit import Namer, graph_of, new_constant
from qdq_passes.graph.uses import constant_array, float_of, only_reader
from qdq_passes.numerics.arrays import Array, Reals
from qdq_passes.numerics.encoding import encoding_of_weight, is_integer_type
from qdq_passes.numerics.moments import LayerStatistics
from qdq_passes.numerics.quantize import dequantize, quantize
from qdq_passes.qdq.edit.biases import bias_encoding, store_bias, values_of
from qdq_passes.qdq.edit.pairs import insert_pairs, requantize, write_constant
from qdq_passes.qdq.look.pairs import Pair, pair_of
from qdq_passes.qdq.look.weighted_layers import WeightedLayer, weighted_layers
from qdq_passes.select.selectors import ALL, Selector, select_nodes

LayersSeen = Mapping[str, LayerStatistics]


@dataclass(frozen=True)
class CorrectBias(Pass):
    """Give biases what rounding the weights took from the mean of each output.

    A layer computes y = W·x + b; with rounded weights V the mean of y is off by (W − V)·E[x], which b' = b + (W − V)·E[x]
    puts right (arXiv 1906.04721, section 4.2). W·E[x] comes from the statistics, so the float weights need not be there any
    more. Gemm: α and β are taken account of. A bias that is quantized is rounded to its own grid.

    Graph: unchanged; biases get new data (copies, where others share them). A Conv, ConvTranspose or Gemm without a bias gets
    one, ``<node>_bias``: an int32 one at s_x·s_w with a DequantizeLinear, an int8 one with a pair, or a float one.
    Requires: pairs on weights, or integers with a DequantizeLinear; statistics with means.
    Keeps: names and encodings; the numbers change by less than rounding the weights has changed them.
    Skips: float weights; a MatMul without an Add of a constant behind it; batched weights; a bias that is computed, that several
    layers share, or whose scale is not constant.

    Args:
        statistics: what calibration saw of each layer's input, by the layer's name; normally ``@statistics``.
        select: the layers.
        made: what a bias is that was not there: ``int32`` at s_x·s_w, ``int8`` with a scale of its own, ``float``, or ``none``.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="biases change by the mean error of the rounded weights")
    statistics: Named | LayersSeen
    select: Selector = ALL
    made: Literal["float", "int32", "int8", "none"] = "float"

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Layer by layer."""
        wanted, namer = select_nodes(model, self.select), Namer(model)
        for layer in weighted_layers(model):
            if layer.node not in wanted or layer.pair is None:
                continue
            shift = self._shift(layer)
            if isinstance(shift, str):
                yield skip(layer.node, shift)
            elif not np.any(shift):
                yield skip(layer.node, "the means of its outputs are right")
            elif layer.bias is None:
                yield self._make(model, layer, shift, namer)
            else:
                yield _add(layer, *layer.bias, shift, namer)

    def _shift(self, layer: WeightedLayer) -> Reals | str:
        """(W − V)·E[x], what the bias is to grow by, [output channels]; or why it is not known."""
        assert not isinstance(self.statistics, Named)
        observed, (groups, outputs, width) = self.statistics.get(layer.name), layer.form.sizes
        if observed is None or observed.mean is None or observed.response is None:
            return f"the statistics have no means of {layer.name}"
        if observed.mean.shape != (groups, width) or observed.response.shape != (groups, outputs):
            return f"the statistics of {layer.name} are of means {list(observed.mean.shape)}, not {[groups, width]}"
        if layer.form.kind == "product" and groups > 1:
            return "its weight is batched"
        values = _rounded(layer)
        if values is None:
            return "the scale of its weight is not constant"
        shift = observed.response - np.einsum("grk,gk->gr", layer.form.rows(values), observed.mean)
        beta = float_of(layer.node, "beta", 1.0) if layer.node.op_type == "Gemm" and layer.bias is not None else 1.0
        if beta == 0:
            return "its beta is 0"
        return np.asarray(shift.reshape(-1) * (layer.form.factor / beta))

    def _make(self, model: ir.Model, layer: WeightedLayer, shift: Reals, namer: Namer) -> Change:
        node, weight = layer.node, layer.weight_value
        if node.op_type == "MatMul":
            return skip(node, "has no bias, no Add of a constant stands behind it")
        if self.made == "none":
            return skip(node, "has no bias")
        kept = constant_array(layer.stored)
        dtype = (
            kept.dtype
            if kept is not None and layer.pair is not None and layer.pair.q is not None
            else np.dtype(np.float32)
        )
        if weight.dtype is not None:
            dtype = weight.dtype.numpy()
        data = shift.reshape(-1, 1) if layer.form.is_first else shift
        value = new_constant(graph_of(node), namer, f"{node.name}_bias", data.astype(dtype), [node])
        node.attributes.pop("beta", None)
        node.resize_inputs(max(3, len(node.inputs)))
        node.replace_input_with(2, value)
        kind = "float"
        if self.made == "int32":
            encoding = bias_encoding(value, [(node, 2)])
            if not isinstance(encoding, str):
                store_bias(value, data, encoding, [(node, 2)], namer, base=value.name or "bias")
                del graph_of(node).initializers[value.name or ""]
                kind = "int32"
        elif self.made == "int8":
            pow2 = (
                layer.pair is not None and layer.pair.encoding is not None and layer.pair.encoding.position is not None
            )
            made = encoding_of_weight(data, None, dtype=ir.DataType.INT8, symmetric=True, power_of_two=pow2)
            insert_pairs(model, value, made, namer)
            kind = "int8"
        return Change("insert", f"{node.name}_bias", f"{kind}, {_words(shift)} for the mean error of {node.name}")


def _rounded(layer: WeightedLayer) -> Reals | None:
    """The weight as the layer computes with it."""
    assert layer.pair is not None
    encoding, array = layer.pair.encoding, constant_array(layer.stored)
    if encoding is None or array is None:
        return None
    integers = quantize(array, encoding) if layer.pair.q is not None else array
    return np.asarray(
        dequantize(integers, encoding, np.float64 if array.dtype == np.float64 else np.float32), np.float64
    )


def _add(layer: WeightedLayer, node: ir.Node, position: int, shift: Reals, namer: Namer) -> Change:
    """Add ``shift`` to the bias at input ``position`` of ``node``."""
    value = node.inputs[position]
    assert value is not None
    producer = value.producer()
    pair = pair_of(producer) if producer is not None else None
    data = shift.reshape(-1, 1) if layer.form.is_first else shift
    if pair is not None:
        return _add_quantized(layer, pair, data, shift, namer)
    old = constant_array(value)
    if old is None:
        return skip(layer.node, "its bias is computed")
    new = (old.astype(np.float64) + data).astype(old.dtype)
    made = write_constant(
        value, new if value.dtype is None else ir.tensor(new, dtype=value.dtype), [(node, position)], namer
    )
    return Change("edit", made.name or "", f"{_words(shift)} for the mean error of {layer.name}")


def _add_quantized(layer: WeightedLayer, pair: Pair, data: Reals, shift: Reals, namer: Namer) -> Change:
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
    return Change("edit", pair.tensor, f"{_words(shift)} for the mean error of {layer.name}")


def _words(shift: Reals) -> str:
    return f"up to {float(np.abs(shift).max(initial=0.0)):.4g} added"

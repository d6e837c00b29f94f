"""correct-bias"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Named, Pass, skip
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.uses import constant_array, float_of
from qdq_passes.numerics.arrays import Reals
from qdq_passes.numerics.moments import LayerStatistics
from qdq_passes.numerics.quantize import dequantize, quantize
from qdq_passes.qdq.look.weighted_layers import WeightedLayer, weighted_layers
from qdq_passes.recover.edit.bias_shift import Made, shift_bias
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
    made: Made = "float"

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
            else:
                yield shift_bias(model, layer, shift, self.made, namer, because=f"for the mean error of {layer.name}")

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

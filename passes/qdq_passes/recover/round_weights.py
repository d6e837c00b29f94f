"""round-weights"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Named, Pass, skip
from qdq_passes.errors import UsageError
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantize
from qdq_passes.graph.uses import readers
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import Encoding, integer_range, is_integer_type
from qdq_passes.numerics.moments import LayerStatistics
from qdq_passes.numerics.quantize import dequantize, quantize
from qdq_passes.qdq.edit.pairs import write_constant
from qdq_passes.qdq.look.weighted_layers import WeightedLayer, weighted_layers
from qdq_passes.recover.look.rounding import Grid, quadratic_error, round_rows, rounding_moment, why_unseen
from qdq_passes.select.selectors import ALL, Selector, select_nodes

LayersSeen = Mapping[str, LayerStatistics]


@dataclass(frozen=True)
class RoundWeights(Pass):
    """Round weights so that what a layer computes changes least, not each number by itself: errors compensate each other.

    Over inputs x of second moments H = E[x·xᵀ] a row w rounded to v costs E[((w − v)·x)²] = (w − v)·H·(w − v)ᵀ. Column by
    column v is rounded with what the errors before it leave to make up for, then column by column anew
    (`qdq_passes.recover.look.rounding` has the mathematics); a row for which that is no better than rounding to the nearest is
    rounded to the nearest. Weights of a convolution [M, C/g, k…] have rows of C/g·Πk numbers, one H a group.

    Graph: ``w → QuantizeLinear → DequantizeLinear → Conv``: unchanged; w holds numbers of the pair's grid, which
    QuantizeLinear turns into exactly the integers that were chosen (so does fold-weight-qdq).
    Requires: pairs on float weights, inserted with ``weights=qdq``; statistics with second moments.
    Keeps: the graph, encodings, names; weights move by steps of their grid.
    Skips: weights of which only integers are left; that something else reads too, or layers with another grid; storage types that
    are no integers; layers that the statistics do not have.

    Args:
        statistics: what calibration saw of each layer's input, by the layer's name; normally ``@statistics``.
        select: the layers.
        damping: part of the mean of H's diagonal that is added to the diagonal.
        sweeps: how often every column is tried again once all are rounded.
        centred: H is taken about the mean of x: for what ``correct-bias`` behind it leaves of the error.
        narrow: integers around zero point 0 leave out the most negative one: int8 stays within ±127.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="weights are rounded otherwise than to the nearest")
    statistics: Named | LayersSeen
    select: Selector = ALL
    damping: float = 0.01
    sweeps: int = 2
    centred: bool = False
    narrow: bool = True

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Weight by weight; layers that share one are rounded for both."""
        if not self.damping >= 0:
            raise UsageError(f"damping={self.damping:g} is negative", where=self.name(), hint="0.01 is usual")
        wanted, namer = select_nodes(model, self.select), Namer(model)
        assert not isinstance(self.statistics, Named)
        for stored, layers in stored_weights(model, wanted).items():
            reason = why_not_rounded(stored, layers) or why_unseen(self.statistics, layers, centred=self.centred)
            yield skip(layers[0].node, reason) if reason else self._round(stored, layers, namer)

    def _round(self, stored: ir.Value, layers: Sequence[WeightedLayer], namer: Namer) -> Change:
        layer, weight = layers[0], layers[0].float_weight
        encoding = layer.pair.encoding if layer.pair is not None else None
        assert weight is not None
        assert encoding is not None
        assert not isinstance(self.statistics, Named)
        form, moment = layer.form, rounding_moment(self.statistics, layers, centred=self.centred)
        grid, nearest = grid_of(layer, weight, encoding, narrow=self.narrow), quantize(weight, encoding)
        rows, plain = form.rows(weight), form.rows(nearest.astype(np.float64))
        integers = round_rows(rows, grid, plain, moment, damping=self.damping, sweeps=self.sweeps)
        chosen = form.weight(integers).astype(np.int64).astype(nearest.dtype)
        values = dequantize(chosen, encoding, weight.dtype)
        if not np.array_equal(quantize(values, encoding), chosen):
            return skip(layer.node, f"{weight.dtype} does not hold the numbers of its grid")
        count = int(np.count_nonzero(chosen != nearest))
        if not count:
            return skip(layer.node, "rounding to the nearest is the best that was found")
        before, after = (float(quadratic_error(rows, grid.values(q), moment).sum()) for q in (plain, integers))
        data: Array | ir.TensorProtocol = values if stored.dtype is None else ir.tensor(values, dtype=stored.dtype)
        write_constant(stored, data, readers(stored), namer)
        gain = f"{10 * math.log10(before / after):.1f} dB less" if after > 0 else "no"
        because = f"{count} of {weight.size} numbers rounded otherwise: {gain} error of {layer.name}"
        return Change("edit", stored.name or "", because)


def stored_weights(model: ir.Model, wanted: Collection[ir.Node]) -> dict[ir.Value, list[WeightedLayer]]:
    """The weights with pairs, and the layers that read each; those that a node of ``wanted`` reads."""
    groups: dict[ir.Value, list[WeightedLayer]] = {}
    for layer in weighted_layers(model):
        if layer.pair is not None:
            groups.setdefault(layer.stored, []).append(layer)
    return {stored: layers for stored, layers in groups.items() if any(layer.node in wanted for layer in layers)}


def grid_of(layer: WeightedLayer, weight: Array, encoding: Encoding, *, narrow: bool) -> Grid:
    """The grid of the weight of ``layer``, its scales laid out as the rows of `LayerForm`."""

    def laid_out(flat: Array) -> Array:
        whole = encoding.granularity.expand(flat.reshape(encoding.shape), weight.shape)
        return layer.form.rows(np.broadcast_to(whole, weight.shape)) if whole.ndim else whole

    low, high = integer_range(encoding.dtype, symmetric=narrow and encoding.is_symmetric)
    return Grid(
        scale=laid_out(encoding.scale_array().astype(weight.dtype).astype(np.float64)),
        zero=laid_out(np.array(encoding.zero_point, np.float64)),
        low=low,
        high=high,
        dtype=weight.dtype,
    )


def why_not_rounded(stored: ir.Value, layers: Sequence[WeightedLayer]) -> str:
    """Why the weight ``stored`` of ``layers`` cannot be rounded; nothing if it can."""
    weight, pair = layers[0].float_weight, layers[0].pair
    encoding = pair.encoding if pair is not None else None
    if weight is None:
        return "of its weight only integers are left; insert it with weights=qdq"
    if encoding is None or any(layer.pair is None or layer.pair.encoding != encoding for layer in layers):
        return "its scale is not constant, or layers that share its weight have other grids"
    if not is_integer_type(encoding.dtype):
        return f"{encoding.dtype.name.lower()} is no integer type"
    if any(layer.form != layers[0].form for layer in layers):
        return "layers that share its weight read it otherwise"
    if not np.isfinite(weight.astype(np.float64)).all():
        return "its weight holds values that are not finite"
    own = {(layer.node, layer.weight) for layer in layers}
    for node, _ in readers(stored):
        behind = [use for reader in readers(node.outputs[0]) for use in readers(reader[0].outputs[0])]
        halves = is_quantize(node) and all(is_dequantize(reader) for reader, _ in readers(node.outputs[0]))
        if not halves or not set(behind) <= own:
            return "something else reads its weight too"
    return "" if not stored.is_graph_output() else "its weight is an output of the graph"

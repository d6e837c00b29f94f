"""learn-rounding"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar, Protocol

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Named, Pass, skip
from qdq_passes.errors import UsageError
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.uses import constant_array, float_of, only_reader, readers
from qdq_passes.numerics.arrays import Array, Reals
from qdq_passes.numerics.encoding import is_integer_type
from qdq_passes.numerics.moments import LayerStatistics
from qdq_passes.numerics.quantize import dequantize, quantize
from qdq_passes.qdq.edit.biases import values_of
from qdq_passes.qdq.edit.pairs import write_constant
from qdq_passes.qdq.look.pairs import Pair, pair_of
from qdq_passes.qdq.look.weighted_layers import WeightedLayer, weighted_layers
from qdq_passes.recover.edit.bias_shift import Made, shift_bias
from qdq_passes.recover.look.learning import LayerSamples, Learned, Start, learn
from qdq_passes.recover.round_weights import grid_of, why_not_rounded
from qdq_passes.select.selectors import ALL, Selector, select_nodes


class Layers(Protocol):
    """What is known of a layer, in the model as it stands when it is asked."""

    def get(self, name: str, /) -> LayerSamples | LayerStatistics | None:
        """Of the layer whose node is called ``name``: samples to learn from, or what was learned; None for neither."""


@dataclass(frozen=True)
class LearnRounding(Pass):
    """Round weights, and choose biases, so that each layer gives what it gives in the float model, from the inputs that the
    quantized layers before it feed it.

    A regression of what is wanted on what comes in says which real weight is best, integers are rounded for the least error
    about it, and what a Relu, a Clip or the grid behind cuts off does not count (`qdq_passes.recover.look.learning`). Where a
    residual Add ends a block, its sum is what is wanted. So a layer also makes up for what those before it, and the grids of
    activations, have lost. Integers and bias that leave a larger error than rounding to the nearest are not taken.

    Graph: ``w → QuantizeLinear → DequantizeLinear → Conv``: unchanged; w holds numbers of the pair's grid, which
    QuantizeLinear turns into exactly the integers that were chosen (so does fold-weight-qdq); biases get new data, or are made.
    Requires: pairs on float weights, inserted with ``weights=qdq``; samples, or statistics that say what was learned.
    Keeps: the graph, encodings, names; weights move by steps of their grid.
    Skips: weights of which only integers are left, that several layers or something else reads, vectors and batches; storage
    types that are no integers; layers that the samples do not have.

    Args:
        statistics: samples of each layer by its name, or what was learned before; normally ``@statistics``.
        select: the layers.
        rounds: regressions, each on what the one before it leaves.
        sweeps: how often every column is tried again once all are rounded.
        narrow: integers around zero point 0 leave out the most negative one: int8 stays within ±127.
        made: what a bias is that was not there: ``int32`` at s_x·s_w, ``int8`` with a scale of its own, ``float``, or ``none``.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="weights are rounded otherwise than to the nearest, biases follow")
    statistics: Named | Layers
    select: Selector = ALL
    rounds: int = 4
    sweeps: int = 1
    narrow: bool = True
    made: Made = "float"

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Layer by layer, in the order of the graph."""
        if self.rounds < 1:
            raise UsageError(f"rounds={self.rounds} is less than 1", where=self.name(), hint="4 is usual")
        wanted, namer = select_nodes(model, self.select), Namer(model)
        layers = [layer for layer in weighted_layers(model) if layer.pair is not None]
        for layer in layers:
            if layer.node not in wanted:
                continue
            same = [other for other in layers if other.stored is layer.stored]
            reason = why_not_rounded(layer.stored, same) or why_not_alone(layer, len(same))
            if reason:
                yield skip(layer.node, reason)
                continue
            assert not isinstance(self.statistics, Named)
            known = self.statistics.get(layer.name)
            reason = _unfit(layer, known)
            if reason:
                yield skip(layer.node, reason)
            else:
                yield from self._rounded(model, layer, known, namer)

    def _rounded(
        self, model: ir.Model, layer: WeightedLayer, known: LayerSamples | LayerStatistics | None, namer: Namer
    ) -> Iterator[Change]:
        weight, pair = layer.float_weight, layer.pair
        assert weight is not None
        assert pair is not None
        encoding = pair.encoding
        assert encoding is not None
        form, nearest, bias = layer.form, quantize(weight, encoding), _bias_of(layer, self.made)
        if isinstance(known, LayerStatistics):
            assert known.integers is not None
            assert known.bias is not None
            integers, new, why = known.integers, known.bias, "as it was learned"
        else:
            assert known is not None
            start = Start(
                rows=form.rows(weight),
                nearest=form.rows(nearest.astype(np.float64)),
                bias=bias.values,
                grid=grid_of(layer, weight, encoding, narrow=self.narrow),
                stored=bias.stored if bias.is_free else None,
            )
            found = learn(start, known, rounds=self.rounds, sweeps=self.sweeps)
            integers, new, why = found.integers, found.bias, f"{_gain(found)} error of {layer.name}"
        chosen = form.weight(integers).astype(np.int64).astype(nearest.dtype)
        values = dequantize(chosen, encoding, weight.dtype)
        count = int(np.count_nonzero(chosen != nearest))
        is_shifted = not np.array_equal(new, bias.values) and not np.array_equal(new, bias.exact)
        if not np.array_equal(quantize(values, encoding), chosen):
            yield skip(layer.node, f"{weight.dtype} does not hold the numbers of its grid")
        elif not count and not is_shifted:
            yield skip(layer.node, "rounding to the nearest is the best that was found")
        else:
            stored = layer.stored
            data: Array | ir.TensorProtocol = values if stored.dtype is None else ir.tensor(values, dtype=stored.dtype)
            write_constant(stored, data, readers(stored), namer)
            yield Change("edit", stored.name or "", f"{count} of {weight.size} numbers rounded otherwise: {why}")
            if is_shifted:
                shift = (new - bias.exact).reshape(-1) / bias.factor
                yield shift_bias(model, layer, shift, self.made, namer, because=f"with the weight of {layer.name}")


def learned_of(model: ir.Model, *, scales: bool = False) -> dict[str, LayerStatistics]:
    """The integers and the bias that each layer of ``model`` has, by its name, with ``scales`` those, too: behind this pass, and
    `qdq_passes.recover.tune_weights`, all it takes to do the same without samples."""
    found = {}
    layers = [layer for layer in weighted_layers(model) if layer.pair is not None]
    for layer in layers:
        same = [other for other in layers if other.stored is layer.stored]
        weight, encoding = layer.float_weight, layer.pair.encoding if layer.pair is not None else None
        if why_not_rounded(layer.stored, same) or why_not_alone(layer, len(same)) or weight is None or encoding is None:
            continue
        integers = layer.form.rows(quantize(weight, encoding))
        small = integers.astype(np.int8) if encoding.dtype.bitwidth < 8 else integers
        found[layer.name] = LayerStatistics(
            integers=np.ascontiguousarray(small),
            bias=_bias_of(layer, "none").exact,
            scales=np.array(encoding.scale, np.float64) if scales else None,
        )
    return found


@dataclass(frozen=True, eq=False)
class _Bias:
    """The bias of a layer, in units of its output."""

    values: Reals
    exact: Reals
    factor: float
    is_free: bool
    pair: Pair | None = None
    dtype: np.dtype[np.generic] | None = None

    def stored(self, wanted: Reals) -> Reals:
        """``wanted`` as it is stored."""
        numbers = wanted / self.factor
        encoding = self.pair.encoding if self.pair is not None else None
        if encoding is not None:
            flat = numbers.reshape(-1)
            return (
                np.asarray(dequantize(quantize(flat, encoding), encoding, np.float64)).reshape(numbers.shape)
                * self.factor
            )
        return (
            numbers * self.factor if self.dtype is None else numbers.astype(self.dtype).astype(np.float64) * self.factor
        )


def _bias_of(layer: WeightedLayer, made: Made) -> _Bias:
    groups, outputs, _ = layer.form.sizes
    none = np.zeros((groups, outputs))
    if layer.bias is None:
        return _Bias(none, none, 1.0, is_free=made != "none" and layer.node.op_type != "MatMul")
    node, position = layer.bias
    value = node.inputs[position]
    assert value is not None
    producer = value.producer()
    pair = pair_of(producer) if producer is not None else None
    array = constant_array(value) if pair is None else values_of(pair)
    factor = float_of(node, "beta", 1.0) if node.op_type == "Gemm" else 1.0
    if array is None or array.size != groups * outputs or factor == 0:
        known = none if array is None or array.size != 1 else none + float(array.ravel()[0]) * factor
        return _Bias(known, known, 1.0, is_free=False)
    numbers = array.reshape(groups, outputs).astype(np.float64) * factor
    if pair is None:
        return _Bias(numbers, numbers, factor, True, None, array.dtype)
    encoding = pair.encoding
    is_own = only_reader(pair.output) is not None and (pair.q is None or only_reader(pair.q.outputs[0]) is not None)
    is_free = is_own and encoding is not None and is_integer_type(encoding.dtype)
    rounded = _Bias(numbers, numbers, factor, is_free, pair if is_free else None)
    return _Bias(rounded.stored(numbers), numbers, factor, is_free, rounded.pair)


def why_not_alone(layer: WeightedLayer, count: int) -> str:
    """Why nothing is learned of ``layer``, whose weight ``count`` layers read; nothing if it can be."""
    if count > 1:
        return "several layers share its weight"
    if layer.form.kind == "product" and len(layer.form.shape) != 2:
        return "its weight is a vector, or batched"
    return ""


def _unfit(layer: WeightedLayer, known: LayerSamples | LayerStatistics | None) -> str:
    """Why ``known`` does not do for ``layer``; nothing if it does."""
    groups, outputs, width = layer.form.sizes
    if isinstance(known, LayerStatistics) and known.integers is not None and known.bias is not None:
        fits = known.integers.shape == (groups, outputs, width) and known.bias.shape == (groups, outputs)
        shown = f"{list(known.integers.shape)}, not {[groups, outputs, width]}"
        return "" if fits else f"what was learned of {layer.name} is of integers {shown}"
    if not isinstance(known, LayerSamples) or not known.inputs.shape[1]:
        return f"there are no samples of {layer.name}"
    x, z = known.inputs.shape, known.wanted.shape
    if x[::2] == (groups, width) and z == (groups, x[1], outputs):
        return ""
    return f"the samples of {layer.name} are {list(x)} and {list(z)}, not {[groups, x[1], width]} and {[groups, x[1], outputs]}"


def _gain(found: Learned) -> str:
    return f"{10 * math.log10(found.before / found.after):.1f} dB less" if found.after > 0 else "no"

"""learn-rounding"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import onnx_ir as ir

from qdq_passes.core.base import Change, Keeps, Named, Pass, skip
from qdq_passes.errors import UsageError
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.uses import constant_array, float_of, only_reader, readers
from qdq_passes.numerics.arrays import Array, Reals
from qdq_passes.numerics.encoding import is_integer_type
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
    """What gives the samples of a layer, in the model as it stands when it is asked."""

    def get(self, name: str, /) -> LayerSamples | None:
        """Of the layer whose node is called ``name``; None where they are not known."""


@dataclass(frozen=True)
class LearnRounding(Pass):
    """..."""

    keeps: ClassVar[Keeps] = Keeps("changes", why="weights are rounded otherwise than to the nearest, biases follow")
    layers: Named | Layers
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
            reason = why_not_rounded(layer.stored, same) or _why_not(layer, len(same))
            if reason:
                yield skip(layer.node, reason)
                continue
            assert not isinstance(self.layers, Named)
            samples = self.layers.get(layer.name)
            reason = f"what {layer.name} reads and gives is not known" if samples is None else _unfit(layer, samples)
            if samples is None or reason:
                yield skip(layer.node, reason)
            else:
                yield from self._learn(model, layer, samples, namer)

    def _learn(self, model: ir.Model, layer: WeightedLayer, samples: LayerSamples, namer: Namer) -> Iterator[Change]:
        weight, pair = layer.float_weight, layer.pair
        assert weight is not None
        assert pair is not None
        encoding = pair.encoding
        assert encoding is not None
        form, nearest = layer.form, quantize(weight, encoding)
        bias = _bias_of(layer, self.made)
        start = Start(
            rows=form.rows(weight),
            nearest=form.rows(nearest.astype(np.float64)),
            bias=bias.values,
            grid=grid_of(layer, weight, encoding, narrow=self.narrow),
            stored=bias.stored if bias.is_free else None,
        )
        found = learn(start, samples, rounds=self.rounds, sweeps=self.sweeps)
        chosen = form.weight(found.integers).astype(np.int64).astype(nearest.dtype)
        values = dequantize(chosen, encoding, weight.dtype)
        if not np.array_equal(quantize(values, encoding), chosen):
            yield skip(layer.node, f"{weight.dtype} does not hold the numbers of its grid")
            return
        count, is_shifted = int(np.count_nonzero(chosen != nearest)), not np.array_equal(found.bias, bias.values)
        if not count and not is_shifted:
            yield skip(layer.node, "rounding to the nearest is the best that was found")
            return
        why = f"{_gain(found)} error of {layer.name}"
        if count:
            stored = layer.stored
            data: Array | ir.TensorProtocol = values if stored.dtype is None else ir.tensor(values, dtype=stored.dtype)
            write_constant(stored, data, readers(stored), namer)
            yield Change("edit", stored.name or "", f"{count} of {weight.size} numbers rounded otherwise: {why}")
        if is_shifted:
            flat = (found.bias - bias.exact).reshape(-1) / bias.factor
            yield shift_bias(model, layer, flat, self.made, namer, because=f"with the weights of {layer.name}")


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


def _why_not(layer: WeightedLayer, count: int) -> str:
    """Why nothing is learned of ``layer``, whose weight ``count`` layers read; nothing if it can be."""
    if count > 1:
        return "several layers share its weight"
    if layer.form.kind == "product" and len(layer.form.shape) != 2:
        return "its weight is batched"
    return ""


def _unfit(layer: WeightedLayer, samples: LayerSamples) -> str:
    groups, outputs, width = layer.form.sizes
    x, z = samples.inputs.shape, samples.wanted.shape
    if x[::2] != (groups, width) or z != (groups, x[1], outputs):
        return f"the samples of {layer.name} are {list(x)} and {list(z)}, not [{groups}, n, {width}] and [{groups}, n, {outputs}]"
    return "" if x[1] else f"there are no samples of {layer.name}"


def _gain(found: Learned) -> str:
    return f"{10 * math.log10(found.before / found.after):.1f} dB less" if found.after > 0 else "no"

"""tune-weights"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Protocol

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Named, Pass, skip
from qdq_passes.errors import UsageError
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.uses import readers
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import Encoding, integer_range
from qdq_passes.numerics.moments import LayerStatistics
from qdq_passes.numerics.quantize import dequantize, quantize
from qdq_passes.qdq.edit.pairs import write_constant
from qdq_passes.qdq.edit.reencode import Edit, reencode, settled, why_not_editable
from qdq_passes.qdq.look.weighted_layers import WeightedLayer
from qdq_passes.recover.learn_rounding import why_not_alone
from qdq_passes.recover.round_weights import stored_weights, why_not_rounded
from qdq_passes.select.selectors import ALL, Selector, select_nodes


class Tuned(Protocol):
    """What was found for all layers together, in the model as it stands when it is asked first."""

    def get(self, name: str, /) -> LayerStatistics | None:
        """Integers, and scales where they were tuned, of the layer whose node is called ``name``; None for neither."""


@dataclass(frozen=True)
class TuneWeights(Pass):
    """Give weights the integers and scales that were tuned together for what the whole model gives.

    Rounding layer by layer is best for what each layer gives, whatever becomes of it behind. Here all weights move at once along
    the gradient of the difference between the outputs of the quantized and the float model, which passes straight through the
    rounding; `qdqtool.quantization.tuning` finds them.

    Graph: ``w → QuantizeLinear → DequantizeLinear → MatMul``: unchanged; w holds numbers of the pair's grid, which QuantizeLinear
    turns into exactly the integers that were found (so does fold-weight-qdq); scales get new data.
    Requires: pairs on float weights, inserted with ``weights=qdq``; samples, or statistics that say what was found.
    Keeps: the graph, types, zero points, names, biases; scales that are powers of two stay as they are.
    Skips: weights of which only integers are left, that several layers or something else reads, vectors and batches; storage
    types that are no integers; layers that no output depends on.

    Args:
        statistics: what was tuned; normally ``@statistics``.
        select: the layers.
        steps: of the optimizer, where samples are given.
        narrow: integers around zero point 0 leave out the most negative one: int8 stays within ±127.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="weights are other numbers of their grids, whose scales may move")
    statistics: Named | Tuned
    select: Selector = ALL
    steps: int = 1000
    narrow: bool = True

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Scales first, then the weights on them."""
        if self.steps < 1:
            raise UsageError(f"steps={self.steps} is less than 1", where=self.name(), hint="1000 are usual")
        wanted, namer = select_nodes(model, self.select), Namer(model)
        edits, chosen = list[Edit](), list[tuple[WeightedLayer, Array, Encoding, Array]]()
        for stored, layers in stored_weights(model, wanted).items():
            reason = why_not_tuned(stored, layers)
            found = reason or self._found(layers[0], edits)
            if isinstance(found, str):
                yield skip(layers[0].node, found)
            else:
                chosen.append((layers[0], *found))
        yield from reencode(model, edits, namer)
        for layer, integers, encoding, before in chosen:
            yield _written(layer, integers, encoding, before, namer)

    def _found(self, layer: WeightedLayer, edits: list[Edit]) -> tuple[Array, Encoding, Array] | str:
        """What the weight of ``layer`` gets, the encoding that it has then, what it had; or why it stays."""
        assert not isinstance(self.statistics, Named)
        known, pair, weight = self.statistics.get(layer.name), layer.pair, layer.float_weight
        assert weight is not None
        assert pair is not None
        assert pair.encoding is not None
        if known is None or known.integers is None:
            return f"nothing was tuned of {layer.name}"
        if known.integers.shape != layer.form.sizes:
            return f"what was tuned of {layer.name} is of integers {list(known.integers.shape)}, not {list(layer.form.sizes)}"
        encoding, before = pair.encoding, quantize(weight, pair.encoding)
        low, high = integer_range(encoding.dtype, symmetric=self.narrow and encoding.is_symmetric)
        integers = np.clip(known.integers, low, high)
        if known.scales is not None and scales_can_move(layer):
            if known.scales.size != len(encoding.scale):
                return f"what was tuned of {layer.name} has {known.scales.size} scales, not {len(encoding.scale)}"
            new = settled(pair, replace(encoding, scale=tuple(np.asarray(known.scales, np.float64).ravel().tolist())))
            if new != encoding:
                count = int(np.count_nonzero(np.array(new.scale) != np.array(encoding.scale)))
                edits.append(Edit(pair, encoding, new, f"{count} of {len(encoding.scale)} scales moved"))
            encoding = new
        chosen = layer.form.weight(integers).astype(np.int64).astype(before.dtype)
        if encoding == pair.encoding and np.array_equal(chosen, before):
            return "its integers are the best that were found"
        return chosen, encoding, before


def why_not_tuned(stored: ir.Value, layers: list[WeightedLayer]) -> str:
    """Why the weight ``stored`` of ``layers`` cannot be tuned; nothing if it can."""
    return why_not_rounded(stored, layers) or why_not_alone(layers[0], len(layers))


def scales_can_move(layer: WeightedLayer) -> bool:
    """Whether scales of the weight of ``layer`` may be any: they are no powers of two, and no bias is at s_x·s_w."""
    pair, encoding = layer.pair, layer.pair.encoding if layer.pair is not None else None
    if pair is None or encoding is None or encoding.position is not None:
        return False
    return layer.bias is None and why_not_editable(pair, changes_type=False) is None


def _written(layer: WeightedLayer, integers: Array, encoding: Encoding, before: Array, namer: Namer) -> Change:
    weight, stored = layer.float_weight, layer.stored
    assert weight is not None
    values = dequantize(integers, encoding, weight.dtype)
    if not np.array_equal(quantize(values, encoding), integers):
        return skip(layer.node, f"{weight.dtype} does not hold the numbers of its grid")
    data: Array | ir.TensorProtocol = values if stored.dtype is None else ir.tensor(values, dtype=stored.dtype)
    write_constant(stored, data, readers(stored), namer)
    count = int(np.count_nonzero(before != integers))
    return Change(
        "edit", stored.name or "", f"{count} of {weight.size} numbers got another integer, for what comes out"
    )

"""The samples of learn-rounding: what each layer reads in the quantized model, whose layers before have their integers, and what
the float model has where the layer ends.

Both models run piece by piece, each node once. Of the data so many samples are taken as keep what both hold between two pieces
within `MEMORY`, and of a layer's vectors so many as its regression needs, at even distances."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from qdq_passes.errors import UsageError
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.layer_form import LayerForm, columns, outputs
from qdq_passes.qdq.look.weighted_layers import WeightedLayer, weighted_layers
from qdq_passes.recover.look.layer_end import LayerEnd, layer_end
from qdq_passes.recover.look.learning import LayerSamples

from qdqtool.calibrate.fingerprint import model_sha256
from qdqtool.io.feeds.hashes import EMPTY, add_feed
from qdqtool.io.files.progress import Progress
from qdqtool.runtime.stepwise import Stepwise

#: Samples that are taken at most; more of them add little to what a regression over thousands of positions knows.
SAMPLES = 256
#: Bytes of the values that are held between two pieces.
MEMORY = 1 << 30
#: Vectors of a layer: so many for each input of an output, at least and at most.
PER_INPUT, LEAST, MOST = 16, 4096, 1 << 15
#: Numbers of these vectors, and of what they are to give, at most: 128 MiB of float32.
NUMBERS = 1 << 25
#: Each fourth sample takes no part in a regression, and chooses between several.
HELD = 4


class LayersAt:
    """Samples by the name of a layer, to be asked for in the order of the graph, each layer once.

    Args:
        model: the quantized model; what is asked for is of its layers as they stand then.
        reference: the float model that was calibrated, its nodes called alike.
        feeds: the samples.
        samples: so many of them at most.
        memory: bytes of the values that are held between two pieces, at least those of one sample.
        progress: called after each layer.

    Attributes:
        samples: number of feeds that are used, once a layer was asked for.
        data_sha256: their fingerprint.
        model_sha256: that of the reference.

    """

    def __init__(
        self,
        model: ir.Model,
        reference: ir.Model,
        feeds: Iterable[Mapping[str, Any]],
        *,
        samples: int = SAMPLES,
        memory: int = MEMORY,
        progress: Progress | None = None,
    ) -> None:
        self._model, self._reference, self._progress = model, reference, progress
        self._feeds, self._most, self._memory, self._done, self._count = feeds, samples, memory, 0, 0
        self.samples, self.data_sha256, self.model_sha256 = 0, EMPTY, model_sha256(reference)
        self._runs: tuple[Stepwise, Stepwise] | None = None

    def get(self, name: str) -> LayerSamples | None:
        """The samples of the layer ``name``; None where the model has none of that name, or the float model no such node.

        Raises:
            UsageError: there is no sample.
        """
        layer = next((one for one in weighted_layers(self._model) if one.name == name), None)
        if layer is None:
            return None
        value, other, end = self._end(layer)
        read = layer.data_value.name or ""
        self._runs = self._runs or self._begun()
        seen = self._runs[0].take([read] if other is None else [read, other])
        ideal = self._runs[1].take([value])
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._count)
        if read not in seen or value not in ideal or (other is not None and other not in seen):
            return None
        return _samples(layer.form, seen[read], ideal[value], None if other is None else seen[other], end)

    def _begun(self) -> tuple[Stepwise, Stepwise]:
        """Both models before their first piece, on as many samples as there is memory for: one is run to see what it takes."""
        feeds = iter(self._feeds)
        first = list(itertools.islice(feeds, 1))
        if not first:
            raise UsageError("there is no sample to learn from, or the data can be read only once", hint="give a file")
        for value in self._model.graph.inputs:
            array = first[0].get(value.name or "")
            if array is not None and value.dtype is not None and ir.DataType.from_numpy(array.dtype) != value.dtype:
                raise UsageError(
                    f"rounding cannot be learned: {value.name} is {value.dtype.name.lower()} by now, the samples {array.dtype}",
                    hint="--round-weights",
                )
        layers = [layer for layer in weighted_layers(self._model) if layer.pair is not None]
        wanted = [self._end(layer)[0] for layer in layers]
        once, peak = (Stepwise(self._model, first), Stepwise(self._reference, first, wanted)), 1
        for layer, name in zip(layers, wanted, strict=True):
            once[0].take([layer.data_value.name or ""])
            once[1].take([name])
            peak = max(peak, once[0].nbytes + once[1].nbytes)
        used = [*first, *itertools.islice(feeds, max(1, min(self._most, self._memory // peak)) - 1)]
        self.samples, self._count = len(used), len(layers)
        for feed in used:
            self.data_sha256 = add_feed(self.data_sha256, feed)
        return Stepwise(self._model, used), Stepwise(self._reference, used, wanted)

    def _end(self, layer: WeightedLayer) -> tuple[str, str | None, LayerEnd]:
        """(value of the float model, value that is added to the layer's output in the quantized one, end) of ``layer``.

        What is added counts where it is there before the layer: behind it may be layers whose integers are not chosen yet.
        """
        end, places = layer_end(layer), {node: place for place, node in enumerate(self._model.graph)}
        named = {node.name: node for node in self._reference.graph if node.name}
        linear = end.linear.producer()
        if end.added is not None:
            node, index = end.added
            other = node.inputs[index]
            producer = other.producer() if other is not None else None
            if other is not None and node.name in named and (producer is None or places[producer] < places[layer.node]):
                return named[node.name].outputs[0].name or "", other.name or "", end
            end = replace(end, added=None, low=-np.inf, high=np.inf)
        twin = named.get(linear.name or "") if linear is not None else None
        return (twin.outputs[0].name or "" if twin is not None else ""), None, end


def _samples(
    form: LayerForm, inputs: Sequence[Array], wanted: Sequence[Array], added: Sequence[Array] | None, end: LayerEnd
) -> LayerSamples | None:
    """Vectors at even distances, those of the samples that choose behind those of the others."""
    groups, rows, width = form.sizes
    total = sum(array.size for array in wanted) // max(groups * rows, 1)
    most = min(max(PER_INPUT * width, LEAST), MOST, max(NUMBERS // (groups * max(rows, width)), 1))
    step = max(1, -(-total // most))
    order = sorted(range(len(inputs)), key=lambda index: index % HELD == HELD - 1)
    parts: list[tuple[Array, Array, Array | None]] = []
    passed = held = 0
    for index in order:
        x = np.concatenate(list(columns(form, inputs[index])), axis=1)
        z = outputs(form, wanted[index]).astype(x.dtype, copy=False)
        o = None if added is None else outputs(form, np.broadcast_to(added[index], wanted[index].shape)).astype(x.dtype)
        if z.shape[1] != x.shape[1]:
            return None
        picked = slice(-passed % step, None, step)
        passed += x.shape[1]
        x = x[:, picked] * x.dtype.type(form.factor)
        held += x.shape[1] if index % HELD == HELD - 1 else 0
        parts.append((x, z[:, picked], None if o is None else o[:, picked]))
    return LayerSamples(
        inputs=np.concatenate([x for x, _, _ in parts], axis=1),
        wanted=np.concatenate([z for _, z, _ in parts], axis=1),
        added=None if added is None else np.concatenate([o for _, _, o in parts if o is not None], axis=1),
        low=end.low,
        high=end.high,
        held=held,
    )

"""The tuning of all weights of a model, for what it gives on samples."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from qdq_passes.decoder.edit.all_logits import give_all_logits
from qdq_passes.errors import ModelError, UnsupportedError, UsageError
from qdq_passes.graph.edit import copy_model
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.moments import LayerStatistics
from qdq_passes.qdq.look.weighted_layers import WeightedLayer, weighted_layers
from qdq_passes.recover.tune_weights import why_not_tuned

from qdqtool.calibrate.fingerprint import model_sha256
from qdqtool.io.feeds.hashes import EMPTY, add_feed
from qdqtool.io.files.progress import Progress, Warn
from qdqtool.io.files.text_table import megabytes
from qdqtool.quantization.tuning.ends import End, ends_of
from qdqtool.quantization.tuning.latents import Latents
from qdqtool.runtime.gradients.graph import Gradients, at_opset, with_gradients
from qdqtool.runtime.session import Session, open_session
from qdqtool.runtime.taps import Taps

#: Steps where the pass says nothing, and samples of a step.
STEPS, BATCH = 1000, 4
#: Samples that are taken at most, and bytes of them and of what the float model makes of them.
SAMPLES, MEMORY = 1024, 1 << 31
#: Each so-many-th sample moves nothing, and says which of so many states on the way is the best.
HELD, STATES = 8, 8
#: Bytes that a weight takes: latent number, two moving averages, owner, gradients of a batch and their sum, copies (measured).
BYTES = 65
SEED = 0
LAYER_BY_LAYER = "--learn-rounding rounds layer by layer, without a gradient"


class Tuner:
    """What was tuned of each layer of a model, by its name; tuned when a layer is asked for first.

    Args:
        model: the quantized model, as it stands then.
        reference: the float model that was calibrated, its nodes called alike.
        feeds: the samples; those count that have the shapes of the first.
        progress: told (steps done, steps).
        warn: told of samples that do not count.

    Attributes:
        steps: of the optimizer, to be set before.
        narrow: whether integers around zero point 0 leave out the most negative one, likewise.
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
        progress: Progress | None = None,
        warn: Warn | None = None,
    ) -> None:
        self._model, self._reference, self._feeds, self._warn = model, reference, feeds, warn
        self.steps, self.narrow, self._progress = STEPS, True, progress
        self._found: dict[str, LayerStatistics] | None = None
        self.samples, self.data_sha256, self.model_sha256 = 0, EMPTY, model_sha256(reference)

    def get(self, name: str) -> LayerStatistics | None:
        """Integers and scales of the layer ``name``; None where it is not tuned.

        Raises:
            UsageError: there is no sample, nothing to compare, or more weights than there is memory for.
            UnsupportedError: an operator behind a weight has no gradient.
        """
        if self._found is None:
            self._found = self._tuned()
        return self._found.get(name)

    def _tuned(self) -> dict[str, LayerStatistics]:
        reference, model = copy_model(self._reference), copy_model(self._model)
        for each in (reference, model):
            at_opset(each)
            give_all_logits(each)
        layers, floats = _tunable(model), {each.name: each.float_weight for each in weighted_layers(reference)}
        ends = ends_of(model, reference)
        if not ends or not layers:
            what = "has no output in float32" if not ends else "has no weight that can be tuned"
            raise UsageError(f"the model {what}", hint=LAYER_BY_LAYER)
        _refuse_too_many(layers.values())
        samples = _Samples(reference, self._feeds, ends)
        if samples.others and self._warn is not None:
            whole = samples.others + len(samples.feeds)
            self._warn(f"weights are not tuned on {samples.others} of {whole} samples, of other shapes than the first")
        ends = [samples.settled(end) for end in ends]
        self.samples, self.data_sha256 = len(samples.feeds), samples.sha256
        latents = {
            name: Latents(each, _alike(floats.get(name), each), narrow=self.narrow) for name, each in layers.items()
        }
        values = {each.weight_value.name or "": name for name, each in layers.items()}
        seeds = {end.quantized: end.seed(samples.power[end.wanted]) for end in ends}
        arrays = {value: latents[name].values for value, name in values.items()}
        try:
            made = with_gradients(model, samples.feeds[:2], seeds, arrays)
        except UnsupportedError as error:
            raise UnsupportedError(error.message, where=error.where, hint=LAYER_BY_LAYER) from error
        if not made.gradients:
            raise UsageError("no output depends on a weight that can be tuned", hint=LAYER_BY_LAYER)
        run = _Run(made, samples, ends, {value: latents[name] for value, name in values.items()})
        try:
            run.optimize(self.steps, self._progress)
        except ModelError as error:
            raise UnsupportedError(
                f"the gradient fails: {error.message}", where=error.where, hint=LAYER_BY_LAYER
            ) from error
        return {name: latents[name].found for value, name in values.items() if value in made.gradients}


class _Samples:
    """The samples, and what the float model gives.

    Args:
        reference: the float model.
        feeds: of it.
        ends: what is compared.

    Attributes:
        feeds: inputs by name, and wanted values by the name of the input that they are fed as.
        power: mean square of each wanted value.
        sha256: fingerprint of the inputs.
        others: number of those that are left out, of other shapes than the first.
    """

    def __init__(self, reference: ir.Model, feeds: Iterable[Mapping[str, Any]], ends: Sequence[End]) -> None:
        taps, self.feeds = Taps(reference, [end.reference for end in ends]), list[dict[str, Array]]()
        self.sha256, self.others = EMPTY, 0
        names, taken = {value.name for value in reference.graph.inputs}, 0
        shapes: dict[str, tuple[int, ...]] = {}
        for feed in itertools.islice(feeds, SAMPLES):
            given = {name: np.asarray(array) for name, array in feed.items() if name in names}
            found = {name: array.shape for name, array in given.items()}
            shapes = shapes or found
            if found != shapes:
                self.others += 1
                continue
            values = taps.run(given)
            self.sha256 = add_feed(self.sha256, given)
            self.feeds.append({**given, **{end.wanted: values[end.reference] for end in ends}})
            taken += sum(array.nbytes for array in self.feeds[-1].values())
            if taken > MEMORY:
                break
        taps.session.close()
        if not self.feeds:
            raise UsageError("there is no sample to tune on, or the data can be read only once", hint="give a file")
        wanted = [end.wanted for end in ends]
        squares = {
            name: [float(np.mean(np.square(feed[name], dtype=np.float64))) for feed in self.feeds] for name in wanted
        }
        self.power = {name: math.fsum(each) / len(each) for name, each in squares.items()}
        held = [index for index in range(len(self.feeds)) if index % HELD == HELD - 1] or [len(self.feeds) - 1]
        self.held = [self.feeds[index] for index in held]
        self.taught = [feed for index, feed in enumerate(self.feeds) if index not in held] or self.feeds

    def settled(self, end: End) -> End:
        """``end``; one number alone is no distribution."""
        shape = self.feeds[0][end.wanted].shape
        return replace(end, axis=None) if end.axis is not None and shape[end.axis] == 1 else end


class _Run:
    """One run of the optimizer.

    Args:
        made: the model with gradients.
        samples: what it runs on.
        ends: what is compared.
        latents: what is tuned, by the value that a weight is.
    """

    def __init__(self, made: Gradients, samples: _Samples, ends: Sequence[End], latents: Mapping[str, Latents]) -> None:
        self._made, self._samples, self._ends, self._latents = made, samples, ends, latents
        self._session: Session = open_session(made.model)

    def optimize(self, steps: int, progress: Progress | None) -> None:
        """Take ``steps``; each of `Latents` keeps the state that loses least on the samples that are held back."""
        order, rng = list[int](), np.random.default_rng(SEED)
        batch = min(BATCH, len(self._samples.taught))
        with ThreadPoolExecutor(min(batch, os.cpu_count() or 1)) as pool:
            least = self._lost(pool)
            if not math.isfinite(least):
                where = self._ends[0].quantized
                raise UnsupportedError("what is lost there is no number", where=where, hint=LAYER_BY_LAYER)
            for step in range(1, steps + 1):
                while len(order) < batch:
                    order += rng.permutation(len(self._samples.taught)).tolist()
                chosen, order = [self._samples.taught[index] for index in order[:batch]], order[batch:]
                self._step(pool, chosen, 0.5 * (1 + math.cos(math.pi * (step - 1) / steps)))
                if progress is not None:
                    progress(step, steps)
                if step % max(steps // STATES, 1) == 0 or step == steps:
                    lost = self._lost(pool)
                    if lost < least:
                        least = lost
                        for each in self._latents.values():
                            each.keep()
        self._session.close()

    def _step(self, pool: ThreadPoolExecutor, chosen: Sequence[Mapping[str, Array]], rate: float) -> None:
        weights, names = self._weights(), self._made.gradients

        def gradients(feed: Mapping[str, Array]) -> dict[str, Array]:
            return self._session.run(self._fed(feed, weights), list(names.values()))

        found = list(pool.map(gradients, chosen))
        for value, name in names.items():
            total = sum((one[name] for one in found[1:]), found[0][name].copy())
            if not np.isfinite(total).all():
                raise UnsupportedError("its gradient is no number", where=value, hint=LAYER_BY_LAYER)
            self._latents[value].step(total / np.float32(len(found)), rate)

    def _lost(self, pool: ThreadPoolExecutor) -> float:
        """What is lost on the samples that are held back."""
        weights, power = self._weights(), self._samples.power

        def lost(feed: Mapping[str, Array]) -> float:
            values = self._session.run(self._fed(feed, weights), [end.quantized for end in self._ends])
            return sum(end.lost(values[end.quantized], feed[end.wanted], power[end.wanted]) for end in self._ends)

        found = list(pool.map(lost, self._samples.held))
        return math.fsum(found) / len(found)

    def _weights(self) -> dict[str, Array]:
        return {self._made.inputs[value]: each.values for value, each in self._latents.items()}

    def _fed(self, feed: Mapping[str, Array], weights: Mapping[str, Array]) -> dict[str, Array]:
        whole = {**feed, **weights}
        return {name: whole[name] for name in self._session.input_names}


def _refuse_too_many(layers: Iterable[WeightedLayer]) -> None:
    count = sum(layer.float_weight.size for layer in layers if layer.float_weight is not None)
    there = memory()
    if there is not None and count * BYTES > there:
        told = (
            f"{count:,} weights take {megabytes(count * BYTES)} while they are tuned, and there are {megabytes(there)}"
        )
        raise UsageError(told, hint=LAYER_BY_LAYER)


def memory() -> int | None:
    """Bytes of memory of this machine; None where it does not tell."""
    if not hasattr(os, "sysconf"):
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _tunable(model: ir.Model) -> dict[str, WeightedLayer]:
    """The layers whose weights can be tuned, by name."""
    found: dict[ir.Value, list[WeightedLayer]] = {}
    for layer in weighted_layers(model):
        if layer.pair is not None:
            found.setdefault(layer.stored, []).append(layer)
    real = {stored: each for stored, each in found.items() if stored.dtype in (ir.DataType.FLOAT, None)}
    return {layers[0].name: layers[0] for stored, layers in real.items() if not why_not_tuned(stored, layers)}


def _alike(float_weight: Array | None, layer: WeightedLayer) -> Array:
    """The weight of the float model, where it has that layer."""
    own = layer.float_weight
    assert own is not None
    return own if float_weight is None or float_weight.shape != own.shape else float_weight

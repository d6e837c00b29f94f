"""What a planted fault is, the sample models it is planted in, and what it costs."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
from qdq_passes.graph.edit import copy_model
from qdq_passes.numerics.arrays import Array

import qdqtool
from qdqtool.comparison.cumulative import compare_models
from qdqtool.io.feeds.feeds import Feeds, open_feeds
from qdqtool.io.feeds.spec import input_specs
from qdqtool.presets.loading import load_preset
from qdqtool.quantization.plan import plan
from qdqtool.quantization.quantizing import prepare
from qdqtool.runtime.taps import Taps
from tests.bench.faults.places import culprits, known, pairs_of, scaled, shuffled, with_encoding

ROOT = Path(__file__).parents[3]

#: Samples that ranges are observed on, and others that costs are measured on.
CALIBRATION, TEST = 16, 8
#: How much coarser a loud tensor is, and what all of them cost at most, in dB.
LOUD, LOUD_DB = 16.0, 0.3
#: SQNR that counts as exact, in dB.
EXACT_DB = 200.0

#: Arrays by the name of the model's input, as verbs take for data; the first axis is that of samples.
Data = Mapping[str, Array]


@dataclass(frozen=True, eq=False, kw_only=True)
class Fault:
    """A quantized model with one known fault.

    Args:
        name: seed, kind, model, preset and place in one word.
        kind: see `tests.bench.faults.kinds.KINDS`.
        float_model: reference, prepared as the preset prepares it: layers are folded, tensors have the names of the others.
        good: quantized without the fault.
        bad: quantized with it.
        data: samples that no range was observed on.
        culprits: names that count as found: the tensor, its pair's nodes, the layer that writes it, or reads it where it is a weight.
        cause: the word for it.
        cost_db: end-to-end SQNR of ``good`` less that of ``bad``.
    """

    name: str
    kind: str
    float_model: ir.Model
    good: ir.Model
    bad: ir.Model
    data: Data
    culprits: frozenset[str]
    cause: str
    cost_db: float

    def feeds(self) -> Feeds:
        """The data, sample by sample."""
        return feeds_of(self.float_model, self.data)


@dataclass(frozen=True, eq=False, kw_only=True)
class Base:
    """A sample model that a fault may be planted in.

    Args:
        model, preset: names.
        float_model: prepared as the preset does, in float.
        good: quantized.
        calibration, test: data.
        loud: tensors that were made coarse on purpose where outputs hardly notice: what ranks by local noise alone goes there.
        loud_names: the names that stand for them; no fault is planted there.
    """

    model: str
    preset: str
    float_model: ir.Model
    good: ir.Model
    calibration: Data
    test: Data
    loud: tuple[str, ...] = ()
    loud_names: frozenset[str] = frozenset()

    def seen(self, float_model: ir.Model, tensor: str) -> Array:
        """The values of ``tensor`` in a form of the float model, on the calibration data."""
        taps = Taps(float_model, [tensor])
        found = [np.ravel(taps.run(feed)[tensor]) for feed in feeds_of(float_model, self.calibration)]
        taps.session.close()
        return np.concatenate(found)

    def quantized(self, float_model: ir.Model, *exclude: str) -> ir.Model:
        """``float_model`` by the preset, without the nodes called ``exclude``."""
        done = qdqtool.quantize(
            copy_model(float_model), preset=self.preset, data=dict(self.calibration), exclude=[*exclude]
        )
        return _coarse(done.model, self.loud)


@functools.cache
def base(model: str, preset: str, loud: int = 0) -> Base:
    """The sample ``model`` with ``preset``, quantized once; with up to ``loud`` tensors that are coarse and do no harm."""
    if loud:
        return _with_loud(base(model, preset), loud)
    path, read = MODELS[model]
    float_model = qdqtool.load(ROOT / path)
    ir.external_data.load_to_model(float_model)
    for _ in range(2):  # what the first time inserts, the second merges; a third changes nothing
        prepare(float_model, plan(load_preset(preset)))
    calibration, test = read()
    done = qdqtool.quantize(copy_model(float_model), preset=preset, data=dict(calibration))
    return Base(
        model=model, preset=preset, float_model=float_model, good=done.model, calibration=calibration, test=test
    )


def _with_loud(quiet: Base, loud: int) -> Base:
    good, before = quiet.good, sqnr(quiet.float_model, quiet.good, quiet.test)
    tensors, names = list[str](), frozenset[str]()
    for pair in shuffled(pairs_of(good, "activation"), np.random.default_rng(0)):
        coarse = _coarse(good, (pair.tensor,))
        if len(tensors) < loud and before - sqnr(quiet.float_model, coarse, quiet.test) < LOUD_DB:
            good = coarse
            tensors.append(pair.tensor)
            names |= culprits(quiet.good, pair)
    return replace(quiet, good=good, loud=tuple(tensors), loud_names=names)


def _coarse(model: ir.Model, tensors: tuple[str, ...]) -> ir.Model:
    """``model`` with steps `LOUD` times as large at those of ``tensors`` that have a pair."""
    for pair in pairs_of(model, "activation"):
        if pair.tensor in tensors:
            model = with_encoding(model, pair, scaled(known(pair), LOUD))
    return model


def sqnr(float_model: ir.Model, quantized: ir.Model, data: Data) -> float:
    """End-to-end SQNR in dB, of the worst output."""
    found = compare_models(float_model, quantized, feeds_of(float_model, data), tensors=[]).min_sqnr
    return EXACT_DB if found is None else found


def feeds_of(model: ir.Model, data: Data) -> Feeds:
    """``data`` sample by sample."""
    return open_feeds(dict(data), input_specs(model))


def _stored(calibration: str, test: str) -> tuple[Data, Data]:
    with np.load(ROOT / calibration) as one, np.load(ROOT / test) as other:
        return {"input": one["input"][:CALIBRATION]}, {"input": other["input"][:TEST]}


def _images() -> tuple[Data, Data]:
    sys.path.insert(0, str(ROOT / "sample_models"))
    from mobilenet_block import images  # type: ignore[import-not-found]

    return {"input": images(CALIBRATION, seed=1)}, {"input": images(TEST, seed=9)}


def _noise() -> tuple[Data, Data]:
    random = np.random.default_rng(1)
    one, other = (random.normal(size=(count, 64)).astype(np.float32) for count in (CALIBRATION, TEST))
    return {"input": one}, {"input": other}


#: File and data by the name of the model.
MODELS: Mapping[str, tuple[str, Callable[[], tuple[Data, Data]]]] = {
    "digits": (
        "qdqtool/_demo/digits.onnx",
        functools.partial(_stored, "qdqtool/_demo/calib.npz", "qdqtool/_demo/test.npz"),
    ),
    "detector": (
        "sample_models/detector.onnx",
        functools.partial(_stored, "sample_models/detector_calib.npz", "sample_models/detector_test.npz"),
    ),
    "mobilenet_block": ("sample_models/mobilenet_block.onnx", _images),
    "vit_block": ("sample_models/vit_block.onnx", _images),
    "external_data": ("sample_models/external_data.onnx", _noise),
}

"""The public verbs in Python: what the commands do, with the same option names. The only place where two workflows meet."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import onnx_ir as ir
from qdq_passes.core.pipeline import Hook
from qdq_passes.core.select import Selector, select
from qdq_passes.errors import UsageError

from qdqtool.calibrate.collect import collect
from qdqtool.calibrate.ranges import Ranges
from qdqtool.comparison.cumulative import compare_models
from qdqtool.comparison.report import Comparison
from qdqtool.io.artifacts import sha256_of_file
from qdqtool.io.feed_spec import input_specs
from qdqtool.io.feeds import Feeds, FeedSpec, open_feeds
from qdqtool.io.images import ImageOptions
from qdqtool.io.load import load
from qdqtool.io.provenance import Provenance
from qdqtool.io.save import save
from qdqtool.presets.loading import load_preset
from qdqtool.presets.preset import Preset
from qdqtool.quantization.plan import RANGES, plan
from qdqtool.quantization.quantizing import Quantization, quantize_model
from qdqtool.targets.loading import load_target

ModelOrPath = ir.Model | str | os.PathLike[str]
Progress = Callable[[str, int, int | None], None]
Warn = Callable[[str], None]

#: Samples on which `quantize` measures its own SQNR: a figure for the summary, `compare` is the full measurement.
SQNR_SAMPLES = 16


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """A quantized model and the story of it.

    Args:
        model: the model.
        quantization: what was done.
        comparison: quantized against float on the first `SQNR_SAMPLES` samples; None without data.
        source_sha256: SHA-256 of the float model's file, empty for a model in memory.
    """

    model: ir.Model
    quantization: Quantization
    comparison: Comparison | None
    source_sha256: str

    @property
    def provenance(self) -> Provenance:
        """The entry that `save` notes in the model."""
        return provenance_of(str(self.quantization.plan.pipeline), self.source_sha256, self.quantization.ranges)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; the keys of the command's contract. ``sqnr_db`` is null when exact, absent without data."""
        data = self.quantization.to_json()
        if self.comparison is not None:
            data["sqnr_db"] = self.comparison.min_sqnr
            data["sqnr_samples"] = self.comparison.samples
        return data


def provenance_of(pipeline: str, source_sha256: str, ranges: Ranges | None = None) -> Provenance:
    """The provenance entry of a pipeline run: text and hashes only, so that equal work gives equal bytes."""
    inputs = [("model", source_sha256)] if source_sha256 else []
    if ranges is not None:
        inputs.append((RANGES, ranges.sha256))
    return Provenance(pipeline=pipeline, inputs=tuple(inputs))


def opened(model: ModelOrPath) -> tuple[ir.Model, str]:
    """A model to edit and the SHA-256 of its file; a model in memory is cloned, so that the caller's stays as it is."""
    if isinstance(model, ir.Model):
        return model.clone(), ""
    return load(model), sha256_of_file(model)


def calibrate(
    model: ModelOrPath,
    data: FeedSpec,
    *,
    method: str = "minmax",
    samples: int | None = None,
    seed: int = 0,
    image: ImageOptions | None = None,
    tensors: Sequence[str] | None = None,
    progress: Progress | None = None,
    warn: Warn | None = None,
) -> Ranges:
    """Ranges of the float tensors of ``model`` over ``data``; all of them, or those named in ``tensors``."""
    graph = model if isinstance(model, ir.Model) else load(model)
    feeds = open_feeds(data, input_specs(graph), samples=samples, seed=seed, image=image)
    found = collect(graph, feeds, method, tensors=tensors, progress=_stage(progress, "calibrating"))
    _pass_on(feeds.warnings, warn)
    return found


def quantize(
    model: ModelOrPath,
    output: str | os.PathLike[str] | None = None,
    *,
    preset: str | Preset = "xint8",
    data: FeedSpec | None = None,
    samples: int | None = None,
    seed: int = 0,
    image: ImageOptions | None = None,
    ranges: Ranges | str | os.PathLike[str] | None = None,
    method: str | None = None,
    target: str | None = None,
    exclude: Sequence[str] = (),
    only: Sequence[str] = (),
    isolate: bool = False,
    allow_empty: bool = False,
    weights: Literal["qdq", "dq"] | None = None,
    fuse_layers: bool = True,
    keep_functions: bool = False,
    overwrite: bool = False,
    no_provenance: bool = False,
    hooks: Iterable[Hook] = (),
    progress: Progress | None = None,
    warn: Warn | None = None,
) -> Quantized:
    """Quantize a float model: clean and fuse it, calibrate, insert QDQ pairs; write it to ``output`` where given.

    Args:
        model: path, or a model in memory (which stays as it is).
        output: where to write the result; None leaves it in memory.
        preset: name, file or `Preset`.
        data: calibration samples in any form of ``--data``.
        samples: take the first so many.
        seed: seed of random data.
        image: how images become inputs.
        ranges: ranges found before, instead of calibrating.
        method: calibration method instead of the preset's.
        target: target whose operator list is quantized.
        exclude: selectors of nodes that stay float.
        only: selectors of the only nodes to quantize.
        isolate: values of excluded nodes stay float altogether.
        allow_empty: a selector that matches nothing is a warning.
        weights: ``"qdq"`` (pair on the float weight) or ``"dq"`` (stored integers).
        fuse_layers: false leaves out folding and fusing.
        keep_functions: do not inline local functions.
        overwrite: replace an existing ``output``.
        no_provenance: leave out the metadata entry.
        hooks: pipeline hooks.
        progress: called with (stage, done, total).
        warn: called with each warning.

    Raises:
        QdqError: bad model, data or options; see each class's exit code.
    """
    chosen = preset if isinstance(preset, Preset) else load_preset(preset)
    work, source = opened(model)
    if allow_empty:
        exclude, only = (_matching(work, texts, warn) for texts in (exclude, only))
    job = plan(
        chosen,
        method=method,
        exclude=tuple(exclude),
        only=tuple(only),
        isolate=isolate,
        weights=weights,
        ops=load_target(target).quantized_ops() if target else (),
        fuse_layers=fuse_layers,
        keep_functions=keep_functions,
    )
    feeds = None
    if data is not None:
        feeds = open_feeds(data, input_specs(work), samples=samples, seed=seed, image=image)
    found = Ranges.read(ranges) if isinstance(ranges, str | os.PathLike) else ranges
    reference = work.clone() if feeds is not None else None
    done = quantize_model(work, job, feeds=feeds, ranges=found, hooks=hooks, progress=_stage(progress, "calibrating"))
    comparison = None
    if reference is not None and feeds is not None:
        few = itertools.islice(feeds, SQNR_SAMPLES)
        comparison = compare_models(reference, work, few, tensors=[], progress=_stage(progress, "comparing"))
        _pass_on(feeds.warnings, warn)
    result = Quantized(model=work, quantization=done, comparison=comparison, source_sha256=source)
    if output is not None:
        save(work, output, overwrite=overwrite, provenance=None if no_provenance else result.provenance)
    return result


def compare(
    a: ModelOrPath,
    b: ModelOrPath,
    data: FeedSpec,
    *,
    samples: int | None = None,
    seed: int = 0,
    image: ImageOptions | None = None,
    per_slice: int | None = None,
    tensors: Sequence[str] | None = None,
    progress: Progress | None = None,
    warn: Warn | None = None,
) -> Comparison:
    """Compare model ``b`` with the reference ``a`` on ``data``: SQNR, maximal difference, cosine, share of equal elements.

    Args:
        a: reference.
        b: tested model; tensors are matched by name, a quantized one by its dequantized value.
        data: samples in any form of ``--data``.
        samples: take the first so many.
        seed: seed of random data.
        image: how images become inputs.
        per_slice: axis along which to compare every index by itself as well.
        tensors: inner tensors to compare; None: all that both have; empty: outputs only.
        progress: called with (stage, done, total).
        warn: called with each warning.
    """
    first = a if isinstance(a, ir.Model) else load(a)
    second = b if isinstance(b, ir.Model) else load(b)
    feeds = open_feeds(data, input_specs(first), samples=samples, seed=seed, image=image)
    found = compare_models(
        first, second, feeds, per_slice=per_slice, tensors=tensors, progress=_stage(progress, "comparing")
    )
    _pass_on([*feeds.warnings, *found.warnings], warn)
    return found


def _matching(model: ir.Model, texts: Sequence[str], warn: Warn | None) -> tuple[str, ...]:
    """Those of ``texts`` that match something; the others are warned about."""
    kept = []
    for text in texts:
        try:
            select(model, Selector.of(text))
            kept.append(text)
        except UsageError as error:
            if warn is not None:
                warn(str(error))
    return tuple(kept)


def _stage(progress: Progress | None, name: str) -> Callable[[int, int | None], None] | None:
    return None if progress is None else lambda done, total: progress(name, done, total)


def _pass_on(warnings: Iterable[str], warn: Warn | None) -> None:
    if warn is not None:
        for text in warnings:
            warn(text)


__all__ = ["Feeds", "Quantized", "calibrate", "compare", "load", "opened", "provenance_of", "quantize", "save"]

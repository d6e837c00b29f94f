"""The verb `quantize`: where quantization and comparison meet."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import onnx_ir as ir
from qdq_passes.core.pipeline import Hook, run_pipeline
from qdq_passes.core.verify import verify

from qdqtool.api.ticking import Warn, pass_on, stage
from qdqtool.calibrate.ranges import Ranges
from qdqtool.comparison.cumulative import compare_models
from qdqtool.comparison.report import Comparison
from qdqtool.io.artifacts import write_json
from qdqtool.io.feed_spec import input_specs
from qdqtool.io.feeds import FeedSpec, open_feeds
from qdqtool.io.images import ImageOptions
from qdqtool.io.progress import StageProgress
from qdqtool.io.provenance import Provenance
from qdqtool.io.save import refuse_own_data, save
from qdqtool.io.working import ModelOrPath, opened, provenance_of, refuse_errors
from qdqtool.presets.loading import load_preset
from qdqtool.presets.preset import Preset
from qdqtool.quantization.calibrating import SQNR_SAMPLES, Passing, sqnr_samples
from qdqtool.quantization.extra_options import parse_extra_options
from qdqtool.quantization.options import Options
from qdqtool.quantization.plan import RANGES, Plan, plan
from qdqtool.quantization.quantizing import Quantization, prepare, quantize_model
from qdqtool.quantization.refusals import grouped, target_refusals
from qdqtool.targets.loading import load_target


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """A quantized model and the story of it.

    Args:
        model: the model.
        quantization: what was done.
        comparison: quantized against float on the first `sqnr_samples` samples; None without data.
        source_sha256: SHA-256 of the float model's file, empty for a model in memory.
        target_refusals: (node, reason) of what the target does not take as it was quantized; None without a target.
    """

    model: ir.Model
    quantization: Quantization
    comparison: Comparison | None
    source_sha256: str
    target_refusals: tuple[tuple[str, str], ...] | None = None

    @property
    def provenance(self) -> Provenance:
        """The entry that `save` notes in the model."""
        ranges = {RANGES: self.quantization.ranges.sha256}
        return provenance_of(str(self.quantization.plan.pipeline), self.source_sha256, ranges)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; the keys of the command's contract. ``sqnr_db`` is null when exact, absent without data."""
        data = self.quantization.to_json()
        if self.comparison is not None:
            data["sqnr_db"] = self.comparison.min_sqnr
            data["sqnr_samples"] = self.comparison.samples
        if self.target_refusals is not None:
            data["target_refusals"] = [{"node": node, "reason": reason} for node, reason in self.target_refusals]
        return data


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
    keep_sigmoid: bool = False,
    keep_functions: bool = False,
    extra_options: Mapping[str, object] | None = None,
    allow_findings: bool = False,
    overwrite: bool = False,
    no_provenance: bool = False,
    report: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    hooks: Iterable[Hook] = (),
    jobs: int = 1,
    progress: StageProgress | None = None,
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
        keep_sigmoid: leave Sigmoid as it is where the preset puts the DPU's HardSigmoid in its place.
        keep_functions: do not inline local functions.
        extra_options: options of onnxruntime's and of the Vitis AI quantizer by their names, ``{"per_channel": True}``; see
            `qdqtool.quantization.extra_options`.
        allow_findings: save although the model has errors that it came with.
        overwrite: replace an existing ``output``.
        no_provenance: leave out the metadata entry.
        report: where to write what became of each tensor (JSON): range, position, what is clipped, SQNR. Histograms are kept
            for it whatever the method.
        cache: folder for ranges: found again for the same model, data and method; an interrupted calibration goes on there.
        hooks: pipeline hooks.
        jobs: threads inside an operator; the figures are those of so many threads, to the last bit.
        progress: called with (stage, done, total).
        warn: called with each warning.

    Raises:
        QdqError: bad model, data or options; see each class's exit code.
    """
    work, source = opened(model)
    given = Ranges.read(ranges) if isinstance(ranges, str | os.PathLike) else ranges
    if given is not None and method is not None and given.method != method and warn is not None:
        warn(f"--method {method} is not used: the ranges given are of method {given.method}")
    job = planned(
        preset,
        method=method if given is None else given.method,
        target=target,
        exclude=exclude,
        only=only,
        isolate=isolate,
        weights=weights,
        fuse_layers=fuse_layers,
        keep_sigmoid=keep_sigmoid,
        keep_functions=keep_functions,
        extra_options=extra_options,
    )
    if output is not None:
        refuse_own_data(work, output)  # what lies there is let go of when weights become integers
    known = verify(work, minimum="error")
    feeds = None
    if data is not None:
        feeds = open_feeds(data, input_specs(work), samples=samples, seed=seed, image=image)
    passing = None if feeds is None else Passing(feeds, SQNR_SAMPLES)
    reference = None
    if feeds is not None:  # named alike, as onnxruntime takes no two nodes of one name
        reference = run_pipeline(work, "give-names", copy=True).model
    done = quantize_model(
        work, job, feeds=passing, ranges=given, allow_empty=allow_empty, hooks=hooks, warn=warn, threads=jobs,
        statistics=report is not None, cache=cache,
        progress=stage(progress, "calibrating", None if feeds is None else feeds.count),
    )  # fmt: skip
    refuse_errors(work, known, allow_findings=allow_findings)
    unfit = None if target is None else target_refusals(work, load_target(target))
    pass_on(grouped(unfit or ()), warn)
    comparison = None
    if reference is not None and passing is not None and feeds is not None:
        few = (passing.first or list(itertools.islice(feeds, SQNR_SAMPLES)))[: sqnr_samples(work)]
        ticks = stage(progress, "comparing", len(few))
        comparison = compare_models(reference, work, few, tensors=[], threads=jobs, progress=ticks)
        pass_on([*feeds.warnings, *comparison.warnings], warn)
    result = Quantized(
        model=work, quantization=done, comparison=comparison, source_sha256=source, target_refusals=unfit
    )
    if output is not None:
        save(work, output, overwrite=overwrite, provenance=None if no_provenance else result.provenance)
    if report is not None:
        write_json(report, kind="quantization", version=1, payload=result.to_json(), overwrite=overwrite)
    return result


def planned(
    preset: str | Preset,
    *,
    method: str | None = None,
    target: str | None = None,
    exclude: Sequence[str] = (),
    only: Sequence[str] = (),
    isolate: bool = False,
    weights: Literal["qdq", "dq"] | None = None,
    fuse_layers: bool = True,
    keep_sigmoid: bool = False,
    keep_functions: bool = False,
    extra_options: Mapping[str, object] | None = None,
) -> Plan:
    """What `quantize` with these options will run."""
    chosen = load_target(target) if target else None
    return plan(
        preset if isinstance(preset, Preset) else load_preset(preset),
        Options(
            method=method,
            exclude=tuple(exclude),
            only=tuple(only),
            isolate=isolate,
            weights=weights,
            fuse_layers=fuse_layers,
            keep_sigmoid=keep_sigmoid,
            keep_functions=keep_functions,
            extra=parse_extra_options(extra_options or {}),
        ),
        ops=chosen.quantized_ops() if chosen else (),
        legalization=chosen.legalization if chosen else None,
    )


def planned_for(model: ModelOrPath, job: Plan, *, allow_empty: bool = False, warn: Warn | None = None) -> Plan:
    """``job`` with its selectors tried on ``model`` (which stays as it is), as `quantize` would run it.

    Raises:
        UsageError: a selector matches nothing.
    """
    return prepare(opened(model)[0], job, allow_empty=allow_empty, warn=warn)[0]

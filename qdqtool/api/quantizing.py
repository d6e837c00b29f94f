"""The verb `quantize`: where quantization and comparison meet."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import onnx_ir as ir
from qdq_passes.errors import QdqError
from qdq_passes.pipeline.pipeline import Hook, run_pipeline
from qdq_passes.verification.rules import verify

from qdqtool.api.replaying import replay
from qdqtool.api.texts import is_folder, is_text, with_texts
from qdqtool.calibrate.ranges import Ranges
from qdqtool.calibrate.statistics import Statistics
from qdqtool.comparison.cumulative import compare_models
from qdqtool.comparison.report import Comparison
from qdqtool.io.feeds.feeds import FeedSpec, open_feeds
from qdqtool.io.feeds.images import ImageOptions
from qdqtool.io.feeds.spec import input_specs
from qdqtool.io.files.artifacts import write_json
from qdqtool.io.files.progress import StageProgress, Warn, pass_on, stage
from qdqtool.io.models.provenance import Provenance
from qdqtool.io.models.save import refuse_own_data, save
from qdqtool.io.models.working import ModelOrPath, opened, provenance_of, refuse_errors
from qdqtool.presets.loading import load_preset
from qdqtool.presets.preset import Preset
from qdqtool.presets.recovery import Alpha, Clips
from qdqtool.quantization.annotating import Annotator
from qdqtool.quantization.calibrating import SQNR_SAMPLES, Passing, sqnr_samples
from qdqtool.quantization.observing import without_angles
from qdqtool.quantization.options import NAMES, KvCache, LmHead, Options
from qdqtool.quantization.plan import RANGES, Plan, plan
from qdqtool.quantization.quantizing import Quantization, prepare, quantize_model
from qdqtool.quantization.recovery import STATISTICS, Recovering
from qdqtool.quantization.refusals import grouped, target_refusals
from qdqtool.search.recipe import Recipe
from qdqtool.targets.loading import load_target
from qdqtool.workers.cluster import open_workers

#: What is quantized to where nothing is said.
DEFAULT_PRESET = "xint8"


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
        done = self.quantization
        inputs = {RANGES: done.ranges.sha256} | ({STATISTICS: done.statistics.sha256} if done.statistics else {})
        return provenance_of(str(done.plan.pipeline), self.source_sha256, inputs)

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
    preset: str | Preset | None = None,
    recipe: Recipe | str | os.PathLike[str] | None = None,
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
    discard: Sequence[str] = (),
    annotate: Sequence[Annotator] = (),
    per_axis_conv: bool | None = None,
    per_axis_linear: bool | None = None,
    embeddings: bool = False,
    int8: Sequence[str] = (),
    int16: Sequence[str] = (),
    fp16: Sequence[str] = (),
    bf16: Sequence[str] = (),
    float: Sequence[str] = (),
    switch: Sequence[str] = (),
    no_switch: Sequence[str] = (),
    equalize: Clips | Literal[False] | None = None,
    smooth: Alpha = None,
    round_weights: bool | None = None,
    correct_bias: bool | None = None,
    extra_options: Mapping[str, object] | None = None,
    statistics: Statistics | str | os.PathLike[str] | None = None,
    save_statistics: str | os.PathLike[str] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    kv_cache: KvCache = "float",
    lm_head: LmHead = "preset",
    bound_masks: bool | None = None,
    integer_io: bool = False,
    allow_findings: bool = False,
    overwrite: bool = False,
    no_provenance: bool = False,
    report: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    hooks: Iterable[Hook] = (),
    jobs: int = 1,
    cluster: str | None = None,
    progress: StageProgress | None = None,
    warn: Warn | None = None,
) -> Quantized:
    """Quantize a float model: clean and fuse it, calibrate, insert QDQ pairs; write it to ``output`` where given.

    A folder that `split` wrote becomes such a folder, its graphs quantized with the same encodings; see
    `qdqtool.api.quantizing_decoders`. The result is a `QuantizedFolder` then.

    Args:
        model: path, or a model in memory (which stays as it is); or a folder of static decoder graphs.
        output: where to write the result; None leaves it in memory.
        preset: name, file or `Preset`; ``xint8`` where nothing is said.
        recipe: recipe of `mixed_precision`, or its file: what it says is not to be said otherwise here.
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
        discard: selectors of nodes that are not annotated; the same as ``exclude``.
        annotate: functions, or ``module:function``, from the prepared model to overrides of single tensors; see
            `qdqtool.quantization.annotating`.
        per_axis_conv: a scale per output channel of convolutions, or one a weight, instead of the preset's choice.
        per_axis_linear: likewise of Gemm and MatMul.
        embeddings: store the tables that Gather looks rows up in as the preset stores weights.
        int8: selectors of what is stored in 8 bit under a preset of 16, with the signedness of its activations.
        int16: selectors of what is stored in 16 bit: what nodes write, or values (``tensor:``, ``in:``, ``io:``).
        fp16: selectors of nodes that compute in float16.
        bf16: selectors of nodes that compute in bfloat16, for chips: onnxruntime on CPUs cannot run most of them.
        float: selectors of nodes that stay float, whatever the preset says of them.
        switch: switches of the preset to turn on.
        no_switch: switches of the preset to turn off.
        equalize: scale channels so that the weights between two layers are alike, see `equalize-layers`: what becomes of a Clip
            between them, ``"keep"``, ``"bounds"`` or ``"relu"``; False leaves out what the preset says.
        smooth: alpha of `smooth-activations`, which moves outliers into weights; False leaves out what the preset says.
        round_weights: round weights so that their errors compensate each other, see `round-weights`.
        correct_bias: give biases what rounding the weights took from the mean of each output, see `correct-bias`.
        extra_options: options of onnxruntime's and of the Vitis AI quantizer by their names, ``{"per_channel": True}``; see
            `qdqtool.foreign.options`.
        statistics: statistics of the layers' inputs found before, for these four, instead of collecting them.
        save_statistics: where to write those that were used (.npz).
        tokenizer: a tokenizer.json, or a folder with one, for a text; by default beside the model.
        kv_cache: type of a decoder's cache; integers stand in past and present of every graph, in one encoding a tensor.
        lm_head: the last projection: as the preset says, float, or with int8 weights, a scale per output channel.
        bound_masks: masks of attentions hide by a bound that a grid can hold; None: of language models on a text.
        integer_io: inputs and outputs that have an encoding are integers.
        allow_findings: save although the model has errors that it came with.
        overwrite: replace an existing ``output``.
        no_provenance: leave out the metadata entry.
        report: where to write what became of each tensor (JSON): range, position, what is clipped, SQNR. Histograms are kept
            for it whatever the method.
        cache: folder for ranges: found again for the same model, data and method; an interrupted calibration goes on there.
        hooks: pipeline hooks.
        jobs: processes of this machine that run the model while calibrating; the result is the same whatever their number.
        cluster: address of a Dask scheduler, whose workers run the model instead.
        progress: called with (stage, done, total).
        warn: called with each warning.

    Raises:
        QdqError: bad model, data or options; see each class's exit code.
    """
    if recipe is not None:
        return replay(quantize, recipe, {name: value for name, value in locals().items() if name != "recipe"})
    said = {name: value for name, value in locals().items() if name in NAMES}
    given = Ranges.read(ranges) if isinstance(ranges, str | os.PathLike) else ranges
    if given is not None and method is not None and given.method != method and warn is not None:
        warn(f"--method {method} is not used: the ranges given are of method {given.method}")
    if given is not None:
        said["method"] = given.method
    if bound_masks is None:
        said["bound_masks"] = is_text(data) or is_folder(model)
    job = planned(preset or DEFAULT_PRESET, target=target, **said)
    if given is not None and not job.preset.is_calibrated and kv_cache == "float" and warn is not None:
        warn(f"--ranges is not used: {job.preset.name} leaves activations float")
    found = Statistics.read(statistics) if isinstance(statistics, str | os.PathLike) else statistics
    recovering = Recovering(given=found, file=save_statistics, progress=progress, warn=warn)
    if not isinstance(model, ir.Model) and is_folder(model):
        from qdqtool.api.quantizing_decoders import quantize_folder

        return quantize_folder(
            model, output, job, data=data, tokenizer=tokenizer, samples=samples, ranges=given, allow_empty=allow_empty,
            overwrite=overwrite, no_provenance=no_provenance, report=report, target=target, kv_cache=kv_cache,
            recovering=recovering, hooks=hooks, jobs=jobs, cluster=cluster, progress=progress, warn=warn,
        )  # fmt: skip
    work, source = opened(model)
    if output is not None:
        refuse_own_data(work, output)  # what lies there is let go of when weights become integers
    known = verify(work, minimum="error")
    feeds = None
    if data is not None:
        job = without_angles(job, work) if is_text(data) else job
        data = with_texts(data, work, model, tokenizer=tokenizer, samples=samples)
        feeds = open_feeds(data, input_specs(work), samples=samples, seed=seed, image=image)
    passing = None if feeds is None else Passing(feeds, SQNR_SAMPLES)
    reference = None
    if feeds is not None:  # named alike, as onnxruntime takes no two nodes of one name
        reference = run_pipeline(work, "give-names", copy=True).model
    is_shared = (jobs > 1 or cluster is not None) and feeds is not None and feeds.opening is not None
    with open_workers(jobs, cluster, warn=warn) as workers, recovering:
        done = quantize_model(
            work, job, feeds=feeds if is_shared else passing, ranges=given, allow_empty=allow_empty, hooks=hooks, warn=warn,
            workers=workers, recovering=recovering, statistics=report is not None, cache=cache,
            progress=stage(progress, "calibrating", None if feeds is None else feeds.count),
        )  # fmt: skip
    refuse_errors(work, known, allow_findings=allow_findings)
    unfit = None if target is None else target_refusals(work, load_target(target))
    pass_on(grouped(unfit or ()), warn)
    comparison = None
    is_comparable = all(a.dtype == b.dtype for a, b in zip(_ends(reference or work), _ends(work), strict=True))
    if not is_comparable:
        pass_on(["the SQNR of the result is not measured: inputs and outputs are of other types than before"], warn)
    elif reference is not None and passing is not None and feeds is not None:
        few = (passing.first or list(itertools.islice(feeds, SQNR_SAMPLES)))[: sqnr_samples(work)]
        ticks = stage(progress, "comparing", len(few))
        try:
            comparison = compare_models(reference, work, few, tensors=[], progress=ticks)
        except QdqError as error:
            if not job.is_for_chips:
                raise
            pass_on([f"not compared with the float model, as it computes in bfloat16: {error}"], warn)
        pass_on([*feeds.warnings, *(comparison.warnings if comparison is not None else ())], warn)
    result = Quantized(
        model=work, quantization=done, comparison=comparison, source_sha256=source, target_refusals=unfit
    )
    if output is not None:
        save(work, output, overwrite=overwrite, provenance=None if no_provenance else result.provenance)
    if report is not None:
        write_json(report, kind="quantization", version=1, payload=result.to_json(), overwrite=overwrite)
    return result


def _ends(model: ir.Model) -> list[ir.Value]:
    """What comes in, without weights, and what goes out."""
    return [*(v for v in model.graph.inputs if v.name not in model.graph.initializers), *model.graph.outputs]


def planned(preset: str | Preset, *, target: str | None = None, **options: object) -> Plan:
    """What `quantize` will run with these ``options``: those of its arguments that say what to quantize and how.

    Raises:
        UsageError: an option that there is not.
    """
    chosen = load_target(target) if target else None
    return plan(
        preset if isinstance(preset, Preset) else load_preset(preset),
        Options.of(options),
        ops=chosen.quantized_ops() if chosen else (),
        legalization=chosen.legalization if chosen else None,
    )


def planned_for(model: ModelOrPath, job: Plan, *, allow_empty: bool = False, warn: Warn | None = None) -> Plan:
    """``job`` with its selectors tried on ``model`` (which stays as it is), as `quantize` would run it.

    Raises:
        UsageError: a selector matches nothing.
    """
    return prepare(opened(model)[0], job, allow_empty=allow_empty, warn=warn)[0]

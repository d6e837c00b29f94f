"""`deploy`: the steps of a deployment, each a verb that the folder also has as a command, run on models that are loaded once."""

from __future__ import annotations

import math
import os
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.clean.fix_shapes import FixShapes
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.documents import typed
from qdq_passes.pipeline.pipeline import Pipeline, parse_pipeline

from qdqtool.comparison.cumulative import compare_models
from qdqtool.comparison.report import Comparison
from qdqtool.io.feeds.feeds import FeedSpec, open_feeds
from qdqtool.io.feeds.sources import Part
from qdqtool.io.feeds.spec import input_specs
from qdqtool.io.files.artifacts import read_json
from qdqtool.io.files.folders import files_left, refuse_inside, whole_folder
from qdqtool.io.files.progress import StageProgress, Warnings, pass_on, stage
from qdqtool.io.models.load import load
from qdqtool.io.models.save import save
from qdqtool.npu.report import Analysis
from qdqtool.npu.simulated import Simulation
from qdqtool.options import options_of
from qdqtool.quantization.calibrating import sqnr_samples
from qdqtool.quantization.quantized_files import existing_quantization, way_to_floats
from qdqtool.search.metrics import Metric, open_metric
from qdqtool.search.variants import outputs_of
from qdqtool.targets.loading import load_target
from qdqtool.targets.target import Target
from qdqtool.verbs.advice.trying import advised
from qdqtool.verbs.check import Check
from qdqtool.verbs.ci.baseline import StoredDeployment
from qdqtool.verbs.compare import Compare
from qdqtool.verbs.edits.pipelines import Opt, Simplify
from qdqtool.verbs.npu.analyze import Analyze
from qdqtool.verbs.npu.simulate import Simulate
from qdqtool.verbs.quantize import Quantize
from qdqtool.verbs.work import deployment
from qdqtool.verbs.work.bounds.holding_out import again_and_again, held_out, learns
from qdqtool.verbs.work.bounds.outputs import PRICED, poor
from qdqtool.verbs.work.command_lines import command_line
from qdqtool.verbs.work.deployment import Bounds, Deployment, Judged
from qdqtool.verbs.work.editing import run_and_save
from qdqtool.verbs.work.quantizing import Quantized, quantized
from qdqtool.verbs.work.texts import is_folder, is_text, with_texts

if TYPE_CHECKING:
    from qdqtool.verbs.deploy import Deploy

#: The steps; the last only where samples are simulated.
STEPS = ("cleaning", "quantizing", "checking", "analyzing", "comparing", "simulating")


def deployed(asked: Deploy) -> Deployment:
    """``asked``: the folder, whole or not at all."""
    job = _begun(replace(asked, warn=Warnings(asked.warn)))
    with whole_folder(job.folder) as made:
        return _filled(replace(job, made=made))


@dataclass(frozen=True, kw_only=True)
class Job:
    """A deployment under way.

    Args:
        asked: what is asked for.
        data: samples to calibrate on, which can be read again.
        judged_on: samples to compare on, likewise.
        target: name or file of the target.
        chip: the target.
        metric: what judges beside the SQNR.
        folder: what is written, by its whole path.
        hold_out: of so many samples of the data one is kept to judge on; 0 for none.
        made: the hidden folder that becomes it.
        seconds: of each step that is done.
    """

    asked: Deploy
    data: FeedSpec
    judged_on: FeedSpec
    target: str | os.PathLike[str]
    chip: Target
    metric: Metric | None
    folder: str
    hold_out: int = 0
    made: str = ""
    seconds: dict[str, float] = field(default_factory=dict)

    def file(self, name: str) -> str:
        """A file of the folder, where it lies now."""
        return os.path.join(self.made, name)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was warned of so far."""
        return tuple(self.asked.warn) if isinstance(self.asked.warn, Warnings) else ()

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps there will be."""
        return STEPS if self.asked.simulate_samples else STEPS[:-1]

    @cached_property
    def source(self) -> str:
        """The file of the model; of one in memory, a copy in the folder."""
        if not isinstance(self.asked.model, ir.Model):
            return os.fspath(self.asked.model)
        save(self.asked.model, self.file(deployment.SOURCE))
        return self.file(deployment.SOURCE)

    def warn(self, text: str) -> None:
        """Tell a warning, with files where they will lie."""
        pass_on([text.replace(self.made, os.fspath(self.asked.output))], self.asked.warn)

    @property
    def tokenizer(self) -> str | None:
        """Who makes tokens of a text: what lies beside the model, not beside its cleaned copy."""
        if self.asked.tokenizer is not None or not is_text(self.asked.data):
            return None if self.asked.tokenizer is None else os.fspath(self.asked.tokenizer)
        return os.path.dirname(self.source) or "."

    @contextmanager
    def step(self, name: str) -> Iterator[StageProgress | None]:
        """Time the body as the step ``name``, and tell how far it is: ``2/6 quantizing: calibrating``."""
        told, start = self.asked.progress, time.perf_counter()
        head = f"{self.steps.index(name) + 1}/{len(self.steps)} {name}"
        if told is None:
            yield None
        else:
            tell = told
            tell(head, 0, None)
            yield lambda part, done, total: tell(head if part == name else f"{head}: {part}", done, total)
        self.seconds[name] = time.perf_counter() - start


def _begun(asked: Deploy) -> Job:
    """``asked``, what cannot be refused before any work is done.

    Raises:
        UsageError: an option lacks another, or the folder must not be written.
    """
    if asked.target is None:
        raise UsageError("no target", hint="give --target (see `qdqtool list targets`)")
    if asked.data is None:
        raise UsageError("no data", hint="give --data: samples to calibrate and to compare on")
    if is_folder(asked.model):
        hint = "deploy one model; `quantize --target` takes such a folder, `analyze` and `simulate` its graphs"
        raise UsageError("is a folder of graphs", where=str(asked.model), hint=hint)
    if asked.integer_io:
        hint = "deploy with float ends, or `quantize --integer-io` and judge it step by step"
        raise UsageError("--integer-io: a model with integer ends is not compared with its float model", hint=hint)
    if asked.min_metric is not None and asked.float_metric is None:
        raise UsageError("--min-metric without a metric", hint="give --float-metric module:function")
    if asked.baseline is not None:
        StoredDeployment.read(asked.baseline)  # refused before any work
    folder = os.path.abspath(asked.output)
    old = files_left(folder, deployment.REPORT, _listed, overwrite=asked.overwrite)
    foreign = sorted(set(os.listdir(folder)) - old) if old else []
    if foreign:
        hint = "take them away, or give another folder: it is replaced whole"
        raise UsageError(f"holds files that `deploy` did not write: {', '.join(foreign[:3])}", where=folder, hint=hint)
    refuse_inside(folder, (asked.model, asked.data, asked.eval_data, asked.ranges, asked.statistics))
    data = again_and_again(asked.data)
    return Job(
        asked=asked,
        data=data,
        judged_on=data if asked.eval_data is None else again_and_again(asked.eval_data),
        target=asked.target,
        chip=load_target(asked.target),
        metric=None if asked.float_metric is None else open_metric(asked.float_metric),
        folder=folder,
    )


def _listed(report: str) -> Iterable[str]:
    """The files that an earlier run lists in its report."""
    found = read_json(report, kind=deployment.KIND, max_version=deployment.VERSION).get("files")
    try:
        return typed(tuple[str, ...], found, "files")
    except ValueError as error:
        raise ModelError(str(error), where=report, hint="take the folder away, or give another") from error


def _filled(job: Job) -> Deployment:
    """All steps, and the folder with what they made."""
    asked = job.asked
    with job.step("cleaning") as tick:
        cleaning = _cleaned(job, tick)
        floats = load(job.file(deployment.FLOAT))
        job = replace(job, hold_out=_hold_out(job, floats))
    with job.step("quantizing") as tick:
        quantizing = _quantizing(job)
        done = quantized(replace(quantizing, progress=tick, warn=job.warn), compares=False)
        done.quantization.ranges.write(job.file(deployment.RANGES))
    with job.step("checking") as tick:
        check = Check(job.file(deployment.MODEL), target=job.target)
        checked = replace(check, progress=tick, warn=asked.warn, trials=False).run()
    with job.step("analyzing"):
        analyze = Analyze(job.file(deployment.MODEL), target=job.target)
        untried: Analysis = replace(analyze, model=done.model, trials=False, warn=asked.warn).run()
        path = os.path.join(asked.output, deployment.MODEL)
        analysis = advised(untried, job.chip, path, is_fresh=True)
        checked = checked.with_hints(analysis)
    with job.step("comparing") as tick:
        feeds = _judged_on(job, floats)
        comparison, judged = _compared(job, floats, done.model, feeds, tick)
        plain = [_inputs(floats, feed) for feed in feeds[:PRICED]]
        pass_on(poor(comparison, asked.min_sqnr, floats, done.model, plain), asked.warn)
    held = job.hold_out if job.hold_out and asked.eval_data is None else None
    compare = Compare(
        job.file(deployment.FLOAT), job.file(deployment.MODEL), samples=len(feeds) * (held or 1), held_out=held,
        data=job.judged_on, seed=asked.seed, image=asked.image, tokenizer=job.tokenizer,
    )  # fmt: skip
    verbs: dict[str, Any] = {
        "opt": cleaning,
        "quantize": quantizing,
        "check": check,
        "analyze": analyze,
        "compare": compare,
    }
    simulation = None
    if asked.simulate_samples:
        with job.step("simulating") as tick:
            verbs["simulate"] = simulate = Simulate(
                job.file(deployment.MODEL), job.judged_on, target=job.target, samples=min(len(feeds), asked.simulate_samples),
                float_model=job.file(deployment.FLOAT), seed=asked.seed, image=asked.image,
            )  # fmt: skip
            simulation = _simulated(simulate, floats, done, feeds, tick)
    found = Deployment(
        folder=job.folder, source=deployment.SOURCE if isinstance(asked.model, ir.Model) else job.source,
        target=job.chip.name, device=job.chip.device, quantized=done, checked=checked, analysis=analysis,
        comparison=comparison, judged=judged, simulation=simulation, seconds=job.seconds,
        bounds=Bounds(
            npu_share=asked.require_npu, sqnr_db=asked.min_sqnr, metric=asked.min_metric, outputs=asked.min_output or {},
            partitions=asked.max_partitions,
        ),
        before=None if asked.baseline is None else StoredDeployment.read(asked.baseline),
        commands=tuple(_commands(job, _named(verbs, done, asked))), cleaning=cleaning.text, warnings=job.warnings,
        judged_on="held out of --data" if held else "of --eval-data" if asked.eval_data is not None else "calibrated on",
    )  # fmt: skip
    return deployment.written(found, job.made, shlex.quote(path))


def _cleaned(job: Job, tick: StageProgress | None) -> Opt:
    """Write the float model as cleaned: what `simplify` does, with the data's shapes where the target takes static ones alone."""
    model = load(job.source)
    job.asked.refuse_unknown_outputs(model)
    if found := existing_quantization(model):
        raise UsageError(f"has {found} already", where=job.source, hint=way_to_floats(job.source))
    passes = parse_pipeline(Simplify(job.source).pipeline())
    if job.chip.limits.symbolic in ("none", "bound-batch") and _open_inputs(model):
        passes = Pipeline((_bound(job, model),)) + passes
    asked = Opt(job.source, job.file(deployment.FLOAT), text=str(passes), allow_findings=job.asked.allow_findings)
    run_and_save(replace(asked, progress=tick), passes, allow_findings=asked.allow_findings, verify_each=False)
    return asked


def _open_inputs(model: ir.Model) -> list[ir.Value]:
    """The inputs with a symbolic dimension."""
    return [v for v in model.graph.inputs if not v.is_initializer() and v.shape is not None and not v.shape.is_static()]


def _bound(job: Job, model: ir.Model) -> FixShapes:
    """The pass that gives inputs with a symbolic dimension the shapes that they have in the data."""
    feed = _feeds(job, job.data, model, 1)[0]
    names = [value.name for value in _open_inputs(model) if value.name in feed]
    return FixShapes(shapes=tuple(f"{name}={'x'.join(map(str, feed[name].shape))}" for name in names))


def _quantizing(job: Job) -> Quantize:
    """The quantization of the cleaned model, with every option of `quantize` that was given; `compare` judges it."""
    asked = job.asked
    shared = {each.name for each in options_of(type(asked))} & {each.name for each in options_of(Quantize)}
    given = {
        name: getattr(asked, name)
        for name in shared - {"model", "output", "overwrite", "tokenizer", "data", "min_sqnr"}
    }
    return Quantize(
        job.file(deployment.FLOAT), job.file(deployment.MODEL), data=job.data, tokenizer=job.tokenizer,
        save_statistics=job.file(deployment.STATISTICS), min_sqnr=-math.inf,
        **{**given, "progress": None, "warn": None, "hold_out": job.hold_out},
    )  # fmt: skip


def _hold_out(job: Job, floats: ir.Model) -> int:
    """Of how many samples one is held out: as is said, else where weights are learned, and no other samples are there."""
    asked = job.asked
    if asked.hold_out == 0 or (asked.hold_out is None and (asked.eval_data is not None or not learns(asked))):
        return 0
    given = with_texts(job.data, floats, job.source, tokenizer=job.tokenizer, samples=asked.samples)
    feeds = open_feeds(given, input_specs(floats), samples=asked.samples, seed=asked.seed, image=asked.image)
    return held_out(asked.hold_out, feeds)


def _feeds(job: Job, data: FeedSpec, model: ir.Model, count: int | None, *, extras: bool = False) -> list[Any]:
    """The first samples of ``data`` as ``model`` wants them; of those that are held out where such are judged on."""
    asked = job.asked
    part = Part(job.hold_out, is_held_out=True) if job.hold_out and asked.eval_data is None else None
    most = count if part is None else asked.samples
    given = with_texts(data, model, job.source, tokenizer=job.tokenizer, samples=most)
    feeds = open_feeds(
        given, input_specs(model), samples=most, seed=asked.seed, image=asked.image, extras=extras, part=part
    )
    found = list(islice(feeds, count))
    pass_on(feeds.warnings, asked.warn)
    return found


def _judged_on(job: Job, floats: ir.Model) -> list[Mapping[str, Array]]:
    """The samples that both models are compared on, with what the data hold beside the inputs where a metric asks for it."""
    asked, extras = job.asked, job.metric is not None and job.metric.needs_labels
    count = asked.samples if asked.eval_samples is None else asked.eval_samples
    if count is None and not extras:
        count = sqnr_samples(floats)
    return _feeds(job, job.judged_on, floats, count, extras=extras)


def _compared(
    job: Job,
    floats: ir.Model,
    model: ir.Model,
    feeds: Sequence[Mapping[str, Array]],
    tick: StageProgress | None,
) -> tuple[Comparison, Judged | None]:
    """Both models on ``feeds``: tensor by tensor, and by the metric where there is one."""
    metric, plain = job.metric, [_inputs(floats, feed) for feed in feeds]
    ticks = stage(tick, "comparing", len(feeds))
    comparison = compare_models(floats, model, plain, progress=ticks, outputs_matter=False)
    pass_on(comparison.warnings, job.asked.warn)
    if metric is None:
        return comparison, None
    references, outputs = (outputs_of(each, plain) for each in (floats, model))
    return comparison, Judged(
        name=metric.name,
        floating=metric.measure(references, feeds, references),
        quantized=metric.measure(outputs, feeds, references),
    )


def _inputs(model: ir.Model, feed: Mapping[str, Array]) -> dict[str, Array]:
    names = {value.name for value in model.graph.inputs}
    return {name: array for name, array in feed.items() if name in names}


def _simulated(
    asked: Simulate, floats: ir.Model, done: Quantized, feeds: Sequence[Mapping[str, Array]], tick: StageProgress | None
) -> Simulation:
    """The quantized model on the simulated NPU, on the first of ``feeds``."""
    data = [_inputs(floats, feed) for feed in feeds[: asked.samples]]
    return replace(asked, model=done.model, data=data, float_model=floats, progress=tick).run()


def _named(verbs: Mapping[str, Any], done: Quantized, asked: Deploy) -> dict[str, Any]:
    """``verbs`` with the preset that was used, also where nobody said which, and with the bounds; a baseline has none."""
    quantizing, analyze, compare = (verbs[name] for name in ("quantize", "analyze", "compare"))
    made = done.quantization
    keeps = quantizing.keep_sigmoid
    if made.choice:  # which the command then repeats without measuring
        keeps = made.plan == made.plan.keeping_sigmoid()
    if asked.baseline is None:
        analyze = replace(analyze, require_npu=asked.require_npu or None, max_partitions=asked.max_partitions)
        compare = replace(compare, min_sqnr=asked.min_sqnr, min_output=asked.min_output)
    quantizing = replace(quantizing, preset=quantizing.preset or made.plan.preset.name, keep_sigmoid=keeps)
    return {**verbs, "quantize": quantizing, "analyze": analyze, "compare": compare}


def _commands(job: Job, verbs: Mapping[str, Any]) -> Iterator[str]:
    """What a shell runs to do the same into the folder ``$out``, and what makes the model again without data."""
    for name, verb in verbs.items():
        if name == "simulate" and is_text(job.judged_on):
            continue  # the command takes no text
        line = command_line(name, verb)
        if name == "quantize":
            line += f" --save-ranges {job.file(deployment.RANGES)}"
        yield line.replace(f"{job.made}{os.sep}", '"$out"/')

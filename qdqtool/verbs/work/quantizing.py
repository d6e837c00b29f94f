"""`quantize` of one model: what is done with a plan, the figures of the result, and a quantization made again from a recipe."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import QdqError
from qdq_passes.graph.edit import copy_model
from qdq_passes.pipeline.hooks import naming_the_pass
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.verification.rules import verify

from qdqtool.calibrate.fingerprint import model_sha256
from qdqtool.calibrate.ranges import Ranges
from qdqtool.calibrate.statistics import Statistics
from qdqtool.comparison.cumulative import compare_models, has_same_types
from qdqtool.comparison.report import Comparison
from qdqtool.io.feeds.feeds import Feeds, open_feeds
from qdqtool.io.feeds.sources import Part
from qdqtool.io.feeds.spec import input_specs
from qdqtool.io.files.artifacts import sha256_of_json, without_seconds, write_json
from qdqtool.io.files.progress import Warn, Warned, Warnings, pass_on, stage
from qdqtool.io.files.shown import Shown
from qdqtool.io.models.provenance import Provenance
from qdqtool.io.models.save import refuse_own_data, save
from qdqtool.io.models.working import ModelOrPath, opened, provenance_of, refuse_errors
from qdqtool.lints.find import concat_warnings
from qdqtool.options import changed, options_of
from qdqtool.presets.loading import load_preset
from qdqtool.presets.preset import Preset
from qdqtool.quantization.calibrating import SQNR_SAMPLES, Calibrator, Passing, sqnr_samples, without_angles
from qdqtool.quantization.plan import RANGES, Plan
from qdqtool.quantization.quantized_files import existing_quantization, way_to_floats
from qdqtool.quantization.quantizing import Quantization, prepare, quantize_model
from qdqtool.quantization.recovery import STATISTICS, Recovering
from qdqtool.quantization.reports import grouped, target_refusals
from qdqtool.verbs.groups import LEAST_DB
from qdqtool.verbs.work.bounds.holding_out import again_and_again, held_out, learns
from qdqtool.verbs.work.bounds.scale_moves import costly_moves
from qdqtool.verbs.work.texts import is_text, with_texts
from qdqtool.workers.cluster import open_workers

if TYPE_CHECKING:
    from qdqtool.npu.shares import Placed
    from qdqtool.record.record import Record
    from qdqtool.search.recipe import Recipe
    from qdqtool.verbs.quantize import Quantize
    from qdqtool.verbs.work.goals.seeking import Sought


@dataclass(frozen=True, kw_only=True, repr=False)
class Quantized(Shown, Warned):
    """A quantized model and the story of it.

    Args:
        model: the model.
        quantization: what was done.
        comparison: quantized against float on the first `sqnr_samples` samples; None without data.
        source_sha256: SHA-256 of the float model's file, empty for a model in memory.
        target_refusals: (node, reason) of what the target does not take as it was quantized; None without a target.
        placed: who runs what of it on the target; None without one, and of a folder.
        sought: how it was found, with a goal.
        missed: the outputs below what is required of them, and those that could not be compared.
        judged_on: what samples those of the comparison are, where they are not those that ranges are of.
    """

    figures: ClassVar[Mapping[str, str]] = {
        "preset": "quantization.plan.preset.name",
        "samples": "quantization.ranges.samples",
        "pairs": "quantization.pairs",
        "sqnr_db": "comparison.min_sqnr",
        "npu_share": "placed.share",
    }

    model: ir.Model
    quantization: Quantization
    comparison: Comparison | None
    source_sha256: str
    target_refusals: tuple[tuple[str, str], ...] | None = None
    placed: Placed | None = None
    sought: Sought | None = None
    missed: tuple[str, ...] = ()
    judged_on: str = ""

    @property
    def provenance(self) -> Provenance:
        """The entry that `save` notes in the model."""
        done = self.quantization
        inputs = {RANGES: done.ranges.sha256} | ({STATISTICS: done.statistics.sha256} if done.statistics else {})
        return provenance_of(str(done.plan.pipeline), self.source_sha256, inputs, done.passes)

    @property
    def record(self) -> Record:
        """What is known of its tensors and nodes."""
        from qdqtool.record.record import merged
        from qdqtool.verbs.work.records import comparison_record, quantization_record

        known = [quantization_record(self.quantization)]
        return merged(known if self.comparison is None else [*known, comparison_record(self.comparison, self.model)])

    @property
    def why_large(self) -> str:
        """Why the file is no smaller than the float model, where it is not: behind the sizes."""
        if not self.quantization.plan.keeps_float_weights:
            return ""
        return ": weights stay float behind their pairs, where the chip's compiler rounds them; --weights dq stores integers"

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; the keys of the command's contract. ``sqnr_db`` is null when exact, absent without data."""
        data = self.quantization.to_json()
        if self.comparison is not None:
            data["sqnr_db"] = self.comparison.min_sqnr
            which = self.judged_on or "calibrated on"
            data["judged_on"] = {"samples": self.comparison.samples, "which": which}
        if self.target_refusals is not None:
            data["target_refusals"] = [{"node": node, "reason": reason} for node, reason in self.target_refusals]
        if self.placed is not None:
            data["placement"] = self.placed.to_json()
        if self.sought is not None:
            data["sought"] = self.sought.to_json()
        data |= {"missed": list(self.missed), "warnings": list(self.warnings)}
        return data


def quantized(asked: Quantize, *, compares: bool = True) -> Quantized:
    """``asked``, of one model; without a comparison where somebody else compares."""
    told = Warnings(asked.warn)
    asked = replace(asked, warn=told)
    result = replace(made(asked, compares=compares), warnings=tuple(told))
    write(asked, result)
    return result


def write(asked: Quantize, result: Quantized) -> None:
    """Write what ``asked`` names: the model, and what became of it."""
    if asked.output is not None:
        entry = None if asked.no_provenance else result.provenance
        save(result.model, asked.output, overwrite=asked.overwrite, provenance=entry, copy_data=asked.copy_data)
    if asked.report is not None:
        payload, _ = without_seconds({**result.to_json(), **result.record.as_key()})
        write_json(asked.report, kind="quantization", version=1, payload=payload, overwrite=asked.overwrite)


@naming_the_pass()
def made(asked: Quantize, *, compares: bool = True, advises: bool = True) -> Quantized:
    """Quantize one model and return it unwritten; ``advises`` also tries the suggestions."""
    job, given = begun(asked)
    recovering = recovering_for(asked)
    work, source = opened(asked.model)
    if asked.output is not None:
        refuse_own_data(work, asked.output)  # what lies there is let go of when weights become integers
    if found := existing_quantization(work):
        file = "MODEL" if isinstance(asked.model, ir.Model) else asked.model
        pass_on([f"the model has {found} already, which stay; {way_to_floats(file)}"], asked.warn)
    known = verify(work, minimum="error")
    job, feeds, held = _with_data(asked, job, work, judges=compares)
    passing = None if feeds is None else Passing(feeds, SQNR_SAMPLES)
    reference = None
    if feeds is not None and compares:  # named alike, as onnxruntime takes no two nodes of one name
        reference = run_pipeline(work, "give-names", copy=True).model
    chip, untouched = None, None
    if asked.target is not None:
        from qdqtool.targets.loading import load_target

        chip, untouched = load_target(asked.target), copy_model(work)
    is_shared = (asked.jobs > 1 or asked.cluster is not None) and feeds is not None and feeds.opening is not None
    with open_workers(asked.jobs, asked.cluster, warn=asked.warn) as workers, recovering:
        calibrator = Calibrator(
            given, statistics=asked.report is not None, cache=asked.cache, workers=workers,
            progress=stage(asked.progress, "calibrating", None if feeds is None else feeds.count),
        )  # fmt: skip
        done = quantize_model(
            work, job, feeds=feeds if is_shared else passing, calibrator=calibrator, allow_empty=asked.allow_empty,
            hooks=asked.hooks, warn=asked.warn, recovering=recovering, known=known,
        )  # fmt: skip
    placed = None
    if chip is not None and untouched is not None:
        from qdqtool.verbs.work.fitting import fitted

        done, placed = fitted(
            done, untouched, chip, feeds=_first(feeds, passing, work), chooses=asked.keep_sigmoid is None,
            hooks=asked.hooks, warn=asked.warn, known=known,
        )  # fmt: skip
        work = done.model
    advice = None
    if placed is not None and advises:
        from qdqtool.verbs.advice.concats import ConcatAdvice

        advice = ConcatAdvice(asked, done, placed)
    pass_on([*concat_warnings(work, done.ranges.bound, advice), *costly_moves(done)], asked.warn)
    refuse_errors(work, known, allow_findings=asked.allow_findings)
    unfit = None if chip is None else target_refusals(work, chip)
    pass_on(grouped(unfit or ()), asked.warn)
    if placed is not None and chip is not None:
        from qdqtool.verbs.work.fitting import too_little

        pass_on(too_little(placed, work, chip, asked.output or "MODEL", asked.target or chip.name), asked.warn)
    few: Sequence[Mapping[str, Any]] = ()
    if reference is not None:
        few = _first(feeds, passing, work) if held is None else _first(held, Passing(held), work)
    comparison = _compared(asked, job, reference, work, few)
    pass_on(() if feeds is None or reference is None else feeds.warnings, asked.warn)
    return Quantized(
        model=work, quantization=done, comparison=comparison if comparison is not None and comparison.outputs else None,
        source_sha256=source, target_refusals=unfit, placed=placed,
        missed=_judged(asked, comparison, reference, work, few), judged_on=_judged_on(asked, held),
    )  # fmt: skip


def begun(asked: Quantize) -> tuple[Plan, Ranges | None]:
    """What will run, and the ranges that are given."""
    given = Ranges.given(asked.ranges)
    job = replace(asked, ranges=given).begun().plan()
    pass_on(job.warnings, asked.warn)
    if given is not None and asked.method is not None and given.method != asked.method:
        pass_on([f"--method {asked.method} is not used: the ranges given are of method {given.method}"], asked.warn)
    if given is not None and asked.method_options:
        pass_on(["--method-option is not used: the ranges are given"], asked.warn)
    if given is not None and not job.preset.is_calibrated and asked.kv_cache == "float":
        pass_on([f"--ranges is not used: {job.preset.name} leaves activations float"], asked.warn)
    return job, given


def recovering_for(asked: Quantize) -> Recovering:
    """The statistics that are given, or what to do with those that are collected."""
    found = Statistics.given(asked.statistics)
    return Recovering(given=found, file=asked.save_statistics, progress=asked.progress, warn=asked.warn)


def _with_data(asked: Quantize, job: Plan, model: ir.Model, *, judges: bool) -> tuple[Plan, Feeds | None, Feeds | None]:
    """``job`` as the data want it, the data to calibrate on, and those that are held out: as is said, else where the result of
    learned weights is judged."""
    if asked.data is None:
        return job, None, None
    job = without_angles(job, model) if is_text(asked.data) else job
    data = with_texts(asked.data, model, asked.model, tokenizer=asked.tokenizer, samples=asked.samples)
    specs, said = input_specs(model), asked.hold_out
    opened_as = partial(open_feeds, inputs=specs, samples=asked.samples, seed=asked.seed, image=asked.image)
    if said == 0 or (said is None and not (judges and least_of(asked) is not None and learns(asked))):
        return job, opened_as(data), None
    data = again_and_again(data)
    every = held_out(said, opened_as(data))
    return (
        job,
        opened_as(data, part=Part(every, is_held_out=False)),
        opened_as(data, part=Part(every, is_held_out=True)),
    )


def _judged_on(asked: Quantize, held: Feeds | None) -> str:
    """What samples the SQNR is of."""
    if held is not None:
        return "held out of --data"
    return "that weights were learned on" if learns(asked) else ""


def _first(feeds: Feeds | None, passing: Passing | None, model: ir.Model) -> Sequence[Mapping[str, Any]]:
    """The samples that results are compared on."""
    if feeds is None or passing is None:
        return ()
    return (passing.first or list(itertools.islice(feeds, SQNR_SAMPLES)))[: sqnr_samples(model)]


def _compared(
    asked: Quantize, job: Plan, reference: ir.Model | None, model: ir.Model, few: Sequence[Mapping[str, Any]]
) -> Comparison | None:
    """Quantized against float on ``few`` samples; None where that cannot be, with the reason told."""
    if reference is None:
        return None
    if not has_same_types(reference, model):
        pass_on(
            ["the SQNR of the result is not measured: inputs and outputs are of other types than before"], asked.warn
        )
        return None
    try:
        ticks = stage(asked.progress, "comparing", len(few))
        found = compare_models(reference, model, few, tensors=[], progress=ticks, outputs_matter=False)
    except QdqError as error:
        if not job.is_for_chips:
            raise
        pass_on([f"not compared with the float model, as it computes in bfloat16: {error}"], asked.warn)
        return None
    pass_on(found.warnings, asked.warn)
    return found


def _judged(
    asked: Quantize,
    found: Comparison | None,
    reference: ir.Model | None,
    model: ir.Model,
    few: Sequence[Mapping[str, Any]],
) -> tuple[str, ...]:
    """What of ``found`` is below what is required, of models for a target at least `LEAST_DB`; what is little above is told."""
    least = least_of(asked)
    if least is None:
        return ()
    if found is None or reference is None:
        text = f"the outputs were not compared, so --min-sqnr {least:g} is not checked; give float inputs and outputs, and --data"
        return () if asked.min_sqnr is None else (text,)
    if asked.hold_out == 0 and learns(asked):
        pass_on(["the outputs are not judged: weights were learned on all samples (--hold-out 0)"], asked.warn)
        return ()
    from qdqtool.verbs.work.bounds.outputs import missed, poor

    pass_on(poor(found, least, reference, model, few), asked.warn)
    return tuple(missed(found, least))


def least_of(asked: Quantize) -> float | None:
    """What SQNR is required of an output; None where nothing is judged."""
    least = LEAST_DB if asked.min_sqnr is None and asked.target is not None else asked.min_sqnr
    return None if least == -math.inf else least


def planned_for(model: ModelOrPath, job: Plan, *, allow_empty: bool = False, warn: Warn | None = None) -> Plan:
    """``job`` with its selectors tried on ``model`` (which stays as it is), as `quantize` would run it.

    Raises:
        UsageError: a selector matches nothing.
    """
    return prepare(opened(model)[0], job, allow_empty=allow_empty, warn=warn)[0]


def laid_under(asked: Quantize, recipe: Recipe | str | os.PathLike[str]) -> Quantize:
    """``asked`` with what ``recipe`` says, and without a recipe.

    Raises:
        UsageError: something is said that contradicts the recipe.
        ModelError: the file is no recipe.
    """
    made = _read(recipe)
    defaults = {each.name: each.default for each in options_of(type(asked))}
    found = replace(asked, **made.options_beside(changed(asked), defaults), recipe=None)
    is_same = isinstance(asked.preset, Preset) and asked.preset.sha256 == made.preset_sha256
    found = replace(found, hold_out=found.hold_out or 0)  # what a recipe does not say was not done
    return replace(found, preset=asked.preset) if is_same else found


def _read(recipe: Recipe | str | os.PathLike[str]) -> Recipe:
    from qdqtool.search.recipe import Recipe

    return recipe if isinstance(recipe, Recipe) else Recipe.read(recipe)


def replayed(asked: Quantize, recipe: Recipe | str | os.PathLike[str]) -> Quantized:
    """Quantize by a recipe.

    Raises:
        UsageError: something is said that contradicts the recipe.
        ModelError: the file is no recipe.
    """
    made = _read(recipe)
    again = laid_under(asked, made)
    used = again.preset if isinstance(again.preset, Preset) else load_preset(again.preset or made.preset)
    differences = []
    if made.preset_sha256 and used.sha256 != made.preset_sha256:
        differences.append(
            f"the recipe is of another version of the preset {used.name}: the result differs from what was searched"
        )
    if made.model_sha256 and fingerprint_of(asked.model) != made.model_sha256:
        differences.append("the recipe is of another model: what it reached there says nothing here")
    pass_on(differences, asked.warn)
    done = again.run()
    if made.ranges_sha256 and done.quantization.ranges.sha256 != made.ranges_sha256:
        why = "(other data, or another method): the bytes differ from what was searched"
        pass_on([f"the ranges are not those of the recipe {why}"], asked.warn)
    return done


def fingerprint_of(model: ModelOrPath) -> str:
    """Hex SHA-256 that recipes tell a model by: of what it computes, and of a folder that `split` wrote of its files."""
    if isinstance(model, str | os.PathLike) and os.path.isdir(model):
        from qdqtool.llm.folder.manifest import read_manifest

        return sha256_of_json(dict(read_manifest(model).files))
    return model_sha256(opened(model)[0])

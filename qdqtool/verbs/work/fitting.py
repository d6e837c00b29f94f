"""What a target does with a quantized model: said where it is little, mended where single operators cost a region."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

import onnx_ir as ir
from qdq_passes.encode.isolate_concats import BEHIND
from qdq_passes.errors import UsageError
from qdq_passes.graph.edit import copy_model
from qdq_passes.legalize.edit.replacement_prices import marked
from qdq_passes.legalize.sigmoid_to_hard_sigmoid import SigmoidToHardSigmoid
from qdq_passes.numerics.agreement import worst_first
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.price import Level, in_db
from qdq_passes.pipeline.pipeline import Hook, run_pipeline
from qdq_passes.verification.rules import Finding

from qdqtool.comparison.cumulative import compare_models, has_same_types
from qdqtool.io.files.progress import Warn
from qdqtool.npu.analyzing import placed_on
from qdqtool.npu.shares import AROUND, Placed
from qdqtool.quantization.calibrating import Calibrator
from qdqtool.quantization.plan import Plan
from qdqtool.quantization.quantizing import Quantization, quantize_model
from qdqtool.quantization.recovery import Recovering
from qdqtool.targets.target import Target
from qdqtool.verbs.groups import LEAST_DB

#: Share of the multiply-accumulates on the NPU below which a warning is given.
ENOUGH = 0.9
#: How often a model is quantized again: what is left float shows what stood behind it.
ROUNDS = 3


class Made(Protocol):
    """What a plan made of a model."""

    @property
    def model(self) -> ir.Model:
        """The quantized model."""

    @property
    def plan(self) -> Plan:
        """The plan."""


M = TypeVar("M", bound=Made)


def fit(done: M, chip: Target, again: Callable[[Plan], M]) -> tuple[M, Placed]:
    """``done`` and who runs what of it; where operators that the target declines cost more than themselves, what ``again`` makes
    with a float value beside each of them, as long as that brings more of it onto the NPU."""
    placed = placed_on(done.model, chip)
    for _ in range(ROUNDS):
        names = _costly(placed)
        plan = done.plan.isolating(*names)
        if placed.share >= ENOUGH or not names or plan == done.plan:
            break
        try:
            tried = again(plan)
        except UsageError:  # a tensor of a group that is split was not observed: then it stays as it is
            break
        better = placed_on(tried.model, chip)
        if better.share <= placed.share:
            break
        done, placed = tried, better
    return done, placed


def fitted(
    done: Quantization,
    untouched: ir.Model,
    chip: Target,
    *,
    feeds: Sequence[Mapping[str, Array]] = (),
    chooses: bool = True,
    hooks: Iterable[Hook] = (),
    warn: Warn | None = None,
    known: Sequence[Finding] | None = None,
) -> tuple[Quantization, Placed]:
    """As `fit`, of a whole quantization, made again by the same ranges; with Sigmoid as it is where that is closer.

    Args:
        done: the quantization.
        untouched: the float model; it stays as it is.
        chip: the target.
        feeds: samples that tell which of two forms is closer to the float model; the plan decides where there are none.
        chooses: whether the form of Sigmoid is to be chosen.
        hooks: pipeline hooks.
        warn: told which nodes stay float for it.
        known: as of `quantize_model`.
    """
    told: list[tuple[Quantization, list[str]]] = []

    def again(plan: Plan) -> Quantization:
        texts: list[str] = []
        made = quantize_model(
            copy_model(untouched), plan, calibrator=Calibrator(done.ranges), hooks=hooks, allow_empty=True, warn=texts.append,
            recovering=Recovering(given=done.statistics), known=known,
        )  # fmt: skip
        told.append((made, texts))
        return made

    done = _closer(done, untouched, chip, feeds, again) if feeds and chooses else done
    chosen = _apart(done, untouched, feeds, again) if feeds else done
    found, placed = fit(chosen, chip, again)
    apart = tuple({why for _, why in chosen.excluded} - {why for _, why in done.excluded})
    found = replace(found, choice=done.choice)
    for made, texts in told if found.model is not done.model else []:
        if warn is not None:
            for text in texts:
                if "as it stands" in text or text.endswith(apart):
                    warn(text)
        if made.model is found.model:
            break
    return found, placed


def _closer(
    done: Quantization,
    untouched: ir.Model,
    chip: Target,
    feeds: Sequence[Mapping[str, Array]],
    again: Callable[[Plan], Quantization],
) -> Quantization:
    """``done`` with the DPU's HardSigmoid, or the same with Sigmoid as it is, by the SQNR of the worst output on ``feeds``; where
    a plan prices the one, and the target computes both and takes no less of the other."""
    is_priced = any(isinstance(p, SigmoidToHardSigmoid) and p.ranges is not None for p in done.plan.materialise.passes)
    is_replaced = any(marked(node) == "Sigmoid" for node in done.model.graph)
    if not is_priced or not is_replaced or "Sigmoid" not in chip.quantized_ops():
        return done
    kept = again(done.plan.keeping_sigmoid())
    if placed_on(kept.model, chip).share < placed_on(done.model, chip).share:
        return done
    reference = run_pipeline(untouched, "give-names", copy=True).model
    if not has_same_types(reference, done.model):
        return done
    hard, soft = (_worst(reference, made, feeds) for made in (done, kept))
    best, word = (kept, "stays") if worst_first(soft) > worst_first(hard) else (done, "becomes HardSigmoid")
    figures = f"{in_db(soft)} at the worst output as it is, {in_db(hard)} as HardSigmoid"
    return replace(best, choice=f"{word}: {figures}")


def _apart(
    done: Quantization,
    untouched: ir.Model,
    feeds: Sequence[Mapping[str, Array]],
    again: Callable[[Plan], Quantization],
) -> Quantization:
    """``done``; where an output is below `LEAST_DB` and a Concat before layers leaves an input no level, with that Concat and
    the layers float, if that brings the output above."""
    if done.plan.is_for_chips or not any(change.because.endswith(BEHIND) for change in done.changes):
        return done
    reference = run_pipeline(untouched, "give-names", copy=True).model
    if not has_same_types(reference, done.model) or worst_first(_worst(reference, done, feeds)) >= LEAST_DB:
        return done
    tried = again(done.plan.isolating_layers())
    return tried if worst_first(_worst(reference, tried, feeds)) >= LEAST_DB else done


def _worst(reference: ir.Model, done: Quantization, feeds: Sequence[Mapping[str, Array]]) -> Level:
    """SQNR of the worst output of ``done``."""
    return compare_models(reference, done.model, feeds, tensors=[], outputs_matter=False).min_sqnr


def _costly(placed: Placed) -> list[str]:
    """Names of the operators that are declined for what they are, and cost others with them."""
    return [
        name for refusal in placed.refusals if refusal.pulled and refusal.rule not in AROUND for name in refusal.nodes
    ]


def too_little(
    placed: Placed, model: ir.Model, chip: Target, path: str | os.PathLike[str], target: str | os.PathLike[str]
) -> list[str]:
    """Return what is said where little of the ``model`` in the file ``path`` is on the NPU: how much, the worst reason, and a
    suggestion that was tried on a copy."""
    if placed.share >= ENOUGH or not placed.refusals:
        return []
    from qdqtool.verbs.advice.trying import Advisor

    advisor = Advisor(model, chip, os.fspath(path), is_fresh=True)
    first = replace(placed.refusals[0], suggestion=advisor.advice(placed.refusals[0]))
    analyze = shlex.join(["qdqtool", "analyze", os.fspath(path), "--target", os.fspath(target)])
    return [f"only {placed.text} on {placed.target}: {first.text} (all: `{analyze}`)"]

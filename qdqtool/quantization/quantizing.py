"""Quantize a model in memory by a plan."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import field, replace
from typing import Any

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change
from qdq_passes.encode.annotate_encodings import STAYS_FLOAT, AnnotateEncodings
from qdq_passes.encode.convert_bias import ConvertBias
from qdq_passes.encode.edit.precision import FLOATS, in_words
from qdq_passes.encode.isolate_operators import IsolateOperators
from qdq_passes.encode.look.demands import Demands
from qdq_passes.errors import UsageError
from qdq_passes.graph.annotate import DEMAND, PRECISION
from qdq_passes.graph.uses import all_values, has_body, label, main_nodes, op_type_of
from qdq_passes.numerics.override import parse_overrides
from qdq_passes.pipeline.hooks import naming_the_pass, refuse_new, requested_checks
from qdq_passes.pipeline.pipeline import Hook, PassReport, Pipeline, Report
from qdq_passes.precision.convert_boundaries import ConvertBoundaries
from qdq_passes.precision.look.widths import boundary_crossings, mac_shares
from qdq_passes.qdq.look.pairs import qdq_pairs
from qdq_passes.select.selectors import NONE, Selector, select, select_nodes
from qdq_passes.verification.rules import Finding, verify

from qdqtool.calibrate.ranges import Ranges
from qdqtool.calibrate.statistics import Statistics
from qdqtool.io.files.progress import Warn, pass_on
from qdqtool.quantization.annotating import opset_of_overrides
from qdqtool.quantization.batches import bindings
from qdqtool.quantization.calibrating import Calibrator, huge_ranges, observed_names, quantized_activations, zero_inputs
from qdqtool.quantization.decoder_passes import unbounded
from qdqtool.quantization.eight_bit_weights import EightBitWeights
from qdqtool.quantization.float_heads import float_heads
from qdqtool.quantization.plan import DATA, RANGES, TENSORS, Plan
from qdqtool.quantization.precision import raised_for_half, texts_of
from qdqtool.quantization.quantized_files import way_to_floats
from qdqtool.quantization.recovery import Recovering
from qdqtool.quantization.reports import TensorReport, constants_of, grouped, tensor_reports
from qdqtool.record.moves import EncodingWatch
from qdqtool.runtime.session import RUNTIME, compute

#: Family of the passes that make of operators what a target computes.
_OF_TARGETS = "legalize"


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """What quantizing did.

    Args:
        model: the quantized model (the one given, edited in place).
        plan: what ran.
        ranges: observed ranges of the activations.
        quantized_nodes: number of nodes whose values were given encodings.
        excluded: (node name, reason) of the nodes of the main graph that demanded nothing though their type is quantized, or
            that hold a body.
        refused: (value, reason) of the values that stay float though a quantized node touches them: QuantizeLinear cannot take
            them, or the policy leaves them.
        kept: values that an excluded node touches and that got a pair for another node, with the reason.
        pairs: number of QDQ pairs in the result, stored integers included.
        mac_shares: share of the multiply-accumulates whose widest operand has 4, 8 or 16 bits, or is float.
        crossings: number of tensors at which the result changes between 8 bit and anything else.
        tensors: what became of each tensor, the noisiest first.
        conversions: what the chip computes instead of what the float graph says, with the price.
        choice: what was measured where the target takes both forms of an operator, in words; empty where nothing was.
        passes: report of each pass.
        seconds: wall time, calibration included.
        statistics: what was seen of the layers' inputs; None where no pass reads it.
        watch: who chose and moved encodings.
    """

    model: ir.Model
    plan: Plan
    ranges: Ranges
    quantized_nodes: int
    excluded: tuple[tuple[str, str], ...]
    refused: tuple[tuple[str, str], ...]
    kept: tuple[tuple[str, str], ...]
    pairs: int
    mac_shares: Mapping[str, float]
    crossings: int
    tensors: tuple[TensorReport, ...]
    conversions: tuple[Change, ...]
    passes: tuple[PassReport, ...]
    seconds: float
    statistics: Statistics | None = None
    watch: EncodingWatch = field(default_factory=EncodingWatch)
    choice: str = ""

    @property
    def changes(self) -> list[Change]:
        """Everything the passes did and declined."""
        return [change for p in self.passes for change in p.changes]

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; the keys of the command's contract."""
        return {
            "preset": self.plan.preset.name,
            "method": self.ranges.method if self.plan.preset.is_calibrated else None,
            "samples": self.ranges.samples,
            "quantized_nodes": self.quantized_nodes,
            "excluded_nodes": [name for name, _ in self.excluded],
            "excluded": [{"node": name, "reason": reason} for name, reason in self.excluded],
            "refused": [{"tensor": name, "reason": reason} for name, reason in self.refused],
            "kept": [{"tensor": name, "reason": reason} for name, reason in self.kept],
            "pairs": self.pairs,
            "mac_shares": {name: round(share, 4) for name, share in self.mac_shares.items()},
            "boundary_crossings": self.crossings,
            "conversions": [{"node": c.where, "reason": c.because} for c in self.conversions],
            **({"choice": self.choice} if self.choice else {}),
            "moves": [{"tensor": c.where, "reason": c.because} for c in self.changes if c.kind == "move"],
            "tensors": [tensor.to_json() for tensor in self.tensors],
            "pipeline": str(self.plan.pipeline),
            "ranges_sha256": self.ranges.sha256,
            "seconds": round(self.seconds, 3),
            **({"statistics_sha256": self.statistics.sha256} if self.statistics is not None else {}),
        }


@naming_the_pass()
def quantize_model(
    model: ir.Model,
    plan: Plan,
    *,
    feeds: Iterable[Mapping[str, Any]] | None = None,
    calibrator: Calibrator | None = None,
    allow_empty: bool = False,
    hooks: Iterable[Hook] = (),
    recovering: Recovering | None = None,
    warn: Warn | None = None,
    known: Sequence[Finding] | None = None,
) -> Quantization:
    """Quantize ``model`` in place.

    Args:
        model: the float model.
        plan: from `qdqtool.quantization.plan.plan`.
        feeds: calibration samples, read once; not needed where the calibrator has ranges.
        calibrator: what runs the model on them, or the ranges that were found before; it stays as it is.
        allow_empty: selectors that match nothing are warned about and left out of the plan.
        hooks: pipeline hooks.
        recovering: statistics of the layers' inputs, or what to do with those that are collected.
        warn: told what is likely a mistake.
        known: errors that the model came with, of a caller who verifies the result too; None: both is done here, once.

    Raises:
        UsageError: neither feeds nor ranges; nothing to quantize; a selector that matches nothing; a tensor without a range.
        ModelError: a tensor holds NaN or Inf; the message says how to leave it float.
        VerifyError: a pass made an error that was not there.
    """
    start = time.perf_counter()
    watch = EncodingWatch()
    before = verify(model, minimum="error") if known is None else known
    hooks = (*hooks, watch, *requested_checks(before))
    plan, prepared = prepare(model, plan, allow_empty=allow_empty, hooks=hooks, warn=warn)
    calibrator, recovering = replace(calibrator or Calibrator()), recovering or Recovering()
    recovered = recovering.recover(
        model, plan.recover, plan.materialise, feeds=feeds, hooks=hooks, workers=calibrator.workers
    )
    demands = plan.annotate.demands(model)
    activations = quantized_activations(model, plan, demands)
    if not activations and not _stores(plan.annotate, demands):
        raise _nothing_to_quantize(model, plan.annotate, demands)
    names = observed_names(model, plan, activations)
    if not names and (calibrator.ranges is None or plan.annotate.activations == "none"):
        calibrator.ranges = Ranges(method=plan.method, samples=0, tensors={})
    given = {} if calibrator.ranges is None else {RANGES: calibrator.ranges.bound}
    inputs = {**given, DATA: feeds, RUNTIME: calibrator, TENSORS: tuple(names)}
    observed = plan.observe.run(model, inputs=inputs, hooks=hooks)
    ranges = calibrator.found
    pass_on([*huge_ranges(model, plan, ranges, names), *zero_inputs(model, ranges.tensors)], warn)
    masked = set(names) - set(unbounded(model, plan.materialise, ranges.bound, names))
    excluded = _excluded(model, plan, demands, prepared.passes)
    constants = constants_of(model)
    inputs = {RANGES: ranges.bound, **recovering.inputs(plan.materialise)}
    materialised = plan.materialise.run(model, inputs=inputs, hooks=(*hooks, recovering))
    passes = (*prepared.passes, *recovered, *observed.passes, *materialised.passes)
    heads = float_heads(plan.materialise, materialised.passes, warn)
    if known is None:
        refuse_new(model, before, "the passes of the plan")
    return Quantization(
        model=model,
        plan=plan,
        ranges=ranges,
        quantized_nodes=len({name for v in demands.nodes if (demand := DEMAND.get(v)) for name in demand.nodes}),
        excluded=(*excluded, *heads),
        refused=_refused(plan, demands, materialised),
        kept=tuple((c.where, c.because) for p in passes for c in p.changes if ", kept for " in c.because),
        pairs=len(qdq_pairs(model)),
        mac_shares=mac_shares(model),
        crossings=len(boundary_crossings(model)),
        tensors=tensor_reports(model, ranges.bound, constants, masked),
        conversions=_conversions(plan, materialised),
        passes=passes,
        seconds=time.perf_counter() - start,
        statistics=recovering.statistics,
        watch=watch,
    )


def _stores(annotate: AnnotateEncodings, demands: Demands) -> bool:
    """Whether weights are stored as integers though activations stay float."""
    return annotate.activations == "none" and any(demands.role(value) != "bias" for value in demands.nodes)


def _excluded(
    model: ir.Model, plan: Plan, demands: Demands, prepared: Sequence[PassReport]
) -> tuple[tuple[str, str], ...]:
    """(node, reason) of the nodes that demand nothing, behind the reports ``prepared``."""
    by_user = plan.annotate.excluded(model)
    wanted = select_nodes(model, plan.annotate.only) - by_user
    isolated = dict(_isolated(plan, prepared))
    reasons = (
        (label(node), _why_excluded(node, by_user, wanted, plan.annotate, demands)) for node in main_nodes(model)
    )
    return tuple((name, isolated.get(name, reason)) for name, reason in reasons if reason)


def _refused(plan: Plan, demands: Demands, materialised: Report) -> tuple[tuple[str, str], ...]:
    """(value, reason) of the values that stay float though a quantized node touches them."""
    refused = [(value.name or "", reason) for value, reason in demands.refused.items()]
    floats = {
        c.where: c.because.removeprefix(STAYS_FLOAT)
        for p in materialised.passes
        for c in p.changes
        if c.because.startswith(STAYS_FLOAT)
    }
    converted = _converted_biases(plan, materialised)
    return (*refused, *((name, reason) for name, reason in floats.items() if name not in converted))


def prepare(
    model: ir.Model,
    plan: Plan,
    *,
    allow_empty: bool = False,
    hooks: Iterable[Hook] = (),
    warn: Warn | None = None,
) -> tuple[Plan, Report]:
    """Run the passes before calibration on ``model``, and see what the plan's selectors hit in what they made of it.

    Returns:
        The plan (with ``allow_empty`` without the selectors that match nothing), with what its functions say of single tensors;
        and the report of the passes.

    Raises:
        UsageError: a selector matches nothing.
    """
    annotate = plan.annotate
    texts = [t for selector in (annotate.exclude, annotate.only) if selector != NONE for t in selector.texts]
    raised = plan.eight_bit
    texts += raised
    marked = texts_of(plan.precision)
    before = {text for text in texts if wrong(model, text) is None} | {
        t for t in marked if wrong(model, t, values=True) is None
    }
    values = all_values(model)
    overridden = {v.name for v in values} & set(parse_overrides(annotate.overrides))
    if plan.preset.insert.domain == "onnx":
        held = {v.dtype for v in values}
        plan = replace(plan, prepare=raised_for_half(plan.prepare, held, model.opset_imports.get("")))
    report = plan.prepare.run(model, inputs={RUNTIME: compute}, hooks=hooks)
    plan = plan.annotated(model)
    raising = opset_of_overrides(plan.annotate, model)
    if raising is not None:
        plan = replace(plan, prepare=plan.prepare + Pipeline((raising,)))
        report = Report(model, (*report.passes, *Pipeline((raising,)).run(model, hooks=hooks).passes))
    _refuse_lost(model, plan, overridden)
    empty = []
    for text, error in [*((t, wrong(model, t)) for t in texts), *((t, wrong(model, t, values=True)) for t in marked)]:
        if error is None:
            continue
        if text in before:
            error = UsageError(
                f"selector {text!r} matches nothing once the model is prepared",
                hint="what it names is folded or inlined then: name the layer it goes into, or pass --no-fuse-layers",
            )
        if not allow_empty:
            raise error
        if warn is not None:
            warn(str(error))
        empty.append(text)
    idle = [text for text in raised if text not in empty and not EightBitWeights((text,))(model)]
    pass_on([f"--int8-weights {text} names no layer with a weight" for text in idle], warn)
    plan = plan.without(empty) if empty else plan
    marking = plan.precision.run(model, hooks=hooks)
    pass_on([*bindings(report.passes), *grouped(_isolated(plan, marking.passes))], warn)
    return plan, Report(model, (*report.passes, *marking.passes))


def _isolated(plan: Plan, prepared: Sequence[PassReport]) -> list[tuple[str, str]]:
    """(node, reason) of what stays float around operators that a target lacks; ``prepared`` ends with the passes of precision."""
    ran = zip(plan.precision.passes, prepared[len(prepared) - len(plan.precision.passes) :], strict=True)
    return [(c.where, c.because) for p, done in ran if isinstance(p, IsolateOperators) for c in done.changes]


def _conversions(plan: Plan, report: Report) -> tuple[Change, ...]:
    """What the passes for the target changed behind the pairs."""
    ran = zip(plan.materialise.passes, report.passes, strict=True)
    return tuple(c for p, done in ran if p.family() == _OF_TARGETS for c in done.changes if not c.is_skip)


def _converted_biases(plan: Plan, report: Report) -> set[str]:
    """Biases that annotation left float, as layers share them, and that were stored for each layer afterwards."""
    ran = zip(plan.materialise.passes, report.passes, strict=True)
    return {c.where for p, done in ran if isinstance(p, ConvertBias) for c in done.changes if not c.is_skip}


def _refuse_lost(model: ir.Model, plan: Plan, overridden: Set[str | None]) -> None:
    """Refuse overrides of tensors, and receivers of conversions, that the prepared model does not have; once ``overridden``."""
    for name in sorted(name for name in overridden - {value.name for value in all_values(model)} if name):
        raise UsageError(
            f"tensor {name!r}, which is overridden, is gone once the model is prepared",
            hint="it is folded into another then: name that one, or pass --no-fuse-layers",
        )
    plan.annotate.policy(model)
    for text in [t for p in plan.materialise.passes if isinstance(p, ConvertBoundaries) for t in p.select.texts]:
        error = wrong(model, text)
        if error is not None:
            raise error


def wrong(model: ir.Model, text: str, *, values: bool = False) -> UsageError | None:
    """None when ``text`` names a node (or a value, with ``values``), else what is wrong with it."""
    try:
        found = select(model, Selector.of(text)) if values else select_nodes(model, Selector.of(text))
    except UsageError as error:
        return error
    if found or values:
        return None
    hint = "inputs and weights are written by none: name a node that reads them"
    return UsageError(f"selector {text!r} names values that no node writes", hint=hint)


#: The way out where a reason has none of its own.
_OTHER_PRESETS = "the preset takes nothing else of this model; `qdqtool list presets` has others"


def _nothing_to_quantize(model: ir.Model, annotate: AnnotateEncodings, demands: Demands) -> UsageError:
    if demands.refused:
        value, reason = next(iter(demands.refused.items()))
        if value in demands.silent or demands.idle:
            return UsageError(
                f"nothing to quantize: {reason}",
                where=value.name,
                hint="the rules of the preset, or extra options, leave nothing",
            )
        hint = "`qdqtool convert-opset` raises it" if "needs opset" in reason else _OTHER_PRESETS
        return UsageError(f"nothing to quantize: {reason}", where=value.name, hint=hint)
    if pairs := len(qdq_pairs(model)):
        hint = f"it has {pairs} QDQ pairs already; {way_to_floats('MODEL')}"
    elif any((mark := PRECISION.get(node)) is not None and mark.dtype in FLOATS for node in main_nodes(model)):
        hint = (
            "--fp16, --bf16 or --float leave no operator of the preset's list; "
            "a whole model in half floats: `qdqtool opt -p 'infer-shapes,convert-precision{dtype=float16}'`"
        )
    elif annotate.exclude != NONE or not annotate.only.is_all:
        hint = "--exclude and --only leave no operator that is on the preset's list"
    elif idle := [(node, why) for node, why in demands.idle.items() if node.op_type in annotate.ops]:
        where, reason = idle[0]
        more = f" ({len(idle) - 1} more like it)" if len(idle) > 1 else ""
        is_computed = "fold-constants" in reason
        hint = "`qdqtool opt MODEL -p fold-constants -o FILE` first" if is_computed else _OTHER_PRESETS
        return UsageError(f"nothing to quantize: {reason}{more}", where=where.name, hint=hint)
    else:
        found = sorted({node.op_type for node in main_nodes(model)})
        bodies = "; bodies of If and Loop stay float" if any(has_body(node) for node in main_nodes(model)) else ""
        from qdqtool.targets.remedies import REPLACED

        ways = sorted({REPLACED[op] for op in map(op_type_of, main_nodes(model)) if op in REPLACED})
        others = f"; put others in their place: `qdqtool opt -p {','.join(ways)}`" if ways else ""
        hint = (
            f"of its operators ({', '.join(found[:8])}) none is on the preset's list (or the target's){others}{bodies}"
        )
    return UsageError("nothing to quantize", hint=hint)


def _why_excluded(
    node: ir.Node, excluded: set[ir.Node], wanted: set[ir.Node], annotate: AnnotateEncodings, demands: Demands
) -> str | None:
    mark = PRECISION.get(node)
    if mark is not None and mark.dtype in FLOATS:
        return in_words(mark)
    if node in excluded:
        return "named by --exclude"
    if has_body(node):
        return "values inside its body stay float"
    if node not in wanted and node.op_type in annotate.ops:
        return "not selected by --only"
    return demands.idle.get(node)

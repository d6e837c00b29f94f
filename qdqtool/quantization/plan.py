"""A quantization as text: the pipeline that a preset and the user's options amount to."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Literal

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.clean.inline_functions import InlineFunctions
from qdq_passes.core.base import Named
from qdq_passes.encode.annotate_encodings import AnnotateEncodings
from qdq_passes.encode.isolate_concats import IsolateConcats
from qdq_passes.encode.isolate_operators import IsolateOperators
from qdq_passes.encode.look.read_ranges import cut
from qdq_passes.encode.observe import Observe
from qdq_passes.encode.set_precision import SetPrecision
from qdq_passes.errors import UsageError
from qdq_passes.numerics.encoding import integer_format, parse_dtype
from qdq_passes.numerics.override import Override, format_overrides, parse_overrides
from qdq_passes.pipeline.pipeline import Pipeline, parse_pipeline
from qdq_passes.pipeline.text import make_pass
from qdq_passes.qdq.fold_weight_qdq import FoldWeightQdq
from qdq_passes.qdq.insert_qdq import InsertQdq
from qdq_passes.select.globs import literal
from qdq_passes.select.selectors import ALL, NONE, Selector

from qdqtool.calibrate import METHODS
from qdqtool.calibrate.observer import Option, checked_options, observers, option_names
from qdqtool.presets.preset import HARD_SIGMOID, Preset
from qdqtool.quantization.annotating import Annotator, annotated
from qdqtool.quantization.batches import bound
from qdqtool.quantization.decoder_passes import (
    float_head,
    with_decoder_passes,
    with_finite_masks,
)
from qdqtool.quantization.eight_bit_weights import EightBitWeights, eight_bit_weights
from qdqtool.quantization.float_heads import with_float_heads
from qdqtool.quantization.lowerings import fused_for, lowerings
from qdqtool.quantization.options import PlanOptions
from qdqtool.quantization.precision import precision_passes, with_precision, without
from qdqtool.quantization.recovery import recovering, with_rounding
from qdqtool.runtime.session import RUNTIME

if TYPE_CHECKING:
    from qdqtool.foreign.options import Said
    from qdqtool.targets.legalization import Legalization

#: Named input that holds the ranges of the activations; and those of `observe`, which makes it: samples, and names of tensors.
RANGES, DATA, TENSORS = "ranges", "data", "tensors"
#: Takes rows out of a table.
_LOOKUP = "Gather"
#: Operators whose weights a switch is about: sums over a window, and over a whole axis.
CONVOLUTIONS = ("Conv", "ConvTranspose")
LINEAR = ("Gemm", "MatMul")
#: What is said where stored weights are asked for by the Vitis quantizer's option, which takes it otherwise.
KEPT_PAIRS = (
    "AddQDQPairToWeight=false is taken for true with power-of-two scales, as the Vitis quantizer takes it: weights keep their "
    "pairs; --weights dq stores integers"
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What will run, before anything runs.

    Args:
        preset: where defaults come from.
        method: calibration method.
        method_options: its options.
        prepare: passes on the float model, before calibration.
        precision: passes that then say which values and nodes have another precision than the rest.
        recover: passes that then change the float model so that quantization loses less, not what it computes.
        materialise: passes that choose encodings from ``@ranges``, insert pairs and refine them.
        cuts: what no reader tells apart is left out of ranges.
        annotators: functions to ask about single tensors once the model is prepared; see `annotated`.
        warnings: what is done otherwise than asked.
    """

    preset: Preset
    method: str
    method_options: Mapping[str, Option]
    prepare: Pipeline
    materialise: Pipeline
    precision: Pipeline = field(default_factory=Pipeline)
    recover: Pipeline = field(default_factory=Pipeline)
    cuts: bool = False
    annotators: tuple[Annotator, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def pipeline(self) -> Pipeline:
        """The job with ranges that were found before; ``opt -p @file --ranges R`` replays its text to the same bytes."""
        return self.prepare + self.precision + self.recover + self.materialise

    @property
    def eight_bit(self) -> tuple[str, ...]:
        """The user's selectors of nodes whose weights are int8; empty once ``annotators`` were asked."""
        return tuple(t for a in self.annotators if isinstance(a, EightBitWeights) and a.is_said for t in a.texts)

    @property
    def observe(self) -> Pipeline:
        """The calibration behind `recover`, that makes ``@ranges``; nothing where no pass reads them."""
        if RANGES not in self.materialise.needs():
            return Pipeline()
        options = json.dumps(dict(self.method_options), sort_keys=True) if self.method_options else ""
        runs: dict[str, Any] = {name: Named(name) for name in (DATA, RUNTIME, TENSORS)}
        return Pipeline((Observe(**runs, method=self.method, options=options, cut=self.cuts),))

    @property
    def whole(self) -> Pipeline:
        """The whole job, calibration included; what it is where ``@ranges`` is bound is `pipeline`."""
        return self.prepare + self.precision + self.recover + self.observe + self.materialise

    @property
    def is_for_chips(self) -> bool:
        """Whether nodes compute in bfloat16, for which onnxruntime has no kernels on CPUs."""
        return any(isinstance(p, SetPrecision) and p.dtype == "bfloat16" for p in self.precision.passes)

    @property
    def annotate(self) -> AnnotateEncodings:
        """The pass that chooses the encodings, and says what is quantized."""
        return next(p for p in self.materialise.passes if isinstance(p, AnnotateEncodings))

    @property
    def keeps_float_weights(self) -> bool:
        """Whether weights stay float, each behind a pair: the file is no smaller then."""
        passes = self.materialise.passes
        on_floats = any(isinstance(p, InsertQdq) and p.weights == "qdq" for p in passes)
        return on_floats and not any(isinstance(p, FoldWeightQdq) for p in passes)

    def seen(self, model: ir.Model, names: Collection[str]) -> ir.Model:
        """What is calibrated for ranges of ``names``: ``model``, or a copy whose values lie in what their readers tell apart."""
        return cut(model, names) if self.cuts else model

    def excluding(self, *texts: str) -> Plan:
        """This plan with the nodes that the selectors ``texts`` name left float too."""
        policy = self.annotate
        before = () if policy.exclude == NONE else policy.exclude.texts
        annotate = replace(policy, exclude=Selector((*before, *texts)))
        return replace(
            self, materialise=Pipeline(tuple(annotate if p is policy else p for p in self.materialise.passes))
        )

    def isolating(self, *names: str) -> Plan:
        """This plan with the nodes ``names``, which the target declines as they stand, kept from costing their region."""
        passes = (
            replace(p, declined=(*p.declined, *names)) if isinstance(p, IsolateOperators) else p
            for p in self.precision.passes
        )
        return replace(self, precision=Pipeline(tuple(passes)))

    def isolating_layers(self) -> Plan:
        """This plan with the layers left float that read a Concat of unlike branches."""
        passes = (replace(p, layers=True) if isinstance(p, IsolateConcats) else p for p in self.materialise.passes)
        return replace(self, materialise=Pipeline(tuple(passes)))

    def overriding(self, said: Mapping[str, Mapping[str, object]]) -> Plan:
        """This plan with ``said`` of single tensors laid over what it says of them."""
        policy = self.annotate
        overrides = parse_overrides(policy.overrides)
        new = format_overrides({**overrides, **{name: Override.from_json(dict(entry)) for name, entry in said.items()}})
        passes = tuple(replace(p, overrides=new) if p is policy else p for p in self.materialise.passes)
        return replace(self, materialise=Pipeline(passes))

    def annotated(self, model: ir.Model) -> Plan:
        """This plan with what its functions say of the prepared ``model`` in its text, and nobody left to ask.

        Raises:
            UsageError: a function cannot be imported, fails, or returns what is no override.
        """
        return replace(self, materialise=annotated(self.materialise, model, self.annotators), annotators=())

    def keeping_sigmoid(self) -> Plan:
        """This plan with every Sigmoid left as it is."""
        passes = tuple(p for p in self.materialise.passes if p.name() not in HARD_SIGMOID)
        return replace(self, materialise=Pipeline(passes))

    def without(self, texts: Collection[str]) -> Plan:
        """This plan with the selectors ``texts`` taken out of what is excluded, may be quantized, or has another precision."""
        policy = self.annotate
        exclude, only = (tuple(t for t in s.texts if t not in texts) for s in (policy.exclude, policy.only))
        nothing_left = NONE if policy.only.texts else ALL
        annotate = replace(
            policy, exclude=Selector(exclude) if exclude else NONE, only=Selector(only) if only else nothing_left
        )
        passes = tuple(annotate if p is policy else p for p in self.materialise.passes)
        return replace(self, materialise=Pipeline(passes), precision=without(self.precision, texts))


def plan(
    preset: Preset,
    options: PlanOptions | None = None,
    *,
    ops: tuple[str, ...] = (),
    legalization: Legalization | None = None,
) -> Plan:
    """The plan of ``preset`` with the user's options laid over it.

    Args:
        preset: the preset.
        options: what the user says; None says nothing.
        ops: operator types instead of the preset's (a target's list); a preset of weights alone keeps those of its own that are
            among them.
        legalization: what the target changes of the pipeline.

    Raises:
        UsageError: an option does not fit.
        UnsupportedError: what other tools do otherwise.
    """
    options = options or PlanOptions()
    said = options.extra
    asked = {
        "--method": options.method,
        "--weights": options.weights,
        "--no-fuse-layers": not options.fuse_layers,
        "--keep-sigmoid": options.keep_sigmoid,
    }
    laid = with_embeddings(with_per_axis(_laid_over(preset, said, asked), options), options)
    stored, warnings = _stored_weights(preset, laid, options)
    before, after = laid.pipeline_text(
        method=options.method,
        exclude=(*options.exclude, *options.discard, *float_head(options), *said.get("exclude", ())),
        only=(*options.only, *said.get("only", ())),
        isolate=options.isolate,
        weights=stored,
        fuse_layers=options.fuse_layers,
        keep_sigmoid=bool(options.keep_sigmoid),
    )
    prepare = parse_pipeline(before) if before else Pipeline()
    if options.keep_functions:
        prepare = Pipeline(tuple(p for p in prepare.passes if not isinstance(p, InlineFunctions)))
    materialise = parse_pipeline(after)
    materialise += Pipeline(
        tuple(
            make_pass("convert-boundaries", {"select": [literal(name) for name in names], "dtype": dtype})
            for dtype, names in said.get("conversions", ())
        )
    )
    if ops:
        materialise = _limited(materialise, ops, laid, options)
        prepare = fused_for(prepare, ops) + lowerings(ops)
    if legalization is not None:
        prepare, materialise = _legalized(legalization, prepare, materialise)
        materialise = with_float_heads(materialise, RANGES)
        prepare = bound(prepare, legalization) if options.bind_batch else prepare
    materialise = with_decoder_passes(materialise, options)
    prepare = with_finite_masks(prepare, materialise, options, ops)
    prepare, materialise = with_precision(laid, options, prepare, materialise)
    recovery = options.over(laid.recovery)
    used = options.method or laid.method
    return Plan(
        preset=laid,
        method=used,
        method_options=_method_options(laid, used, options.method_options or {}),
        prepare=prepare,
        precision=precision_passes(laid, options) + _isolating(laid, ops, legalization),
        recover=recovering(recovery),
        cuts=bool(recovery.cut_ranges),
        materialise=with_rounding(materialise, recovery),
        annotators=(*options.annotate, *eight_bit_weights(laid, options)),
        warnings=(*warnings, *_unused(laid, options)),
    )


def _unused(preset: Preset, options: PlanOptions) -> Iterator[str]:
    """What is said of a calibration that there is none of."""
    if options.method_options and not preset.is_calibrated:
        yield f"--method-option is not used: {preset.name} leaves activations float"


def _limited(materialise: Pipeline, ops: tuple[str, ...], laid: Preset, options: PlanOptions) -> Pipeline:
    """``materialise`` with the operator types ``ops`` of a target instead of the preset's; where those were chosen, or weights
    alone are quantized, with what is in both."""
    is_chosen = "ops" in options.extra or "more-ops" in options.extra or not laid.is_calibrated
    taken = tuple(op for op in laid.annotate.ops if op in ops) if is_chosen else ops
    if not taken:
        raise UsageError(f"the target takes no {' and no '.join(laid.annotate.ops)}", hint="see `list targets`")
    return Pipeline(tuple(replace(p, ops=taken) if isinstance(p, AnnotateEncodings) else p for p in materialise.passes))


def _isolating(preset: Preset, ops: tuple[str, ...], target: Legalization | None) -> Pipeline:
    """The pass that keeps an operator which the target lacks from costing its region."""
    is_wanted = target is not None and target.isolates and bool(ops) and preset.is_calibrated
    return Pipeline((IsolateOperators(taken=ops),) if is_wanted else ())


def _laid_over(preset: Preset, said: Said, asked: Mapping[str, object]) -> Preset:
    """``preset`` with options of other tools, if there are any."""
    if not said:
        return preset
    from qdqtool.foreign.apply import lay_over

    return lay_over(preset, said, asked)


def _stored_weights(preset: Preset, laid: Preset, options: PlanOptions) -> tuple[Literal["qdq", "dq"], tuple[str, ...]]:
    """How weights are stored, and a warning where that is otherwise than another tool's option asks."""
    if options.weights is not None:
        return options.weights, ()
    if options.extra:
        from qdqtool.foreign.apply import weights_kept

        if weights_kept(preset, laid, options.extra):
            return preset.insert.weights, (KEPT_PAIRS,)
    stored: Literal["qdq", "dq"] = options.extra.get("insert-qdq.weights", preset.insert.weights)
    return stored, ()


def _legalized(target: Legalization, prepare: Pipeline, materialise: Pipeline) -> tuple[Pipeline, Pipeline]:
    """Both halves of the job as the target wants them."""
    kept = Pipeline(tuple(p for p in prepare.passes if p.name() not in target.without)) + target.before
    passes = [p for p in materialise.passes if p.name() not in target.without]
    if target.sharing:
        passes = [replace(p, sharing=target.sharing) if isinstance(p, AnnotateEncodings) else p for p in passes]
    return kept, Pipeline(tuple(passes)) + target.after


def _method_options(preset: Preset, method: str, said: Mapping[str, Option]) -> dict[str, Option]:
    """Options of ``method``: what is ``said``, the preset's, and of those that it takes the storage type of activations."""
    options: dict[str, Option] = dict(preset.method_options.get(method, {}))
    if not preset.is_calibrated:
        return options
    is_known = method in METHODS.names()  # ranges may come from a method that is not here
    if is_known and said:
        options |= checked_options(method, said)
        observers(method, options)
    bits, symmetric = integer_format(parse_dtype(preset.annotate.activations))[1], preset.annotate.symmetric
    takes = option_names(method) if is_known else ()
    if bits != 8 and "bits" in takes:
        options.setdefault("bits", bits)
    if not symmetric and "symmetric" in takes:
        options.setdefault("symmetric", False)
    return options


def with_per_axis(preset: Preset, options: PlanOptions) -> Preset:
    """``preset`` with a scale per output channel, or one a tensor, where a switch says so.

    The axis is that of output channels: 0 of a Conv and a transposed Gemm, 1 of a ConvTranspose and a Gemm, the last of a MatMul.
    An axis that the preset names itself stays.

    Raises:
        UsageError: the preset refuses per-axis weights, or an option of another tool contradicts a switch.
    """
    if options.per_axis_conv is None and options.per_axis_linear is None:
        return preset
    entries = list(preset.annotate.per_axis)
    for switch, wanted, op_types in (
        ("--per-axis-conv", options.per_axis_conv, CONVOLUTIONS),
        ("--per-axis-linear", options.per_axis_linear, LINEAR),
    ):
        if wanted is None:
            continue
        if wanted and preset.no_per_axis:
            raise UsageError(
                f"{switch}: {preset.name} has one scale a weight, as {preset.no_per_axis}",
                hint=f"leave out {switch}, or take another preset (`list presets`)",
            )
        said = options.extra.get("per-channel", wanted)
        if said is not wanted:
            shown = switch if wanted else switch.replace("--", "--no-")
            raise UsageError(f"per_channel={str(said).lower()} contradicts {shown}", hint="drop one of them")
        named = [entry for entry in entries if entry.partition(":")[0] in op_types]
        if wanted:
            entries += [op for op in op_types if op not in {entry.partition(":")[0] for entry in named}]
        else:
            entries = [entry for entry in entries if entry not in named]
    return replace(preset, annotate=replace(preset.annotate, per_axis=tuple(entries)))


def with_embeddings(preset: Preset, options: PlanOptions) -> Preset:
    """``preset`` with the tables that Gather looks rows up in quantized too, where ``options`` asks for it.

    In the blocks of the preset, which lie along a row, or else with a scale per row.
    """
    policy = preset.annotate
    if not options.embeddings or _LOOKUP in policy.ops:
        return preset
    is_said = any(entry.partition(":")[0] == _LOOKUP for entry in policy.per_axis)
    annotate = replace(
        policy,
        ops=(*policy.ops, _LOOKUP),
        per_axis=policy.per_axis if is_said else (*policy.per_axis, f"{_LOOKUP}:0"),
    )
    return replace(preset, annotate=annotate)

"""Options of the references that contradict each other, the scales, or options of ours: refused, with the reason and a way out.

Power-of-two scales are made for integer units that requantize by one shift a tensor: with them the Vitis quantizer for the DPU
allows no scale per channel, no zero point, no 7-bit weight and no unsigned weight. Float scales have no positions to refine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from qdq_passes.encode.annotate_encodings import AnnotateEncodings
from qdq_passes.errors import UnsupportedError, UsageError
from qdq_passes.fuse.fold_batch_norm import FoldBatchNorm
from qdq_passes.fuse.fuse_conv_activation import FuseConvActivation
from qdq_passes.legalize.clip_to_relu import ClipToRelu
from qdq_passes.numerics.override import Override
from qdq_passes.numerics.pow2 import position_of

from qdqtool.foreign.extra_options import ExtraOptions, option_named
from qdqtool.foreign.switching import ALIGNING, has, passes_before
from qdqtool.presets.preset import Preset

_FLOAT_SCALES = "add UsePowerOf2Scale=false, or take a preset with float scales"
_POWERS_OF_TWO = "add UsePowerOf2Scale=true, or take a preset with power-of-two scales"
_ONE = "leave one of them out"
#: Methods that CalibMovingAverage averages.
_AVERAGED = ("minmax", "moving-average", "pow2-nonoverflow")
#: Defaults of the references: said, they change nothing.
_CONSTANT, _PERCENTILE, _ROUNDS = 0.01, 99.999, 5

#: (what contradicts, the way out)
Contradiction = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What options of ours ask for beside those of the references.

    Args:
        method: calibration method.
        weights: how weights are kept.
        fuse_layers: whether passes fold and fuse.
        keep_sigmoid: whether Sigmoid stays.
    """

    method: str | None = None
    weights: Literal["qdq", "dq"] | None = None
    fuse_layers: bool = True
    keep_sigmoid: bool = False


def refuse(preset: Preset, extra: ExtraOptions, policy: AnnotateEncodings, asked: Asked, *, method: str) -> None:
    """Raise the first contradiction there is.

    Args:
        preset: what the options are laid over.
        extra: the options.
        policy: what they amount to.
        asked: options of ours.
        method: calibration method that runs.

    Raises:
        UsageError: options that contradict each other or the scales.
        UnsupportedError: a combination that the references do otherwise.
    """
    of_scales = _power_of_two(extra) if policy.scales == "pow2" else _float(extra)
    every = (
        of_scales,
        _among_values(extra),
        _among_methods(extra, method),
        _among_passes(preset, extra),
        _ours(extra, asked),
    )
    for contradictions in every:
        for what, way_out in contradictions:
            raise UsageError(what, hint=way_out)
    _refuse_ranges(policy, extra)


def _power_of_two(extra: ExtraOptions) -> Iterator[Contradiction]:
    """What power-of-two scales exclude."""
    said, no_shift = extra.overrides.values(), "a shift has no zero point"
    rows = [
        (bool(extra.per_channel or extra.axes), "a scale per channel", "an integer unit shifts a whole tensor alike"),
        (any(o.axis is not None for o in said), "an axis in TensorQuantOverrides", "it shifts a whole tensor alike"),
        (extra.symmetric is False, "ActivationSymmetric=false", no_shift),
        (extra.weights_symmetric is False, "WeightSymmetric=false", no_shift),
        (any(o.symmetric is False for o in said), "symmetric=false in TensorQuantOverrides", no_shift),
        (any(_no_power(o) for o in said), "a scale that is no power of two in TensorQuantOverrides", "a shift is one"),
        (any(any(o.zero_point) for o in said), "a zero point in TensorQuantOverrides", no_shift),
        (bool(extra.reduce_range), "reduce_range", "7-bit weights are for CPUs that add products in 16 bits"),
        (_is_unsigned(extra), f"weight_type {extra.weights}", "weights of such units are signed"),
    ]
    for contradicts, what, why in rows:
        if contradicts:
            yield f"power-of-two scales exclude {what}: {why}", _FLOAT_SCALES


def _float(extra: ExtraOptions) -> Iterator[Contradiction]:
    """What float scales exclude."""
    position = "they have no positions"
    adjusted = [step for step, runs in extra.steps.items() if runs and step not in ALIGNING]
    simulated = [part for part, runs in extra.dpu_parts.items() if runs and extra.dpu is not False]
    rows = [
        (bool(extra.dpu), "SimulateDPU=true", "the DPU has none"),
        *[(True, f"{option_named(f'dpu_parts.{part}')}=true", "the DPU has none") for part in simulated],
        (bool(extra.limits), "NPULimitationCheck=true", position),
        *[(extra.limits is not False, f"{option_named(f'steps.{step}')}=true", position) for step in adjusted],
        (
            extra.rounds not in (None, _ROUNDS) and extra.limits is not False,
            "MaxLoopNum",
            "nothing is refined in rounds",
        ),
        (extra.constants == "minmse", "WeightCalibrateMethod=MinMSE", "it chooses one of five powers of two"),
    ]
    for contradicts, what, why in rows:
        if contradicts:
            yield f"float scales exclude {what}: {why}", _POWERS_OF_TWO
    if extra.method and extra.method.startswith("pow2"):
        way_out = "CalibrationMethod.MinMSE" if extra.method == "pow2-minmse" else "MinMax"
        yield f"UsePowerOf2Scale=false contradicts the method {extra.method}", f"take calibrate_method={way_out}"


def _among_values(extra: ExtraOptions) -> Iterator[Contradiction]:
    if extra.int32_bias is True and extra.quantize_bias is False:
        yield "Int32Bias=true contradicts QuantizeBias=false", _ONE
    if extra.per_channel is False and extra.axes:
        yield "QDQOpTypePerChannelSupportToAxis contradicts per_channel=false", _ONE
    if _is_unsigned(extra) and extra.activations is not None and extra.activations.startswith("int"):
        types = f"weight_type {extra.weights} with activation_type {extra.activations}"
        yield f"{types}: no runtime multiplies signed by unsigned", "take a signed weight_type"


def _among_methods(extra: ExtraOptions, method: str) -> Iterator[Contradiction]:
    """Options of one calibration method, while another runs."""
    if extra.moving_average and extra.method not in (None, *_AVERAGED):
        yield f"CalibMovingAverage=true contradicts the method {extra.method}", "it averages MinMax and NonOverflow"
    if extra.averaging not in (None, _CONSTANT) and method != "moving-average":
        yield f"CalibMovingAverageConstant is no option of the method {method}", "add CalibMovingAverage=true"
    if extra.percentile not in (None, _PERCENTILE) and method != "percentile":
        yield f"Percentile is no option of the method {method}", "add calibrate_method=Percentile"


def _among_passes(preset: Preset, extra: ExtraOptions) -> Iterator[Contradiction]:
    """Options of passes that do not run."""
    passes = passes_before(preset, extra)
    if extra.joined_norms and not has(passes, FoldBatchNorm.name()):
        yield "FoldBatchNormAfterConcat=true: nothing folds BatchNormalization", "add FoldBatchNorm=true"
    if extra.fused_norm and not has(passes, FuseConvActivation.name()):
        yield "RemoveQDQInstanceNorm=true: no activation is fused", "add RemoveQDQConvRelu=true"
    had = any(isinstance(p, ClipToRelu) and p.clip6 for p in preset.before)
    if extra.passes.get(ClipToRelu.name()) is False and (had if extra.clip6 is None else extra.clip6):
        yield (
            "ConvertClipToRelu=false contradicts ReplaceClip6Relu=true: one pass does both",
            "ReplaceClip6Relu=false goes with it",
        )
    refines = preset.annotate.scales == "pow2" and has(preset.after, "refine-positions")
    if extra.rounds not in (None, _ROUNDS) and not (
        refines or extra.limits is not None or True in extra.steps.values()
    ):
        yield "MaxLoopNum: nothing is refined in rounds", "add NPULimitationCheck=true"


def _ours(extra: ExtraOptions, asked: Asked) -> Iterator[Contradiction]:
    """Options of the references and of ours that say different things."""
    if None not in (asked.weights, extra.stored) and asked.weights != extra.stored:
        said = "true" if extra.stored == "qdq" else "false"
        yield f"AddQDQPairToWeight={said} contradicts --weights {asked.weights}", _ONE
    if None not in (asked.method, extra.method) and asked.method != extra.method:
        yield f"calibrate_method ({extra.method}) contradicts --method {asked.method}", _ONE
    if extra.moving_average and asked.method not in (None, "moving-average"):
        yield f"CalibMovingAverage=true contradicts --method {asked.method}", _ONE
    if not asked.fuse_layers:
        for option in _folding(extra):
            yield f"{option}=true contradicts --no-fuse-layers", _ONE
    if asked.keep_sigmoid and extra.dpu_parts.get("sigmoid-to-hard-sigmoid"):
        yield "ConvertSigmoidToHardSigmoid=true contradicts --keep-sigmoid", _ONE


def _folding(extra: ExtraOptions) -> Iterable[str]:
    """Names of the options that ask for folding and fusing."""
    yield from (
        option_named(f"passes.{name}")
        for name, runs in extra.passes.items()
        if runs and name.startswith(("fold-", "fuse-"))
    )
    yield from (option_named(f"fused.{op_type}") for op_type, is_fused in extra.fused.items() if is_fused)
    if extra.fused_norm:
        yield option_named("fused_norm")
    if extra.joined_norms:
        yield option_named("joined_norms")


def _is_unsigned(extra: ExtraOptions) -> bool:
    return (extra.weights or "").startswith("uint")


def _no_power(override: Override) -> bool:
    """Whether one of the scales that ``override`` gives is no power of two."""
    return any(position_of(scale) is None for scale in override.scale)


def _refuse_ranges(policy: AnnotateEncodings, extra: ExtraOptions) -> None:
    """What only makes a difference for activations with a zero point."""
    if policy.symmetric:
        return
    if extra.symmetric_ranges:
        raise UnsupportedError(
            "CalibTensorRangeSymmetric=true has no equivalent for asymmetric activations",
            hint="ActivationSymmetric=true gives them symmetric encodings",
        )
    if extra.drop_activations:
        raise UnsupportedError(
            "QDQKeepRemovableActivations=false has no equivalent", hint="Relu and Clip stay where they are"
        )

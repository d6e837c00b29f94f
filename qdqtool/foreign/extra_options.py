"""Options of onnxruntime's quantizer and of the Vitis AI quantizer (Quark), by their own names, as policies of ours.

====================================  ==================================================================================
reference                             here
====================================  ==================================================================================
OpTypesToExcludeOutputQuantization    annotate-encodings ``outputs-stay-float``
AddQDQPairToWeight                    insert-qdq ``weights``: true ``qdq``, false ``dq`` (``--weights``)
DedicatedQDQPair                      insert-qdq ``dedicated``
UseQDQContribOps                      insert-qdq ``domain=com.microsoft``
QDQOpTypePerChannelSupportToAxis      annotate-encodings ``per-axis``, for the types it names
per_channel                           annotate-encodings ``per-axis=[Conv,ConvTranspose,Gemm,MatMul]``: output channels
WeightSymmetric                       annotate-encodings ``weights-symmetric``; not said, false for an unsigned weight_type
ActivationSymmetric                   annotate-encodings ``symmetric``
reduce_range                          annotate-encodings ``reduce-range``
weight_type                           annotate-encodings ``weights``
activation_type                       annotate-encodings ``activations``
Int32Bias                             annotate-encodings ``bias``: true ``int32`` (s_x·s_w), false the type of the weights
QuantizeBias                          annotate-encodings ``bias``: false ``none``
MinimumRealRange                      annotate-encodings ``min-range``
TensorQuantOverrides                  annotate-encodings ``overrides``; ``convert``: convert-boundaries for its recv_nodes
UsePowerOf2Scale                      annotate-encodings ``scales``: true ``pow2``, false ``any``
MatMulConstBOnly                      annotate-encodings ``constant-b-only``
ForceQuantizeNoInputCheck             true is what is done; false: annotate-encodings ``follow-input``
CalibTensorRangeSymmetric             what symmetric encodings do; refused for asymmetric ones
QDQKeepRemovableActivations           true is what is done; false, with asymmetric activations, is refused
QDQDisableWeightAdjustForInt32Bias    annotate-encodings ``bias-overflow``: true ``float``, false ``widen``
op_types_to_quantize                  annotate-encodings ``ops`` (OpTypesToQuantize; ExtraOpTypesToQuantize adds to them)
nodes_to_quantize                     ``--only``, names taken literally (NodesToQuantize)
nodes_to_exclude                      ``--exclude``, likewise; a name ``^….*…`` is a regular expression, as in Quark
calibrate_method                      ``--method``, with the scales that belong to it
CalibMovingAverage                    the method moving-average, with ``eps=0``
CalibMovingAverageConstant            its option ``constant``
Percentile, CalibPercentile           the option ``percentile`` of the method percentile
WeightCalibrateMethod                 annotate-encodings ``constants``: MinMax ``range``, MinMSE ``minmse``
FoldBatchNorm                         fold-batch-norm in the preset's passes before calibration: true put in, false left out
FoldBatchNormAfterConcat              fold-batch-norm ``concat``
ConvertBNToConv                       batch-norm-to-conv, likewise put in or left out
ConvertReduceMeanToGlobalAvgPool      reduce-mean-to-global-pool
SplitLargeKernelPool                  split-large-pool
ConvertSplitToSlice                   split-to-slice
ConvertClipToRelu                     clip-to-relu
ReplaceClip6Relu                      clip-to-relu ``clip6``
FuseLayerNorm, FuseInstanceNorm       fuse-layer-norm, fuse-instance-norm
FuseL2Norm, FuseGelu                  fuse-l2-norm, fuse-gelu
RemoveQDQConvRelu, RemoveQDQConvClip  fuse-conv-activation ``activations``: Relu, Clip
RemoveQDQConvLeakyRelu                … LeakyRelu
RemoveQDQConvPRelu, RemoveQDQConvGelu … PRelu, Gelu
RemoveQDQInstanceNorm                 fuse-conv-activation ``producers``: InstanceNormalization
SimulateDPU                           the six that follow: false leaves all out, true puts in all but the last
ConvertLeakyReluToDPUVersion          round-leaky-relu behind insert-qdq
ConvertSigmoidToHardSigmoid           sigmoid-to-hard-sigmoid
ConvertHardSigmoidToDPUVersion        scale-hard-sigmoid
ConvertAvgPoolToDPUVersion            scale-average-pool
ConvertReduceMeanToDPUVersion         scale-reduce-mean
ConvertClipToDPUVersion               round-clip-bounds
NPULimitationCheck                    refine-positions: false leaves it out, whatever is said of its steps
MaxLoopNum                            refine-positions ``loops``
AlignConcat, AlignPool, AlignPad      its ``steps`` align-concat, …; with float scales passes of their own, ``scales=any``
AlignSlice                            align-slice, likewise; false gives a Slice a scale of its own too
AdjustShiftCut, AdjustShiftBias       its steps adjust-shift-cut, adjust-shift-bias
AdjustShiftRead, AdjustShiftWrite     its steps adjust-shift-read, adjust-shift-write
AdjustHardSigmoid, AdjustShiftSwish   its steps adjust-hard-sigmoid, adjust-swish
====================================  ==================================================================================

What is not said keeps the preset's choice. Float scales over a preset with powers of two leave out what is for the DPU alone: its
operators, and refine-positions. A pass that is put in has its default options, and the place that it has in ``xint8``. A moving
average goes over the samples in their order, as in onnxruntime with CalibStridedMinMax=1 (without, there it is the mean).
Differences from onnxruntime, on purpose: per_channel means the last axis of a MatMul's weight (there axis 1, along which rank 3
sums); an axis is taken from QDQOpTypePerChannelSupportToAxis without per_channel as well; WeightSymmetric=false holds for
per-axis weights, too; symmetric unsigned tensors have the scale a/127, which never clips (there 2a/255); a bias that layers with
other products share stays float (there it is copied); a ``convert`` widens the encoding there is, which is exact (there the range
is quantized anew), for all activations of its receivers."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from qdq_passes.encode.annotate_encodings import ActivationType, WeightType
from qdq_passes.errors import UnsupportedError, UsageError
from qdq_passes.numerics.override import Override

from qdqtool.calibrate.observer import METHODS
from qdqtool.foreign import option_values as values
from qdqtool.foreign.literals import literal
from qdqtool.foreign.reference_options import KNOWN
from qdqtool.io.files.read import read_text

#: Calibration methods of the references → ours; those that begin with pow2 give powers of two.
_METHODS = {"nonoverflow": "pow2-nonoverflow", "minmse": "pow2-minmse", "movingaverage": "moving-average"}
#: What the enumerations of other methods than powers of two call by the same name.
_FLOAT_METHODS = {**_METHODS, "minmse": "mse"}
#: How a constant gets its encoding, by the method that is said for weights.
_CONSTANTS = {"minmax": "range", "nonoverflow": "range", "minmse": "minmse"}


@dataclass(frozen=True, kw_only=True)
class ExtraOptions:
    """What options of the references ask for, in our words; None and empty where nothing is said.

    Args:
        method: calibration method.
        power_of_two: whether scales are powers of two.
        activations: storage type of activations.
        weights: storage type of weights.
        int32_bias: true: biases have the scale s_x·s_w; false: the type of the weights.
        quantize_bias: false: biases stay float.
        bias_overflow: what gives way where int32 does not reach a bias: it stays float, or the scale of its weight is widened.
        symmetric: activations have zero point 0.
        weights_symmetric: weights have.
        per_channel: weights have a scale per output channel.
        axes: operator type → axis of the scales of its weights.
        reduce_range: weights use one bit less.
        min_range: narrowest range.
        ops: operator types that are quantized.
        more_ops: operator types that are quantized besides.
        float_outputs: operator types whose outputs stay float.
        constant_b_only: no MatMul of two activations is quantized.
        follow_input: operators that only move values follow their input.
        only: selectors of the only nodes.
        exclude: selectors of nodes that stay float.
        stored: how weights are kept.
        dedicated: a pair per reader.
        contrib: pairs are com.microsoft's.
        symmetric_ranges: ranges are made symmetric.
        drop_activations: Relu and Clip before a pair are dropped.
        overrides: what is said of single tensors.
        conversions: (storage type, names of nodes) whose activations are converted to it.
        moving_average: ranges are averaged over the samples.
        averaging: weight of each sample in that.
        percentile: share of the values, in percent, that percentile ranges hold.
        constants: how scales of constants are chosen.
        passes: name of a pass on the float model → whether it runs.
        clip6: Clip(x, 0, 6) becomes a Relu.
        joined_norms: BatchNormalization is folded through a Concat.
        fused: type of an activation → whether no pair stands between a layer and it.
        fused_norm: whether InstanceNormalization is such a layer.
        dpu: whether the operators of the DPU are put in.
        dpu_parts: name of a pass that does a part of it → whether it runs.
        limits: whether positions are refined.
        steps: name of a step of that → whether it runs.
        rounds: how often, at most.
    """

    method: str | None = None
    power_of_two: bool | None = None
    activations: ActivationType | None = None
    weights: WeightType | None = None
    int32_bias: bool | None = None
    quantize_bias: bool | None = None
    bias_overflow: Literal["float", "widen"] | None = None
    symmetric: bool | None = None
    weights_symmetric: bool | None = None
    per_channel: bool | None = None
    axes: Mapping[str, int] = field(default_factory=dict)
    reduce_range: bool | None = None
    min_range: float | None = None
    ops: tuple[str, ...] = ()
    more_ops: tuple[str, ...] = ()
    float_outputs: tuple[str, ...] = ()
    constant_b_only: bool | None = None
    follow_input: bool | None = None
    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    stored: Literal["qdq", "dq"] | None = None
    dedicated: bool | None = None
    contrib: bool | None = None
    symmetric_ranges: bool | None = None
    drop_activations: bool | None = None
    overrides: Mapping[str, Override] = field(default_factory=dict)
    conversions: tuple[tuple[str, tuple[str, ...]], ...] = ()
    moving_average: bool | None = None
    averaging: float | None = None
    percentile: float | None = None
    constants: Literal["range", "minmse"] | None = None
    passes: Mapping[str, bool] = field(default_factory=dict)
    clip6: bool | None = None
    joined_norms: bool | None = None
    fused: Mapping[str, bool] = field(default_factory=dict)
    fused_norm: bool | None = None
    dpu: bool | None = None
    dpu_parts: Mapping[str, bool] = field(default_factory=dict)
    limits: bool | None = None
    steps: Mapping[str, bool] = field(default_factory=dict)
    rounds: int | None = None


Reader = Callable[[str, object], object]


def _negated(name: str, value: object) -> bool:
    return not values.to_bool(name, value)


def _selectors(name: str, value: object) -> tuple[str, ...]:
    """Selectors of nodes by name; Quark's ``^/layer0/.*`` is a regular expression."""
    names = values.to_names(name, value)
    return tuple("re:" + n.replace("&", r"\&") if n.startswith("^") and ".*" in n else literal(n) for n in names)


def _activation_type(name: str, value: object) -> str:
    found = values.to_type(name, value)
    if found.endswith("int4"):
        raise UnsupportedError(f"{name}: activations are not stored as {found}", hint="only weights are")
    return found


def _stored(name: str, value: object) -> str:
    return "qdq" if values.to_bool(name, value) else "dq"


def _method(name: str, value: object) -> str:
    text = f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else str(values.structured(value))
    kind, _, word = text.lower().rpartition(".")
    if word == "layerwisepercentile":
        raise UnsupportedError(
            f"{name}: no method tries percentiles layer by layer", hint="Percentile is one for all tensors"
        )
    method = (_FLOAT_METHODS if kind.endswith("calibrationmethod") else _METHODS).get(word, word)
    if method not in METHODS.names():
        raise UnsupportedError(f"{name}: there is no method {method}", hint=f"there is {', '.join(METHODS.names())}")
    return method


def _constants(name: str, value: object) -> str:
    text = value.name if isinstance(value, Enum) else str(values.structured(value))
    word = text.rpartition(".")[2].lower()
    if word not in _CONSTANTS:
        raise UnsupportedError(
            f"{name}={text} has no equivalent", hint="MinMax takes the range of a weight, MinMSE searches around it"
        )
    return _CONSTANTS[word]


def _bias_overflow(name: str, value: object) -> str:
    return "float" if values.to_bool(name, value) else "widen"


def _rounds(name: str, value: object) -> int:
    rounds = values.to_integer(name, value)
    if rounds < 1:
        raise UsageError(f"{name} is 1 or more, not {rounds}", hint="NPULimitationCheck=false refines nothing")
    return rounds


#: Name in the references → field of `ExtraOptions` (None: only checked; ``FIELD.KEY``: an entry of it) and how its value is read.
OPTIONS: dict[str, tuple[str | None, Reader]] = {
    "OpTypesToExcludeOutputQuantization": ("float_outputs", values.to_names),
    "AddQDQPairToWeight": ("stored", _stored),
    "DedicatedQDQPair": ("dedicated", values.to_bool),
    "UseQDQContribOps": ("contrib", values.to_bool),
    "QDQOpTypePerChannelSupportToAxis": ("axes", values.to_axes),
    "per_channel": ("per_channel", values.to_bool),
    "WeightSymmetric": ("weights_symmetric", values.to_bool),
    "ActivationSymmetric": ("symmetric", values.to_bool),
    "reduce_range": ("reduce_range", values.to_bool),
    "weight_type": ("weights", values.to_type),
    "activation_type": ("activations", _activation_type),
    "Int32Bias": ("int32_bias", values.to_bool),
    "QuantizeBias": ("quantize_bias", values.to_bool),
    "MinimumRealRange": ("min_range", values.to_number),
    "TensorQuantOverrides": ("overrides", values.to_overrides),
    "UsePowerOf2Scale": ("power_of_two", values.to_bool),
    "MatMulConstBOnly": ("constant_b_only", values.to_bool),
    "ForceQuantizeNoInputCheck": ("follow_input", _negated),
    "CalibTensorRangeSymmetric": ("symmetric_ranges", values.to_bool),
    "QDQKeepRemovableActivations": ("drop_activations", _negated),
    "QDQDisableWeightAdjustForInt32Bias": ("bias_overflow", _bias_overflow),
    "op_types_to_quantize": ("ops", values.to_names),
    "OpTypesToQuantize": ("ops", values.to_names),
    "ExtraOpTypesToQuantize": ("more_ops", values.to_names),
    "nodes_to_quantize": ("only", _selectors),
    "NodesToQuantize": ("only", _selectors),
    "nodes_to_exclude": ("exclude", _selectors),
    "calibrate_method": ("method", _method),
    "CalibMovingAverage": ("moving_average", values.to_bool),
    "CalibMovingAverageConstant": ("averaging", values.to_number),
    "Percentile": ("percentile", values.to_number),
    "CalibPercentile": ("percentile", values.to_number),
    "WeightCalibrateMethod": ("constants", _constants),
    "FoldBatchNorm": ("passes.fold-batch-norm", values.to_bool),
    "FoldBatchNormAfterConcat": ("joined_norms", values.to_bool),
    "ConvertBNToConv": ("passes.batch-norm-to-conv", values.to_bool),
    "ConvertReduceMeanToGlobalAvgPool": ("passes.reduce-mean-to-global-pool", values.to_bool),
    "SplitLargeKernelPool": ("passes.split-large-pool", values.to_bool),
    "ConvertSplitToSlice": ("passes.split-to-slice", values.to_bool),
    "ConvertClipToRelu": ("passes.clip-to-relu", values.to_bool),
    "ReplaceClip6Relu": ("clip6", values.to_bool),
    "FuseLayerNorm": ("passes.fuse-layer-norm", values.to_bool),
    "FuseInstanceNorm": ("passes.fuse-instance-norm", values.to_bool),
    "FuseL2Norm": ("passes.fuse-l2-norm", values.to_bool),
    "FuseGelu": ("passes.fuse-gelu", values.to_bool),
    "RemoveQDQConvRelu": ("fused.Relu", values.to_bool),
    "RemoveQDQConvClip": ("fused.Clip", values.to_bool),
    "RemoveQDQConvLeakyRelu": ("fused.LeakyRelu", values.to_bool),
    "RemoveQDQConvPRelu": ("fused.PRelu", values.to_bool),
    "RemoveQDQConvGelu": ("fused.Gelu", values.to_bool),
    "RemoveQDQInstanceNorm": ("fused_norm", values.to_bool),
    "SimulateDPU": ("dpu", values.to_bool),
    "ConvertLeakyReluToDPUVersion": ("dpu_parts.round-leaky-relu", values.to_bool),
    "ConvertSigmoidToHardSigmoid": ("dpu_parts.sigmoid-to-hard-sigmoid", values.to_bool),
    "ConvertHardSigmoidToDPUVersion": ("dpu_parts.scale-hard-sigmoid", values.to_bool),
    "ConvertAvgPoolToDPUVersion": ("dpu_parts.scale-average-pool", values.to_bool),
    "ConvertReduceMeanToDPUVersion": ("dpu_parts.scale-reduce-mean", values.to_bool),
    "ConvertClipToDPUVersion": ("dpu_parts.round-clip-bounds", values.to_bool),
    "NPULimitationCheck": ("limits", values.to_bool),
    "MaxLoopNum": ("rounds", _rounds),
    "AlignConcat": ("steps.align-concat", values.to_bool),
    "AlignPool": ("steps.align-pool", values.to_bool),
    "AlignPad": ("steps.align-pad", values.to_bool),
    "AlignSlice": ("steps.align-slice", values.to_bool),
    "AdjustShiftCut": ("steps.adjust-shift-cut", values.to_bool),
    "AdjustShiftBias": ("steps.adjust-shift-bias", values.to_bool),
    "AdjustShiftRead": ("steps.adjust-shift-read", values.to_bool),
    "AdjustShiftWrite": ("steps.adjust-shift-write", values.to_bool),
    "AdjustHardSigmoid": ("steps.adjust-hard-sigmoid", values.to_bool),
    "AdjustShiftSwish": ("steps.adjust-swish", values.to_bool),
}


def option_named(key: str) -> str:
    """The reference's name of the option that fills ``key``, a field of `ExtraOptions` or ``FIELD.KEY``."""
    return next(name for name, (filled, _) in OPTIONS.items() if filled == key)


def parse_extra_options(given: Mapping[str, object]) -> ExtraOptions:
    """What the options ``given`` (name in the references → value) ask for; None as a value says nothing.

    Raises:
        UsageError: an unknown name (with the nearest ones), or a value that cannot be read.
        UnsupportedError: an option that has no equivalent; the message says why, or which option of ours does it.
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name in KNOWN:
            known = KNOWN[name]
            if values.structured(value) not in known.accepts:
                raise UnsupportedError(f"{name}={value} has no equivalent", hint=known.why)
            continue
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, [*OPTIONS, *KNOWN], n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else f"for example {', '.join(list(OPTIONS)[:4])}"
            raise UsageError(f"there is no extra option {name!r}", hint=hint)
        key, read = OPTIONS[name]
        if values.structured(value) is None:
            continue
        result = read(name, value)
        if key is None:
            continue
        field_name, _, entry = key.partition(".")
        if entry:
            found.setdefault(field_name, {})[entry] = result
            continue
        if found.get(key, result) != result:
            raise UsageError(f"{name} is given twice, and differently", hint="its other spelling says something else")
        found[key] = result
        if key == "overrides":
            found["conversions"] = values.to_conversions(name, value)
    return ExtraOptions(**found)


def read_extra_options(texts: Iterable[str]) -> dict[str, object]:
    """Name → value of texts ``NAME=VALUE``; a value ``@FILE`` is the content of that file. Lists that are given twice unite.

    Raises:
        UsageError: a text without ``=``, or an option given twice that is no list.
        ModelError: a file that cannot be read.
    """
    found: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"extra option {text!r} cannot be read", hint="write NAME=VALUE, as in per_channel=true")
        name, content = name.strip(), read_text(value[1:]) if value.startswith("@") else value
        if name in found and OPTIONS.get(name, (None, None))[1] in (values.to_names, _selectors):
            found[name] = [*values.to_names(name, found[name]), *values.to_names(name, content)]
        elif found.get(name, content) != content:
            raise UsageError(f"extra option {name} is given twice, and differently", hint="give it once")
        else:
            found[name] = content
    return found

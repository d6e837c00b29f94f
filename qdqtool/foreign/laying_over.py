"""Options of the references laid over a preset: the values of its policy, its calibration method, and its passes."""

from __future__ import annotations

import dataclasses

from qdq_passes.encode.annotate_encodings import AnnotateEncodings, BiasType
from qdq_passes.errors import UsageError
from qdq_passes.graph.operators.channels import CHANNEL_OPS
from qdq_passes.graph.uses import SHARING
from qdq_passes.numerics.override import format_overrides

from qdqtool.foreign.contradictions import Asked, refuse
from qdqtool.foreign.extra_options import ExtraOptions
from qdqtool.foreign.switching import has, passes_after, passes_before
from qdqtool.presets.preset import Preset

#: onnxruntime's constant of moving averages.
AVERAGING = 0.01


def lay_over(preset: Preset, extra: ExtraOptions, asked: Asked) -> Preset:
    """``preset`` with the options ``extra``, but for how weights are stored, which `Preset.pipeline_text` is asked for.

    Args:
        preset: what holds where nothing is said.
        extra: options of the references.
        asked: what is asked for by options of ours.

    Raises:
        UsageError: options that contradict each other or the scales of the preset.
        UnsupportedError: a combination that the references do otherwise.
    """
    if extra == ExtraOptions():
        return preset
    if extra.activations is not None and not preset.is_calibrated:
        raise UsageError(f"{preset.name} leaves activations float", hint="drop activation_type, or take another preset")
    power_of_two = _is_power_of_two(preset, extra)
    policy, method = preset.annotate, _method(preset, extra, power_of_two)
    laid = dataclasses.replace(
        policy,
        activations=extra.activations or policy.activations,
        weights=extra.weights or policy.weights,
        bias=_bias(policy, extra),
        bias_overflow=extra.bias_overflow or policy.bias_overflow,
        scales="pow2" if power_of_two else "any",
        rounding=policy.rounding if power_of_two else "up",
        constants=(extra.constants or policy.constants) if power_of_two or policy.block_size else "range",
        symmetric=_or(extra.symmetric, policy.symmetric),
        weights_symmetric=_weights_symmetric(policy, extra),
        per_axis=_per_axis(policy, extra),
        reduce_range=_or(extra.reduce_range, policy.reduce_range),
        min_range=policy.min_range if extra.min_range is None else extra.min_range,
        ops=tuple(dict.fromkeys([*(extra.ops or policy.ops), *extra.more_ops])),
        sharing=_sharing(policy, extra, power_of_two),
        outputs_stay_float=extra.float_outputs or policy.outputs_stay_float,
        constant_b_only=_or(extra.constant_b_only, policy.constant_b_only),
        follow_input=_or(extra.follow_input, policy.follow_input),
        overrides=format_overrides(extra.overrides) or policy.overrides,
    )
    insert = dataclasses.replace(
        preset.insert,
        dedicated=_or(extra.dedicated, preset.insert.dedicated),
        domain=preset.insert.domain if extra.contrib is None else "com.microsoft" if extra.contrib else "onnx",
    )
    laid = dataclasses.replace(laid, domain=insert.domain)
    refuse(preset, extra, laid, asked, method=asked.method or method)
    after = passes_after(preset, extra, power_of_two=power_of_two)
    if has(after, "refine-positions") and not has(preset.after, "refine-positions"):
        insert = dataclasses.replace(insert, weights="qdq")  # what it moves is rounded once, from the float data
    return dataclasses.replace(
        preset,
        method=method,
        method_options=_method_options(preset, extra),
        before=passes_before(preset, extra),
        annotate=laid,
        insert=insert,
        after=after,
        constants_by_method=preset.constants_by_method and extra.constants is None,
    )


def _sharing(policy: AnnotateEncodings, extra: ExtraOptions, power_of_two: bool) -> tuple[str, ...]:
    """What a preset of powers of two leaves to a shift, float scales cannot leave."""
    sharing = policy.sharing if power_of_two or policy.scales == "any" else tuple(sorted(SHARING))
    return tuple(op for op in sharing if op != "Slice" or extra.steps.get("align-slice") is not False)


def _or(said: bool | None, otherwise: bool) -> bool:
    return otherwise if said is None else said


def _is_power_of_two(preset: Preset, extra: ExtraOptions) -> bool:
    if extra.power_of_two is not None:
        return extra.power_of_two
    return preset.annotate.scales == "pow2" if extra.method is None else extra.method.startswith("pow2")


def _method(preset: Preset, extra: ExtraOptions, power_of_two: bool) -> str:
    """Ranges that a power-of-two method rounded up are too wide for float scales."""
    if extra.moving_average:
        return "moving-average"
    is_unfit = preset.method.startswith("pow2") and not power_of_two
    was_averaged = preset.method == "moving-average" and extra.moving_average is False
    return extra.method or ("minmax" if is_unfit or was_averaged else preset.method)


def _method_options(preset: Preset, extra: ExtraOptions) -> dict[str, dict[str, str | int | float | bool]]:
    """Options of the methods that options of the references set; a moving average has no narrowest range there."""
    found = {method: dict(options) for method, options in preset.method_options.items()}
    if extra.moving_average:
        found.setdefault("moving-average", {}).update(constant=AVERAGING, eps=0.0)
    if extra.averaging is not None:
        found.setdefault("moving-average", {})["constant"] = extra.averaging
    if extra.percentile is not None:
        found.setdefault("percentile", {})["percentile"] = extra.percentile
    return found


def _bias(policy: AnnotateEncodings, extra: ExtraOptions) -> BiasType:
    if extra.quantize_bias is False:
        return "none"
    if extra.int32_bias is None:
        return "int32" if extra.quantize_bias and policy.bias == "none" else policy.bias
    own: BiasType = "int16" if (extra.weights or policy.weights).endswith("16") else "int8"
    return "int32" if extra.int32_bias else own


def _weights_symmetric(policy: AnnotateEncodings, extra: ExtraOptions) -> bool:
    """Where nothing is said, an unsigned type that is asked for brings a zero point, but none per channel, as in onnxruntime."""
    if extra.weights_symmetric is not None or extra.weights is None:
        return _or(extra.weights_symmetric, policy.weights_symmetric)
    return not extra.weights.startswith("uint") or bool(_per_axis(policy, extra))


def _per_axis(policy: AnnotateEncodings, extra: ExtraOptions) -> tuple[str, ...]:
    if extra.per_channel is False:
        return ()
    given = tuple(f"{op_type}:{axis}" for op_type, axis in extra.axes.items())
    if extra.per_channel:
        return (*(op_type for op_type in CHANNEL_OPS if op_type not in extra.axes), *given)
    return given or policy.per_axis

"""Options of other tools laid over a preset: the values of its policy, its calibration method, and its passes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from qdq_passes.core.base import Pass
from qdq_passes.encode.annotate_encodings import AnnotateEncodings, BiasType
from qdq_passes.errors import UsageError
from qdq_passes.graph.operators.channels import CHANNEL_OPS
from qdq_passes.graph.uses import SHARING
from qdq_passes.legalize.clip_to_relu import ClipToRelu
from qdq_passes.numerics.override import Override, format_overrides
from qdq_passes.numerics.pow2 import position_of

from qdqtool.foreign.contradictions import refuse
from qdqtool.foreign.options import OPTIONS, Said, option_named, under
from qdqtool.foreign.switching import has, passes_after, passes_before
from qdqtool.presets.preset import Preset

#: Keys of the policy; what they say is what it then says, unless `lay_over` says otherwise.
_POLICY, _INSERT = "annotate-encodings", "insert-qdq"


def lay_over(preset: Preset, said: Said, asked: Mapping[str, object]) -> Preset:
    """``preset`` with the options ``said``, but for how weights are stored, which `Preset.pipeline_text` is asked for.

    Args:
        preset: what holds where nothing is said.
        said: options of other tools.
        asked: options of ours, as on a command line: ``--method`` → its value, or true; None is not asked for.

    Raises:
        UsageError: options that contradict each other or the scales of the preset.
        UnsupportedError: a combination that the other tools do otherwise.
    """
    if not said:
        return preset
    activations = f"{_POLICY}.activations"
    if activations in said and not preset.is_calibrated:
        hint = f"drop {option_named(activations)}, or take another preset"
        raise UsageError(f"{preset.name} leaves activations float", hint=hint)
    power_of_two = _is_power_of_two(preset, said)
    policy, method, before = preset.annotate, _method(preset, said, power_of_two), passes_before(preset, said)
    insert = dataclasses.replace(preset.insert, **{**_options(said, _INSERT), "weights": preset.insert.weights})
    constants = said.get(f"{_POLICY}.constants")
    special: dict[str, Any] = {
        "bias": _bias(policy, said),
        "scales": "pow2" if power_of_two else "any",
        "rounding": policy.rounding if power_of_two else "up",
        "constants": (constants or policy.constants) if power_of_two or policy.block_size else "range",
        "weights_symmetric": _weights_symmetric(policy, said),
        "per_axis": _per_axis(policy, said),
        "ops": tuple(dict.fromkeys([*said.get("ops", policy.ops), *said.get("more-ops", ())])),
        "sharing": _sharing(policy, said, power_of_two),
        "overrides": format_overrides(said.get("overrides", {})) or policy.overrides,
        "domain": insert.domain,
    }
    if f"{_POLICY}.min-range" in said:
        special["widening"] = 0.0  # onnxruntime widens any range to it
    laid = dataclasses.replace(policy, **{**_options(said, _POLICY), **special})
    refuse(_facts(preset, said, laid, before) | {"result.method": asked.get("--method") or method} | _given(asked))
    after = passes_after(preset, said, power_of_two=power_of_two)
    if has(after, "refine-positions") and not has(preset.after, "refine-positions"):
        insert = dataclasses.replace(insert, weights="qdq")  # what it moves is rounded once, from the float data
    return dataclasses.replace(
        preset,
        method=method,
        method_options=_method_options(preset, said),
        before=before,
        annotate=laid,
        insert=insert,
        after=after,
        constants_by_method=preset.constants_by_method and constants is None,
    )


def weights_kept(preset: Preset, laid: Preset, said: Said) -> bool:
    """Whether weights keep their pairs although ``said`` asks for stored ones: a preset of powers of two with pairs on weights is
    the Vitis quantizer for the DPU, which takes AddQDQPairToWeight for true then, and warns.

    Args:
        preset: what holds where nothing is said.
        laid: ``preset`` with ``said`` laid over it.
        said: options of other tools.
    """
    asked = said.get(f"{_INSERT}.weights") == "dq"
    return asked and laid.annotate.scales == "pow2" and preset.insert.weights == "qdq"


def _options(said: Said, name: str) -> dict[str, Any]:
    """What is said of the pass ``name``, as arguments of its class."""
    return {option.replace("-", "_"): value for option, value in under(said, name).items()}


def _given(asked: Mapping[str, object]) -> dict[str, object]:
    return {option: value for option, value in asked.items() if value is not None}


def _facts(preset: Preset, said: Said, policy: AnnotateEncodings, before: Iterable[Pass]) -> dict[str, object]:
    """What contradictions are looked for in: what is said, and what it amounts to."""
    overrides: Iterable[Override] = said.get("overrides", {}).values()
    had = any(isinstance(p, ClipToRelu) and p.clip6 for p in preset.before)
    refines = preset.annotate.scales == "pow2" and has(preset.after, "refine-positions")
    return {
        **said,
        "result.scales": policy.scales,
        "result.symmetric": policy.symmetric,
        "result.clip6": said.get("clip-to-relu.clip6", had),
        "override.axis": any(o.axis is not None for o in overrides),
        "override.asymmetric": any(o.symmetric is False for o in overrides),
        "override.scale": any(position_of(scale) is None for o in overrides for scale in o.scale),
        "override.zero-point": any(any(o.zero_point) for o in overrides),
        **{f"pass.{p.name()}": True for p in before},
        "pass.refine-positions": refines,
    }


def _sharing(policy: AnnotateEncodings, said: Said, power_of_two: bool) -> tuple[str, ...]:
    """What a preset of powers of two leaves to a shift, float scales cannot leave."""
    sharing = policy.sharing if power_of_two or policy.scales == "any" else tuple(sorted(SHARING))
    return tuple(op for op in sharing if op != "Slice" or said.get("steps.align-slice") is not False)


def _is_power_of_two(preset: Preset, said: Said) -> bool:
    by_method = str(said["method"]).startswith("pow2") if "method" in said else preset.annotate.scales == "pow2"
    return by_method if f"{_POLICY}.scales" not in said else said[f"{_POLICY}.scales"] == "pow2"


def _method(preset: Preset, said: Said, power_of_two: bool) -> str:
    """Ranges that a power-of-two method rounded up are too wide for float scales."""
    averages: bool | None = said.get("moving-average")
    if averages:
        return "moving-average"
    is_unfit = preset.method.startswith("pow2") and not power_of_two
    was_averaged = preset.method == "moving-average" and averages is False
    return str(said.get("method", "minmax" if is_unfit or was_averaged else preset.method))


def _method_options(preset: Preset, said: Said) -> dict[str, dict[str, str | int | float | bool]]:
    """Options of the methods that are said; a moving average has no narrowest range there."""
    found = {method: dict(options) for method, options in preset.method_options.items()}
    if said.get("moving-average"):
        constant = OPTIONS["CalibMovingAverageConstant"].default
        found.setdefault("moving-average", {}).update(constant=float(str(constant)), eps=0.0)
    for method in ("moving-average", "percentile"):
        if options := under(said, method):
            found.setdefault(method, {}).update(options)
    return found


def _bias(policy: AnnotateEncodings, said: Said) -> BiasType:
    if said.get("quantize-bias") is False:
        return "none"
    if "int32-bias" not in said:
        return "int32" if said.get("quantize-bias") and policy.bias == "none" else policy.bias
    own: BiasType = "int16" if said.get(f"{_POLICY}.weights", policy.weights).endswith("16") else "int8"
    return "int32" if said["int32-bias"] else own


def _weights_symmetric(policy: AnnotateEncodings, said: Said) -> bool:
    """Where nothing is said, an unsigned type that is asked for brings a zero point, but none per channel, as in onnxruntime."""
    weights = said.get(f"{_POLICY}.weights")
    unsaid = policy.weights_symmetric
    if weights is not None:
        unsaid = not weights.startswith("uint") or bool(_per_axis(policy, said))
    return bool(said.get(f"{_POLICY}.weights-symmetric", unsaid))


def _per_axis(policy: AnnotateEncodings, said: Said) -> tuple[str, ...]:
    if said.get("per-channel") is False:
        return ()
    axes: Mapping[str, int] = said.get("axes", {})
    given = tuple(f"{op_type}:{axis}" for op_type, axis in axes.items())
    if said.get("per-channel"):
        return (*(op_type for op_type in CHANNEL_OPS if op_type not in axes), *given)
    return given or policy.per_axis

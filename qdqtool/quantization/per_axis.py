"""The two switches of per-axis weights: ``--per-axis-conv`` and ``--per-axis-linear``."""

from __future__ import annotations

from dataclasses import replace

from qdq_passes.errors import UsageError

from qdqtool.presets.preset import Preset
from qdqtool.quantization.options import PlanOptions

#: Operators whose weights a switch is about: sums over a window, and over a whole axis.
CONVOLUTIONS = ("Conv", "ConvTranspose")
LINEAR = ("Gemm", "MatMul")


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

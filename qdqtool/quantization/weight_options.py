"""Options about stored weights: ``--per-axis-conv``, ``--per-axis-linear``, ``--embeddings``."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

from qdq_passes.errors import UsageError

from qdqtool.presets.preset import Preset
from qdqtool.quantization.options import PlanOptions

#: Takes rows out of a table.
_LOOKUP = "Gather"
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


def with_embeddings(preset: Preset, options: PlanOptions) -> Preset:
    """``preset`` with the tables that Gather looks rows up in quantized too, where ``options`` asks for it.

    In the blocks of the preset, which lie along a row, or else with a scale per row.
    """
    policy = preset.annotate
    if not options.embeddings or _LOOKUP in policy.ops:
        return preset
    is_said = any(entry.partition(":")[0] == _LOOKUP for entry in policy.per_axis)
    annotate = dataclasses.replace(
        policy,
        ops=(*policy.ops, _LOOKUP),
        per_axis=policy.per_axis if is_said else (*policy.per_axis, f"{_LOOKUP}:0"),
    )
    return dataclasses.replace(preset, annotate=annotate)

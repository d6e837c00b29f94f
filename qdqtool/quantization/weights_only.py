"""Options that are about stored weights."""

from __future__ import annotations

import dataclasses

from qdqtool.presets.preset import Preset
from qdqtool.quantization.options import PlanOptions

#: Takes rows out of a table.
_LOOKUP = "Gather"


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

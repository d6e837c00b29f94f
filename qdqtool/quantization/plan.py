"""A quantization as text: the pipeline that a preset and the user's options amount to."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from qdq_passes.clean.inline_functions import InlineFunctions
from qdq_passes.core.pipeline import Pipeline, parse_pipeline
from qdq_passes.core.select import ALL, NONE, Selector
from qdq_passes.qdq.annotate_encodings import AnnotateEncodings

from qdqtool.presets.preset import Preset

#: Named input that holds the ranges of the activations.
RANGES = "ranges"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What will run, before anything runs.

    Args:
        preset: where defaults come from.
        method: calibration method.
        prepare: passes on the float model, before calibration.
        materialise: passes that choose encodings from ``@ranges`` and insert pairs.
    """

    preset: Preset
    method: str
    prepare: Pipeline
    materialise: Pipeline

    @property
    def pipeline(self) -> Pipeline:
        """The whole job; ``opt -p @file --ranges R`` replays its text to the same bytes."""
        return self.prepare + self.materialise

    @property
    def annotate(self) -> AnnotateEncodings:
        """The pass that chooses the encodings, and says what is quantized."""
        return next(p for p in self.materialise.passes if isinstance(p, AnnotateEncodings))

    def without(self, texts: Collection[str]) -> Plan:
        """This plan with the selectors ``texts`` taken out of what is excluded and of what may be quantized."""
        policy = self.annotate
        exclude, only = (tuple(t for t in s.texts if t not in texts) for s in (policy.exclude, policy.only))
        nothing_left = NONE if policy.only.texts else ALL
        annotate = dataclasses.replace(
            policy, exclude=Selector(exclude) if exclude else NONE, only=Selector(only) if only else nothing_left
        )
        passes = tuple(annotate if p is policy else p for p in self.materialise.passes)
        return dataclasses.replace(self, materialise=Pipeline(passes))


def plan(
    preset: Preset,
    *,
    method: str | None = None,
    exclude: tuple[str, ...] = (),
    only: tuple[str, ...] = (),
    isolate: bool = False,
    weights: Literal["qdq", "dq"] | None = None,
    ops: tuple[str, ...] = (),
    fuse_layers: bool = True,
    keep_functions: bool = False,
) -> Plan:
    """The plan of ``preset`` with the user's options laid over it.

    Args:
        preset: the preset.
        method: calibration method instead of the preset's.
        exclude: selectors of nodes that stay float, beside the preset's.
        only: selectors of the only nodes to quantize.
        isolate: values of excluded nodes stay float altogether.
        weights: ``qdq`` or ``dq`` instead of the preset's.
        ops: operator types instead of the preset's (a target's list).
        fuse_layers: false leaves out every pass of the fuse family.
        keep_functions: local functions are not inlined.

    Raises:
        UsageError: an option does not fit.
    """
    before, after = preset.pipeline_text(
        ranges_input=RANGES,
        exclude=exclude,
        only=only,
        isolate=isolate,
        weights=weights,
        fuse_layers=fuse_layers,
    )
    prepare = parse_pipeline(before) if before else Pipeline()
    if keep_functions:
        prepare = Pipeline(tuple(p for p in prepare.passes if not isinstance(p, InlineFunctions)))
    materialise = parse_pipeline(after)
    if ops:
        materialise = Pipeline(
            tuple(
                dataclasses.replace(p, ops=ops) if isinstance(p, AnnotateEncodings) else p for p in materialise.passes
            )
        )
    return Plan(preset=preset, method=method or preset.method, prepare=prepare, materialise=materialise)

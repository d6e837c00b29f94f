"""What stays float as its scale leaves it no level: heads behind a Concat of unlike branches, divisions by small numbers."""

from __future__ import annotations

from collections.abc import Sequence

from qdq_passes.core.base import Named, Pass
from qdq_passes.encode.annotate_encodings import AnnotateEncodings
from qdq_passes.encode.isolate_concats import IsolateConcats
from qdq_passes.encode.isolate_divisors import IsolateDivisors
from qdq_passes.pipeline.pipeline import PassReport, Pipeline
from qdq_passes.refine.refine_positions import RefinePositions

from qdqtool.io.files.progress import Warn, pass_on
from qdqtool.quantization.reports import grouped

#: The passes that leave such float, each by the operators that it is about.
ISOLATING = ((IsolateConcats, {"Concat"}), (IsolateDivisors, {"Div", "Pow", "Reciprocal"}))
STEPS = tuple(isolating for isolating, _ in ISOLATING)


def with_float_heads(materialise: Pipeline, ranges: str) -> Pipeline:
    """``materialise``, which is for a target, with `isolate-concats` and `isolate-divisors` before its `annotate-encodings`.

    Not where activations stay float, nor where positions are to be those of the reference.

    Args:
        materialise: the passes behind calibration.
        ranges: the named input that holds the ranges.
    """
    if any(isinstance(step, RefinePositions) and step.reference for step in materialise.passes):
        return materialise
    found: list[Pass] = []
    for step in materialise.passes:
        if isinstance(step, AnnotateEncodings) and step.encodings is not None:
            found += (
                isolating(
                    ranges=Named(ranges), dtype=step.activations, symmetric=step.symmetric, scales=step.scales,
                    exclude=step.exclude, only=step.only,
                )
                for isolating, ops in ISOLATING
                if not ops.isdisjoint(step.ops)
            )  # fmt: skip
        found.append(step)
    return Pipeline(tuple(found))


def float_heads(materialise: Pipeline, reports: Sequence[PassReport], warn: Warn | None) -> list[tuple[str, str]]:
    """(node, reason) of what these passes left float, by the ``reports`` of ``materialise``; ``warn`` is told."""
    ran = zip(materialise.passes, reports, strict=True)
    changes = [c for step, done in ran if isinstance(step, STEPS) for c in done.changes]
    found = [(c.where, c.because) for c in changes if not c.is_skip]
    pass_on(grouped(found), warn)
    return found

"""Quantize a model in memory by a plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from qdq_passes.analysis.demands import demands_of
from qdq_passes.analysis.qdq_pairs import qdq_pairs
from qdq_passes.analysis.uses import has_body, main_nodes
from qdq_passes.core.annotate import FUSED
from qdq_passes.core.base import Change
from qdq_passes.core.hooks import VerifyEach
from qdq_passes.core.pipeline import Hook, PassReport
from qdq_passes.core.select import select_nodes
from qdq_passes.errors import UsageError
from qdq_passes.qdq.annotate_encodings import AnnotateEncodings

from qdqtool.calibrate.collect import collect
from qdqtool.calibrate.ranges import Ranges
from qdqtool.quantization.plan import RANGES, Plan

#: Told (samples done, samples in all or None).
Progress = Callable[[int, int | None], None]


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """What quantizing did.

    Args:
        model: the quantized model (the one given, edited in place).
        plan: what ran.
        ranges: observed ranges of the activations.
        quantized_nodes: number of nodes whose values were given encodings.
        excluded: (node name, reason) of the nodes of the main graph that demanded nothing though their type is quantized, or
            that hold a body.
        kept: values that an excluded node touches and that got a pair for another node, with the reason.
        pairs: number of QDQ pairs in the result, stored integers included.
        passes: report of each pass.
        seconds: wall time, calibration included.
    """

    model: ir.Model
    plan: Plan
    ranges: Ranges
    quantized_nodes: int
    excluded: tuple[tuple[str, str], ...]
    kept: tuple[tuple[str, str], ...]
    pairs: int
    passes: tuple[PassReport, ...]
    seconds: float

    @property
    def changes(self) -> list[Change]:
        """Everything the passes did and declined."""
        return [change for p in self.passes for change in p.changes]

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; the keys of the command's contract."""
        return {
            "preset": self.plan.preset.name,
            "method": self.ranges.method,
            "samples": self.ranges.samples,
            "quantized_nodes": self.quantized_nodes,
            "excluded_nodes": [name for name, _ in self.excluded],
            "excluded": [{"node": name, "reason": reason} for name, reason in self.excluded],
            "kept": [{"tensor": name, "reason": reason} for name, reason in self.kept],
            "pairs": self.pairs,
            "pipeline": str(self.plan.pipeline),
            "ranges_sha256": self.ranges.sha256,
            "seconds": round(self.seconds, 3),
        }


def quantize_model(
    model: ir.Model,
    plan: Plan,
    *,
    feeds: Iterable[Mapping[str, Any]] | None = None,
    ranges: Ranges | None = None,
    hooks: Iterable[Hook] = (),
    progress: Progress | None = None,
) -> Quantization:
    """Quantize ``model`` in place.

    Args:
        model: the float model.
        plan: from `qdqtool.quantization.plan.plan`.
        feeds: calibration samples; not needed with ``ranges``.
        ranges: ranges found before.
        hooks: pipeline hooks; verification after each pass is always on.
        progress: called after each calibration sample.

    Raises:
        UsageError: neither feeds nor ranges; a selector that matches nothing; a tensor without a range.
    """
    start = time.perf_counter()
    hooks = (VerifyEach(), *hooks)
    prepared = plan.prepare.run(model, hooks=hooks)
    annotate = next(p for p in plan.materialise.passes if isinstance(p, AnnotateEncodings))
    excluded_by_user = select_nodes(model, annotate.exclude)
    wanted = select_nodes(model, annotate.only) - excluded_by_user
    demands = demands_of(model, set(annotate.ops), wanted)
    if ranges is None:
        if feeds is None:
            raise UsageError("no data to calibrate on", hint="give --data, or --ranges from `qdqtool calibrate`")
        names = [v.name for v in demands.nodes if v.name and demands.roles[v] == "activation" and FUSED.get(v) is None]
        if not names:
            raise UsageError(
                "nothing to quantize", hint="no operator of the preset's list is left; look at --exclude and --only"
            )
        ranges = collect(model, feeds, plan.method, tensors=names, progress=progress)
    quantized = {name for _, names_ in demands.items() for name in names_}
    excluded = [
        (node.name or node.op_type, reason)
        for node in main_nodes(model)
        if (reason := _why_excluded(node, excluded_by_user, wanted, set(annotate.ops)))
    ]
    materialised = plan.materialise.run(model, inputs={RANGES: ranges.tensors}, hooks=hooks)
    passes = (*prepared.passes, *materialised.passes)
    kept = [(c.where, c.because) for p in passes for c in p.changes if ", kept for " in c.because]
    return Quantization(
        model=model,
        plan=plan,
        ranges=ranges,
        quantized_nodes=len(quantized),
        excluded=tuple(excluded),
        kept=tuple(kept),
        pairs=len(qdq_pairs(model)),
        passes=passes,
        seconds=time.perf_counter() - start,
    )


def _why_excluded(node: ir.Node, excluded: set[ir.Node], wanted: set[ir.Node], ops: set[str]) -> str | None:
    if node in excluded:
        return "excluded"
    if has_body(node):
        return "values inside its body stay float"
    if node not in wanted and node.op_type in ops:
        return "not selected by --only"
    return None

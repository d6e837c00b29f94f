"""One encoding a tensor in all graphs of one model, whatever else differs between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir
from qdq_passes.decoder.bound_attention_mask import BoundAttentionMask
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.pipeline.pipeline import Pipeline
from qdq_passes.qdq.look.pairs import Kind, qdq_pairs

from qdqtool.calibrate.observer import Range
from qdqtool.quantization.plan import Plan


def with_one_mask(
    plans: Mapping[str, Plan], prepared: Mapping[str, ir.Model], ranges: Mapping[str, Range]
) -> dict[str, Plan]:
    """``plans``, masks hidden by the lowest bound that any of the graphs asks for: parts of a graph read the same mask.

    Args:
        plans: by graph.
        prepared: the prepared graphs.
        ranges: what they share.
    """
    bounds = {name: _bound(plan, prepared[name], ranges) for name, plan in plans.items()}
    lowest = min(bounds.values(), default=0.0)
    return {name: _hiding(plan, lowest) if bounds[name] not in (0.0, lowest) else plan for name, plan in plans.items()}


def _bound(plan: Plan, model: ir.Model, ranges: Mapping[str, Range]) -> float:
    steps = [replace(step, ranges=ranges) for step in plan.materialise.passes if isinstance(step, BoundAttentionMask)]
    return min([step.bound(model) for step in steps], default=0.0)


def _hiding(plan: Plan, hidden: float) -> Plan:
    passes = (replace(p, hidden=hidden) if isinstance(p, BoundAttentionMask) else p for p in plan.materialise.passes)
    return replace(plan, materialise=Pipeline(tuple(passes)))


def disagreements(models: Mapping[str, ir.Model]) -> dict[str, dict[str, dict[str, object]]]:
    """Of each graph that gives a tensor another encoding than an earlier one: tensor → the earlier encoding, as an override.

    Args:
        models: the quantized graphs, in order.
    """
    known: dict[tuple[str, Kind], Encoding | None] = {}
    found: dict[str, dict[str, dict[str, object]]] = {}
    for name, model in models.items():
        for pair in qdq_pairs(model):
            first = known.setdefault((pair.tensor, pair.kind), pair.encoding)
            if first is not None and first != pair.encoding:
                found.setdefault(name, {})[pair.tensor] = _said(first)
    return found


def _said(encoding: Encoding) -> dict[str, object]:
    """``encoding`` as an override that leaves nothing to choose."""
    said: dict[str, object] = {"dtype": encoding.dtype.name.lower(), "scale": list(encoding.scale)}
    said["zero_point"] = [int(z) for z in encoding.zero_point]
    return {**said, **({} if encoding.axis is None else {"axis": encoding.axis})}

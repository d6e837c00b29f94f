"""Which precisions a target takes of which nodes: judged on the model with everything raised, by the rules of `analyze`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qdq_passes.errors import QdqError
from qdq_passes.graph.annotate import ORIGIN
from qdq_passes.npu.units.units import units_of
from qdq_passes.npu.units.verdict import Verdict

from qdqtool.search.node_groups import Mover
from qdqtool.search.variants import Bench, Point
from qdqtool.targets.target import Target


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """What each mover may be raised to.

    Args:
        precisions: name of the mover → precisions that it may have, in the order they were asked for.
        refusals: (name of the mover, precision, why not).
    """

    precisions: Mapping[str, tuple[str, ...]]
    refusals: tuple[tuple[str, str, str], ...] = ()

    def takes(self, mover: Mover, precision: str) -> bool:
        """Whether ``mover`` may have ``precision``."""
        return precision in self.precisions[mover.name]


def allowed_precisions(
    bench: Bench, found: Sequence[Mover], precisions: Sequence[str], target: Target | None
) -> Allowed:
    """What ``target`` takes of ``found``; all of ``precisions`` without one.

    16 bit are taken where the operator is then computed on the target; floats also where the target leaves them to the CPU and
    does not refuse the whole model for that.

    Args:
        bench: what variants are made of.
        found: the movers.
        precisions: what is asked for.
        target: the target.
    """
    if target is None:
        return Allowed(precisions={mover.name: tuple(precisions) for mover in found})
    allowed: dict[str, list[str]] = {mover.name: [] for mover in found}
    refusals = []
    for precision in precisions:
        verdicts = _verdicts(bench, found, precision, target)
        for mover in found:
            reason = verdicts if isinstance(verdicts, str) else _why_not(mover, verdicts, precision, target)
            if reason:
                refusals.append((mover.name, precision, reason))
            else:
                allowed[mover.name].append(precision)
    return Allowed(precisions={name: tuple(own) for name, own in allowed.items()}, refusals=tuple(refusals))


def _verdicts(bench: Bench, found: Sequence[Mover], precision: str, target: Target) -> dict[str, Verdict] | str:
    """Verdict by the name of the node, with everything in ``precision``; why that cannot be made, in words."""
    try:
        model = bench.build(Point.of({node: precision for mover in found for node in mover.nodes}))
    except QdqError as error:
        return str(error)
    verdicts: dict[str, Verdict] = {}
    for unit in units_of(model):
        verdict = target.judge(unit)
        for node in unit.nodes:
            origin = ORIGIN.get(node)
            for name in (node.name or "", *(origin.nodes if origin is not None else ())):
                verdicts.setdefault(name, verdict)
    return verdicts


def _why_not(mover: Mover, verdicts: Mapping[str, Verdict], precision: str, target: Target) -> str:
    """Why ``target`` does not take ``mover`` like that; empty where it does, or says nothing."""
    for name in mover.nodes:
        verdict = verdicts.get(name)
        if verdict is None or verdict.is_npu:
            continue
        to_cpu = verdict.kind == "fallback" and precision == "float" and target.policy != "whole-model"
        if not to_cpu:
            return verdict.reason or f"{target.name}: {verdict.kind} ({verdict.rule})"
    return ""

"""Which precisions a target takes of which nodes: judged on the model with everything raised, by the rules of `analyze`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import QdqError
from qdq_passes.graph.annotate import ORIGIN
from qdq_passes.npu.units.units import units_of
from qdq_passes.npu.units.verdict import Verdict

from qdqtool.search.node_groups import NodeGroup
from qdqtool.search.variants import Baseline, Point
from qdqtool.targets.target import Target


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """What each group may be raised to.

    Args:
        precisions: name of the group → precisions that it may have, in the order they were asked for.
        refusals: (name of the group, precision, why not).
    """

    precisions: Mapping[str, tuple[str, ...]]
    refusals: tuple[tuple[str, str, str], ...] = ()

    def takes(self, group: NodeGroup, precision: str) -> bool:
        """Whether ``group`` may have ``precision``."""
        return precision in self.precisions[group.name]


def allowed_precisions(
    baseline: Baseline, found: Sequence[NodeGroup], precisions: Sequence[str], target: Target | None
) -> Allowed:
    """What ``target`` takes of ``found``; all of ``precisions`` without one.

    16 bit are taken where the operator is then computed on the target; floats also where the target leaves them to the CPU and
    does not refuse the whole model for that.

    Args:
        baseline: what variants are made of.
        found: the groups.
        precisions: what is asked for.
        target: the target.
    """
    if target is None:
        return Allowed(precisions={group.name: tuple(precisions) for group in found})
    allowed: dict[str, list[str]] = {group.name: [] for group in found}
    refusals = []
    for precision in precisions:
        verdicts = _verdicts(baseline, found, precision, target)
        for group in found:
            reason = verdicts if isinstance(verdicts, str) else _why_not(group, verdicts, precision, target)
            if reason:
                refusals.append((group.name, precision, reason))
            else:
                allowed[group.name].append(precision)
    return Allowed(precisions={name: tuple(own) for name, own in allowed.items()}, refusals=tuple(refusals))


def _verdicts(
    baseline: Baseline, found: Sequence[NodeGroup], precision: str, target: Target
) -> dict[str, Verdict] | str:
    """Verdict by the name of the node, with everything in ``precision``; why that cannot be made, in words."""
    try:
        model = baseline.build(Point.of({node: precision for group in found for node in group.nodes}))
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


def _why_not(group: NodeGroup, verdicts: Mapping[str, Verdict], precision: str, target: Target) -> str:
    """Why ``target`` does not take ``group`` like that; empty where it does, or says nothing."""
    for name in group.nodes:
        verdict = verdicts.get(name)
        if verdict is None or verdict.is_npu:
            continue
        to_cpu = verdict.kind == "fallback" and precision == "float" and target.policy != "whole-model"
        if not to_cpu:
            return verdict.reason or f"{target.name}: {verdict.kind} ({verdict.rule})"
    return ""

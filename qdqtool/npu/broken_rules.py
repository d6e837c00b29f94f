"""Every rule of a target that a model does not keep, whatever decides on its nodes in the end.

Where one refused node refuses the model, the rule that decides hides the others: what is mended by one rule fails by the next."""

from __future__ import annotations

from collections.abc import Sequence

from qdq_passes.graph.uses import op_type_of
from qdq_passes.npu.units.units import Unit
from qdq_passes.npu.units.verdict import VERDICT_KINDS, Verdict

from qdqtool.npu.figures import counts
from qdqtool.npu.report import BrokenRule, group_of
from qdqtool.targets.target import Target


def broken_rules(units: Sequence[Unit], target: Target) -> tuple[BrokenRule, ...]:
    """The rules of ``target`` that ``units`` do not keep, those that look at an operator alone once for each operator: the worst
    verdict first, of each the most frequent."""
    groups: dict[tuple[str, ...], list[tuple[Unit, Verdict]]] = {}
    for unit in units:
        for verdict in target.broken(unit) if counts(unit) else ():
            groups.setdefault((verdict.kind, *group_of(op_type_of(unit.core), verdict.rule)), []).append(
                (unit, verdict)
            )
    found = [_rule([unit for unit, _ in group], group[0][1]) for group in groups.values()]
    kinds: tuple[str, ...] = VERDICT_KINDS
    return tuple(sorted(found, key=lambda rule: (-kinds.index(rule.verdict), -len(rule.nodes), rule.rule)))


def _rule(units: Sequence[Unit], first: Verdict) -> BrokenRule:
    return BrokenRule(
        rule=first.rule,
        verdict=first.kind,
        nodes=tuple(unit.core.name or "" for unit in units),
        ops=tuple(dict.fromkeys(op_type_of(unit.core) for unit in units)),
        reason=first.reason,
        suggestion=first.suggestion,
    )

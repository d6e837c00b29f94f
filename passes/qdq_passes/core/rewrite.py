"""Adapter to the onnxscript rewriter: pattern rules become passes that report what they did.

A rule is a function that takes values and returns the pattern, a check that declines with a reason, and a replacement. onnxscript
is imported only when a rule runs and the root operator of its pattern occurs at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from qdq_passes.analysis.uses import all_nodes
from qdq_passes.core.base import Change, skip
from qdq_passes.core.edit import inherit

#: Given the matched values by name, returns None to accept or the reason to decline.
Check = Callable[[dict[str, Any]], str | None]


@dataclass(frozen=True)
class Rule:
    """One rewrite.

    Args:
        root: operator type of the pattern's last node; a model without it costs nothing.
        pattern: ``pattern(op, x, w, …)`` returns the output of the pattern, in onnxscript's pattern language.
        replacement: ``replacement(op, x, w, …)`` returns the value that takes its place.
        check: declines with a reason, or None; sees the matched values by the pattern's argument names.
        because: reason written into the `Change`.
    """

    root: str
    pattern: Callable[..., Any]
    replacement: Callable[..., Any]
    because: str
    check: Check | None = None


def rewrite(model: ir.Model, rules: Sequence[Rule]) -> Iterator[Change]:
    """Apply ``rules`` to every graph of ``model`` and yield what was replaced and what declined.

    New nodes inherit scope and origin of the matched nodes.
    """
    present = {node.op_type for node in all_nodes(model)}
    active = [rule for rule in rules if rule.root in present]
    if not active:
        return
    from onnxscript.rewriter import pattern as orp

    for rule in active:
        record: list[Change] = []
        compiled = orp.RewriteRule(
            rule.pattern,
            rule.replacement,
            _condition(rule, record),
            name=rule.because,
        )
        known = set(all_nodes(model))
        removed_before = {node: node.name or node.op_type for node in known}
        orp.RewriteRuleSet([compiled]).apply_to_model(model)
        yield from record
        now = set(all_nodes(model))
        gone = [node for node in removed_before if node not in now]
        written: dict[str | None, ir.Node] = {value.name: node for node in gone for value in node.outputs if value.name}
        for node in all_nodes(model):
            if node not in known:
                inherit(node, _replaced_by(node, known, written))
                yield Change("insert", node.name or node.op_type, rule.because)
        for node in gone:
            yield Change("remove", removed_before[node], rule.because)


def _replaced_by(new: ir.Node, known: set[ir.Node], written: dict[str | None, ir.Node]) -> list[ir.Node]:
    """The removed nodes that ``new`` stands for: those whose values it writes, or the new nodes that read it do."""
    seen, level = {new}, [new]
    while level:
        found = [written[value.name] for node in level for value in node.outputs if value.name in written]
        if found:
            return list(dict.fromkeys(found))
        users = dict.fromkeys(user for node in level for value in node.outputs for user in value.consumers())
        level = [user for user in users if user not in known and user not in seen]
        seen.update(level)
    return []


def _condition(rule: Rule, record: list[Change]) -> Callable[..., bool]:
    def accepts(context: Any, **bound: Any) -> bool:
        reason = rule.check(bound) if rule.check is not None else None
        if reason is not None:
            values = [v for v in bound.values() if isinstance(v, ir.Value)]
            record.append(skip(values[0] if values else rule.root, reason))
        return reason is None

    return accepts

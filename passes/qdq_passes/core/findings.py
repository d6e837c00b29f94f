"""Findings: what a rule has to say about a model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Literal

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.names import CONTRADICTION
from qdq_passes.errors import ModelError, QdqError, VerifyError

Level = Literal["fatal", "error", "warning", "note"]
#: From bad to harmless. *fatal*: no file can hold it; *error*: a runtime refuses it, or computes something else.
LEVELS: tuple[Level, ...] = ("fatal", "error", "warning", "note")

#: What a rule yields: (level, where, message, hint).
Problem = tuple[Level, str, str, str]


@dataclass(frozen=True)
class Finding:
    """One thing a rule found.

    Args:
        level: how bad it is.
        rule: id of the rule, such as ``unique-node-names``.
        where: name of the node, value or graph.
        message: what is wrong, one line.
        hint: what repairs it.
    """

    level: Level
    rule: str
    where: str
    message: str
    hint: str

    def to_json(self) -> dict[str, str]:
        """JSON form: ``{level, rule, where, message, hint}``."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.level}: {self.where}: {self.message} [{self.rule}]; {self.hint}"


def is_at_least(finding: Finding, minimum: Level) -> bool:
    """Whether ``finding`` is as bad as ``minimum``, or worse."""
    return LEVELS.index(finding.level) <= LEVELS.index(minimum)


#: Rules that name the first of several places, which edits elsewhere may shift.
FIRST_OF_MANY = frozenset({"opset-imports", "topological-order"})


def new_errors(before: Iterable[Finding], after: Iterable[Finding]) -> list[Finding]:
    """Errors of ``after`` that ``before`` did not have: by rule and place, as a message may count differently; of `FIRST_OF_MANY`
    by rule alone."""
    known = {_key(f) for f in before}
    return [f for f in after if is_at_least(f, "error") and _key(f) not in known]


def broken_by(finding: Finding, before: Iterable[Finding], model: ir.Model, who: str) -> QdqError:
    """What to raise for ``finding``, an error that ``model`` did not have ``before``: it is a fault of ``who`` changed the model,
    unless that had other errors or did not fit together, which may have hidden it."""
    first = next((f"{f.where}: {f.message}; {f.hint}" for f in before if is_at_least(f, "error")), None)
    first = first or model.meta.get(CONTRADICTION)
    if not first:
        return VerifyError(
            f"{who} broke the model: {finding.message}", where=finding.where, hint=f"rule {finding.rule}"
        )
    message = f"{finding.message} [{finding.rule}], which shows after {who}; the model came with errors"
    return ModelError(message, where=finding.where, hint=f"first of them, {first}")


def _key(finding: Finding) -> tuple[str, str]:
    return finding.rule, "" if finding.rule in FIRST_OF_MANY else finding.where


def place(node: ir.Node) -> str:
    """How a finding names ``node``: by its name, or by its operator and what it writes."""
    if node.name:
        return node.name
    written = next((value.name for value in node.outputs if value.name), "nothing")
    return f"{node.op_type} → {written}"

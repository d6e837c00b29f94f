"""What a target does silently with a model, as findings: its traps, those of every backend, and shifts out of its reach."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import onnx_ir as ir
from qdq_passes.analysis.shifts import violations
from qdq_passes.core.findings import LEVELS, Finding
from qdq_passes.core.traps.table import ALWAYS, find_traps

from qdqtool.targets.target import Target


def silent_findings(model: ir.Model, target: Target | None = None) -> list[Finding]:
    """What is a trap on every backend, then what is one on ``target``, and the shifts it cannot do; warnings and notes."""
    found = find_traps(model, (*ALWAYS, *(target.traps if target is not None else ())))
    if target is None or target.shifts is None:
        return found
    hint = "run `qdqtool opt -p refine-positions`"
    return found + [
        Finding("warning", "shift-out-of-reach", v.node.name or v.node.op_type, f"{v.because} ({v.rule})", hint)
        for v in violations(model, target.shifts)
    ]


def hardened(findings: Iterable[Finding], target: Target) -> list[Finding]:
    """``findings`` where what ``target`` computes silently wrong is an error, worst first: a judgement of that target counts it,
    a look at the model does not. What is slow there, or computed in float, stays a note."""
    own = {trap.name() for trap in target.traps}
    raised = [dataclasses.replace(f, level="error") if f.rule in own and f.level == "warning" else f for f in findings]
    return sorted(raised, key=lambda finding: LEVELS.index(finding.level))

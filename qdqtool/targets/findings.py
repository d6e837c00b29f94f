"""What a target does silently with a model, as findings: its traps, those of every backend, and shifts out of its reach."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable

import onnx_ir as ir
from qdq_passes.core.findings import LEVELS, Finding
from qdq_passes.graph.uses import label
from qdq_passes.npu.traps.table import ALWAYS, find_traps
from qdq_passes.refine.look.shifts import violations

from qdqtool.targets.remedies import of_shift
from qdqtool.targets.target import Target


def silent_findings(model: ir.Model, target: Target | None = None) -> list[Finding]:
    """What is a trap on every backend, then what is one on ``target``, the shifts it cannot do, and a batch that is to be bound
    for it; warnings and notes."""
    found = find_traps(model, (*ALWAYS, *(target.traps if target is not None else ())))
    if target is not None:
        found = found + unbound_batch(model, target)
    if target is None or target.shifts is None:
        return found
    return found + [
        Finding(
            "warning", "shift-out-of-reach", label(v.node), f"{v.because} ({v.rule})",
            of_shift(v.node, target.name),
        )
        for v in violations(model, target.shifts)
    ]  # fmt: skip


def unbound_batch(model: ir.Model, target: Target) -> list[Finding]:
    """The inputs of ``model`` whose first dimension is symbolic, where ``target`` wants it bound; one warning for all."""
    if target.limits.symbolic != "bound-batch":
        return []
    inputs = [v for v in model.graph.inputs if not v.is_initializer() and v.shape and not isinstance(v.shape[0], int)]
    if not inputs:
        return []
    names = {dim.value: None for v in inputs if v.shape and isinstance(dim := v.shape[0], ir.SymbolicDim) and dim.value}
    sizes = " ".join(f"--dim {shlex.quote(f'{name}=1')}" for name in names) or "--input-shape INPUT=1x3x224x224"
    which = ", ".join(value.name or "" for value in inputs)
    message = (
        f"{target.name} takes static shapes alone, else all runs on the CPU; all that is said holds for a bound batch"
    )
    return [Finding("warning", "unbound-batch", which, message, f"bind it: `qdqtool fix-shapes {sizes}`")]


def hardened(findings: Iterable[Finding], target: Target) -> list[Finding]:
    """``findings`` where what ``target`` computes silently wrong is an error, worst first: a judgement of that target counts it,
    a look at the model does not. What is slow there, or computed in float, stays a note."""
    own = {trap.name() for trap in target.traps}
    raised = [dataclasses.replace(f, level="error") if f.rule in own and f.level == "warning" else f for f in findings]
    return sorted(raised, key=lambda finding: LEVELS.index(finding.level))

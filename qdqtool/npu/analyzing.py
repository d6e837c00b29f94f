"""What a target makes of a model, and whether it is worse than an earlier report."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping

import onnx_ir as ir
from qdq_passes.core.findings import Finding, is_at_least
from qdq_passes.errors import UsageError
from qdq_passes.graph.annotate import TARGET
from qdq_passes.graph.uses import label
from qdq_passes.npu.partitions.partitions import NOT_SIMULATED, not_simulated, partitions
from qdq_passes.npu.partitions.placements import placements
from qdq_passes.npu.units.units import Unit, units_of
from qdq_passes.npu.units.verdict import VERDICT_KINDS, Boundary

from qdqtool.io.files.read import read_text
from qdqtool.npu.figures import broken_rules, node_reports, partition_report
from qdqtool.npu.repairs import Setting, cut_of, repairs
from qdqtool.npu.report import Analysis, NodeReport
from qdqtool.targets.findings import hardened, silent_findings
from qdqtool.targets.target import Target

#: What is done to the copy that is judged; functions are inlined where there are some, as a runtime does.
PREPARE = "give-names,infer-shapes"
OUTLINE = "outline-partitions"


def analysis(model: ir.Model, path: str, target: Target, boundary: Boundary | None, *, simulated: bool) -> Analysis:
    """The analysis of ``model``, whose nodes gain the annotation ``target``."""
    edge = boundary or target.boundary
    units = units_of(model)
    verdicts = {unit: target.judge(unit) for unit in units}
    said = list(verdicts.values())
    lacking = not_simulated(units, said, target)
    outside = lacking if simulated else None
    found = partitions(model, units, said, target.policy, edge, target.minimum_group, outside)
    setting = Setting(model=model, found=found, verdicts=verdicts, target=target, boundary=edge, lacking=outside)
    placed = placements(model, found)
    for node, placement in placed.items():
        TARGET.set(node, placement)
    return Analysis(
        target=target.name,
        target_version=target.version,
        policy=target.policy,
        has_integers=any(engine.kind == "int" for engine in target.engines) or not target.engines,
        model=model,
        nodes=node_reports(placed, found),
        partitions=tuple(partition_report(partition) for partition in found.partitions),
        findings=(*hardened(silent_findings(model, target), target), *_notes(lacking)),
        rules=broken_rules(units, target) if target.policy == "whole-model" else (),
        repairs=repairs(setting),
        cut=cut_of(setting, path),
    )


def options(boundary: Boundary | None, *, simulated: bool) -> str:
    return (f" boundary={boundary}" if boundary is not None else "") + ("" if simulated else " simulated=false")


def _notes(lacking: Mapping[Unit, str]) -> list[Finding]:
    """What the simulated NPU does not compute although the target takes it."""
    return [
        Finding("note", NOT_SIMULATED, label(unit.core), f"{why}; `simulate` runs it on the CPU", "")
        for unit, why in lacking.items()
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stored:
    """What an earlier report says.

    Args:
        errors: (rule, where) of its errors.
        verdicts: verdict of each node by its name.
        npu_percent: share of operators on the NPU.
        broken: (rule, node) of the rules that are not kept.
    """

    errors: frozenset[tuple[str, str]]
    verdicts: dict[str, str]
    npu_percent: float
    broken: frozenset[tuple[str, str]]


def stored(path: str | os.PathLike[str]) -> Stored:
    """An earlier report.

    Raises:
        UsageError: the file is no report of an analysis.
    """
    try:
        data = json.loads(read_text(path))
        return Stored(
            errors=frozenset((f["rule"], f["where"]) for f in data["findings"] if f["level"] in ("error", "fatal")),
            verdicts={node["name"]: str(node["verdict"]) for node in data["nodes"]},
            npu_percent=float(data["npu_percent"]),
            broken=frozenset((rule["rule"], node) for rule in data.get("rules", ()) for node in rule["nodes"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError("is no report of `qdqtool analyze --json`", where=os.fspath(path)) from error


def judged(found: Analysis, before: Stored | None, require_npu: float | None) -> Analysis:
    """``found`` with what makes it fail: errors, too little on the NPU; with a baseline only what is worse than there."""
    errors = [finding for finding in found.findings if is_at_least(finding, "error")]
    new = [e for e in errors if before is None or (e.rule, e.where) not in before.errors]
    failures = [_error_text(new)] if new else []
    short = require_npu is not None and found.npu_percent < require_npu
    if short and (before is None or found.npu_percent < before.npu_percent):
        failures.append(f"{found.npu_percent:.1f} % of the operators are on the NPU, required are {require_npu:g} %")
    if before is not None:
        worse = [node for node in found.nodes if node.kind != "pair" and _is_worse(node, before.verdicts)]
        if worse:
            others = f" and {len(worse) - 1} more" if len(worse) > 1 else ""
            now, was = worse[0].placement.verdict, before.verdicts[worse[0].name]
            failures.append(f"{worse[0].name}{others}: {now}, was {was} in the baseline")
        known = frozenset(before.verdicts)
        broken = [(r.rule, n) for r in found.rules for n in r.nodes if n in known and (r.rule, n) not in before.broken]
        if broken and not worse:
            others = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
            failures.append(f"{broken[0][1]}{others}: does not keep {broken[0][0]}, did in the baseline")
        if found.npu_percent < before.npu_percent and not (short or worse):
            failures.append(
                f"{found.npu_percent:.1f} % of the operators are on the NPU, were {before.npu_percent:.1f} %"
            )
    return dataclasses.replace(found, failures=tuple(failures), known_errors=len(errors) - len(new))


def _error_text(errors: list[Finding]) -> str:
    first, others = errors[0], f" and {len(errors) - 1} more" if len(errors) > 1 else ""
    return f"{first.rule} at {first.where}{others}"


def _is_worse(node: NodeReport, before: dict[str, str]) -> bool:
    was = before.get(node.name)
    kinds: tuple[str, ...] = VERDICT_KINDS
    return was in kinds and kinds.index(node.placement.verdict) > kinds.index(was)

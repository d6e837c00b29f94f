"""What a target makes of a model: which operators it is given, who runs each, what it does silently, and whether that is worse
than in an earlier report.

In the linear arrangement of a language model (llm.npu, arXiv 2407.05858) the NPU is given the projections, the MLP and what
stands between layers, before its target is asked; attention and norms run on the CPU:

    norm CPU | q k v NPU | rotation, cache, scores, softmax, sums CPU | o, residual NPU | norm CPU | MLP, residual NPU

q, k and v, which read the same norm, are one partition."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.findings import LEVELS, Finding, is_at_least
from qdq_passes.errors import UsageError
from qdq_passes.graph.annotate import TARGET
from qdq_passes.graph.edit import copy_model
from qdq_passes.graph.uses import label, main_nodes
from qdq_passes.npu.partitions.partitions import NOT_SIMULATED, not_simulated, partition_for, partitions, placements
from qdq_passes.npu.traps.rule import find_traps
from qdq_passes.npu.traps.table import ALWAYS
from qdq_passes.npu.units.units import Unit, units_of
from qdq_passes.npu.units.verdict import VERDICT_KINDS, Boundary, Verdict
from qdq_passes.numerics.documents import json_of
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.qdq.look.weighted_layers import WeightedLayer, weighted_layer
from qdq_passes.refine.look.scale_positions import Positions
from qdq_passes.refine.look.shifts import violations_at
from qdq_passes.roles.roles import Roles

from qdqtool.io.files.read import read_text
from qdqtool.io.models.load import missing_weights
from qdqtool.npu.figures import broken_rules, node_reports, partition_report, refusals_of
from qdqtool.npu.repairs import Setting, cut_of, repairs
from qdqtool.npu.report import Analysis
from qdqtool.npu.shares import NodeReport, Placed, Shares, as_share, uncounted_text
from qdqtool.targets.remedies import of_shift
from qdqtool.targets.target import Target

#: Rule of what the arrangement leaves to the CPU.
ARRANGEMENT = "arrangement"
#: Linear layers with packed weights, of com.microsoft.
_PACKED = frozenset({"MatMulNBits", "MatMulBnb4"})
_PRODUCTS = ("qk_bmm", "softmax", "pv_bmm")
_WAY_OUT = "`--arrange whole` leaves it to the target"


#: What is done to the copy that is judged; functions are inlined where there are some, as a runtime does.
PREPARE = "give-names,infer-shapes"
#: … and what a compiler computes of static shapes before it asks who runs what.
FOLD_STATIC = "fold-constants{weights=false}"
FOLD = f"{FOLD_STATIC},infer-shapes"
INLINE = "inline-functions"
OUTLINE = "outline-partitions"


@dataclass(frozen=True, kw_only=True)
class ArrangedTarget(Target):
    """A target that is not asked about some nodes.

    Args:
        on_cpu: name of a node → what it is part of.
    """

    on_cpu: Mapping[str, str] = field(default_factory=dict)

    def judge(self, unit: Unit) -> Verdict:
        """As `Target.judge`; what the arrangement leaves to the CPU is a fallback, unless the target refuses it itself."""
        found = super().judge(unit)
        part = self.on_cpu.get(unit.core.name or "")
        if part is None or not found.is_npu:
            return found
        reason = f"is part of {part}, which the linear arrangement leaves to the CPU"
        return Verdict(kind="fallback", engine="CPU", rule=ARRANGEMENT, reason=reason, suggestion=_WAY_OUT)


def linear_arrangement(model: ir.Model, target: Target) -> ArrangedTarget:
    """``target`` for ``model``, with its attention and norms on the CPU; the projections q, k and v of a layer, which read the
    same norm, are one partition.

    Args:
        model: its nodes have names.
        target: the target.

    Raises:
        UsageError: the target takes whole models or none.
    """
    if target.policy == "whole-model":
        raise UsageError(
            f"{target.name} takes a model whole or not at all",
            hint="leave out --arrange linear, or take another target",
        )
    roles = Roles(model)
    attention = _reached([node for role in _PRODUCTS for node in roles.nodes(role)], _read)
    attention |= _reached(roles.nodes("pv_bmm"), _readers)
    attention |= {node for role in ("rope", "kv") for node in roles.nodes(role) if not is_linear(node)}
    norms = roles.nodes("norm")
    parts = {
        node.name or "": "a norm" if node in norms else "attention"
        for node in main_nodes(model)
        if node in attention or node in norms
    }
    given = {item.name: getattr(target, item.name) for item in dataclasses.fields(Target)}
    return ArrangedTarget(**{**given, "join_siblings": True}, on_cpu=parts)


def _reached(starts: Iterable[ir.Node], beside: Callable[[ir.Node], Iterable[ir.Node]]) -> set[ir.Node]:
    """``starts`` and what is ``beside`` them, up to linear layers."""
    found = {node for node in starts if not is_linear(node)}
    waiting = list(found)
    while waiting:
        for node in beside(waiting.pop()):
            if node not in found and not is_linear(node):
                found.add(node)
                waiting.append(node)
    return found


def is_linear(node: ir.Node) -> bool:
    """Whether ``node`` multiplies with a stored weight."""
    return isinstance(weighted_layer(node), WeightedLayer) or node.op_type in _PACKED


def _read(node: ir.Node) -> Iterable[ir.Node]:
    return [producer for value in node.inputs if value is not None and (producer := value.producer()) is not None]


def _readers(node: ir.Node) -> Iterable[ir.Node]:
    return [use.node for value in node.outputs for use in value.uses()]


def silent_findings(model: ir.Model, target: Target | None = None) -> list[Finding]:
    """What is a trap on every backend, then what is one on ``target``, the shifts it cannot do, and a batch that is to be bound
    for it; warnings and notes."""
    found = find_traps(model, (*ALWAYS, *(target.traps if target is not None else ())))
    if target is not None:
        name = shlex.quote(target.name)
        found = [dataclasses.replace(f, hint=f.hint.replace("{target}", name)) for f in found]
        found += unbound_batch(model, target)
    if target is None or target.shifts is None:
        return found
    return found + [
        Finding(
            "warning", "shift-out-of-reach", label(v.node), f"{v.because} ({v.rule})",
            of_shift(v.node, target.name),
        )
        for v in violations_at(Positions(model), target.shifts)
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


def analysis(model: ir.Model, path: str, target: Target, boundary: Boundary | None, *, simulated: bool) -> Analysis:
    """The analysis of ``model``, whose nodes gain the annotation ``target``."""
    edge = boundary or target.boundary
    units, nodes = units_of(model), main_nodes(model)
    verdicts = {unit: target.judge(unit) for unit in units}
    said = list(verdicts.values())
    missing = missing_weights(model)
    lacking = {} if missing else not_simulated(units, said, target)  # of no weights, nothing can be simulated
    outside = lacking if simulated else None
    found = partitions(nodes, units, said, target.policy, edge, target.minimum_group, outside)
    setting = Setting(
        nodes=nodes,
        outputs=model.graph.outputs,
        found=found,
        verdicts=verdicts,
        target=target,
        boundary=edge,
        lacking=outside,
    )
    placed = placements(model, found)
    for node, placement in placed.items():
        TARGET.set(node, placement)
    reports = node_reports(placed, found)
    return Analysis(
        target=target.name,
        target_version=target.version,
        policy=target.policy,
        has_integers=target.has_integers,
        model=model,
        nodes=reports,
        refusals=refusals_of(reports, found),
        partitions=tuple(partition_report(partition) for partition in found.partitions),
        findings=(*hardened(silent_findings(model, target), target), *_notes(lacking)),
        rules=broken_rules(units, target) if target.policy == "whole-model" else (),
        repairs=repairs(setting),
        cut=cut_of(setting, path),
        missing_files=missing,
    )


def placed_on(model: ir.Model, target: Target) -> Placed:
    """Who runs what of ``model``, which stays as it is: what `analysis` finds, without its findings and its advice."""
    work = model
    if not _is_prepared(model):
        work = run_pipeline(copy_model(model), f"{INLINE},{PREPARE}" if model.functions else PREPARE).model
    found = partition_for(work, target, simulated=False)
    reports = node_reports(placements(work, found), found)
    refusals = refusals_of(reports, found)
    return Placed(target=target.name, nodes=reports, partitions=len(found.partitions), refusals=refusals)


def _is_prepared(model: ir.Model) -> bool:
    """Whether all nodes of ``model`` have names of their own and all values types and shapes."""
    names, nodes = set[str | None](), list(model.graph.all_nodes())
    names.update(node.name for node in nodes)
    known = all(v.name == "" or (v.shape is not None and v.type is not None) for node in nodes for v in node.outputs)
    return known and len(names) == len(nodes) and None not in names and not model.functions


def options(boundary: Boundary | None, *, simulated: bool) -> str:
    return (f" boundary={boundary}" if boundary is not None else "") + ("" if simulated else " simulated=false")


def _notes(lacking: Mapping[Unit, str]) -> list[Finding]:
    """What the simulated NPU does not compute although the target takes it."""
    return [
        Finding("note", NOT_SIMULATED, label(unit.core), f"{why}; `simulate` runs it on the CPU", "")
        for unit, why in lacking.items()
    ]


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What an earlier report says.

    Args:
        errors: (rule, where) of its errors.
        verdicts: verdict of each node by its name.
        npu_percent: share of operators on the NPU.
        broken: (rule, node) of the rules that are not kept.
        partitions: number of partitions.
    """

    errors: frozenset[tuple[str, str]]
    verdicts: dict[str, str]
    npu_percent: float
    broken: frozenset[tuple[str, str]]
    partitions: int


def stored(path: str | os.PathLike[str]) -> Stored:
    """An earlier report.

    Raises:
        UsageError: the file is no report of an analysis.
    """
    try:
        return stored_in(json_of(read_text(path)))
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError("is no report of `qdqtool analyze --json`", where=os.fspath(path)) from error


def stored_in(data: Mapping[str, Any]) -> Stored:
    """What the JSON of an analysis says; ValueError, KeyError or TypeError where it is none."""
    return Stored(
        errors=frozenset((f["rule"], f["where"]) for f in data["findings"] if f["level"] in ("error", "fatal")),
        verdicts={node["name"]: str(node["verdict"]) for node in data["nodes"]},
        npu_percent=float(data["npu_percent"]),
        broken=frozenset((rule["rule"], node) for rule in data.get("rules", ()) for node in rule["nodes"]),
        partitions=len(data["partitions"]),
    )


def judged(found: Analysis, before: Stored | None, require_npu: float | None) -> Analysis:
    """``found`` with what makes it fail: errors, too little on the NPU; with a baseline only what is worse than there."""
    errors = [finding for finding in found.findings if is_at_least(finding, "error")]
    new = [e for e in errors if before is None or (e.rule, e.where) not in before.errors]
    failures = [_error_text(new)] if new else []
    short = None if require_npu is None else too_little(found, as_share(require_npu))
    if short and (before is None or found.npu_percent < before.npu_percent):
        failures.append(short)
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


def too_little(found: Shares, required: float) -> str | None:
    """What is said where less than ``required``, 0 to 1, is on the NPU: of the multiply-accumulates, of the operators of a model
    without any; of both where all of it is required. None where it is enough. A share that is not known is never enough."""
    macs, operators = found.npu_macs_share, found.npu_percent / 100
    wanted = f"required are {100 * required:g} %"
    if found.uncounted and required:
        return (
            f"an unknown share of the multiply-accumulates is on the NPU, {uncounted_text(found.uncounted)}; {wanted}"
        )
    if macs is not None and macs < required:
        return f"{100 * macs:.1f} % of the multiply-accumulates are on the NPU, {wanted}"
    if operators < required and (macs is None or required == 1):
        return f"{100 * operators:.1f} % of the operators are on the NPU, {wanted}"
    return None


def _error_text(errors: list[Finding]) -> str:
    first, others = errors[0], f" and {len(errors) - 1} more" if len(errors) > 1 else ""
    return f"{first.rule} at {first.where}{others}"


def _is_worse(node: NodeReport, before: dict[str, str]) -> bool:
    was = before.get(node.name)
    kinds: tuple[str, ...] = VERDICT_KINDS
    return was in kinds and kinds.index(node.placement.verdict) > kinds.index(was)

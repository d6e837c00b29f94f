"""What a target makes of a model: per node who runs it and why, partitions with what crosses their edges, findings, advice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Any, ClassVar

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.findings import Finding
from qdq_passes.graph.annotate import Placement
from qdq_passes.npu.units.verdict import VERDICT_KINDS, VerdictKind

from qdqtool.io.files.progress import Warned
from qdqtool.io.files.shown import Shown
from qdqtool.npu.memory import MemoryPlan
from qdqtool.npu.shares import NodeReport, Refusal, Shares, group_of
from qdqtool.record.record import Record


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """A value that crosses the edge of a partition.

    Args:
        name: of the value.
        dtype: element type; None where it is not known.
        shape: dimensions; names of symbolic ones, None where one, or all, are not known.
        bytes: in one inference; an unknown dimension counts as 1.
    """

    name: str
    dtype: str | None
    shape: tuple[int | str | None, ...] | None
    bytes: int


@dataclass(frozen=True, kw_only=True)
class PartitionReport:
    """One partition.

    Args:
        id: its number.
        nodes: names of its nodes, Q and DQ included.
        inputs: what it reads from outside, constants left out.
        outputs: what others read of it.
        macs: multiply-accumulates in one inference.
        weight_bytes: of weights, biases and other constants as the NPU stores them.
    """

    id: int
    nodes: tuple[str, ...]
    inputs: tuple[Crossing, ...]
    outputs: tuple[Crossing, ...]
    macs: int
    weight_bytes: int

    @property
    def boundary_bytes(self) -> int:
        """Bytes that cross its edge in one inference."""
        return sum(crossing.bytes for crossing in (*self.inputs, *self.outputs))

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; the keys of the command's contract, and ``boundary_bytes``."""
        return {**asdict(self), "boundary_bytes": self.boundary_bytes}


@dataclass(frozen=True, kw_only=True)
class After:
    """What would be if an advice were followed, and those before it.

    Args:
        npu_compute_nodes: operators on the NPU.
        compute_nodes: of so many.
        partitions: number of partitions.
        boundary_tensors: values that cross their edges, each time they do.
        boundary_bytes: their bytes.
    """

    npu_compute_nodes: int
    compute_nodes: int
    partitions: int
    boundary_tensors: int
    boundary_bytes: int


@dataclass(frozen=True, kw_only=True)
class Repair:
    """Nodes that one rule declines, and that keep others off the NPU, or split it.

    Args:
        nodes: their names.
        ops: their operators, each once.
        rule: the rule that declines them.
        reason: in words, of the first.
        suggestion: what would mend the first, commands in backticks.
        after: what would be if the NPU took them.
    """

    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    rule: str
    reason: str
    suggestion: str
    after: After


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A head, behind which all nodes stand that the NPU does not take.

    Args:
        nodes: operators of the head, which would run elsewhere.
        outputs: values at which the model would end.
        command: what cuts it off.
        after: what would be of the rest.
    """

    nodes: int
    outputs: tuple[str, ...]
    command: str
    after: After


@dataclass(frozen=True, kw_only=True)
class BrokenRule:
    """A rule that operators do not keep, whatever else is said of them.

    Args:
        rule: the rule.
        verdict: what it alone makes of them.
        nodes: their names.
        ops: their operators, each once.
        reason: in words, of the first.
        suggestion: what would mend the first, commands in backticks.
    """

    rule: str
    verdict: VerdictKind
    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    reason: str
    suggestion: str


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Nodes to which one rule applies.

    Args:
        nodes: the nodes; the first tells the reason and what would mend it.
        ops: their operators, each once.
    """

    nodes: tuple[NodeReport, ...]
    ops: tuple[str, ...]

    @property
    def placement(self) -> Placement:
        """Of the first node."""
        return self.nodes[0].placement


@dataclass(frozen=True, kw_only=True, repr=False)
class Analysis(Shown, Shares, Warned):
    """What a target makes of a model.

    Args:
        target: name of the target.
        target_version: of its description.
        policy: what one unsupported node costs there.
        has_integers: whether it computes on integers at all.
        model: the model as it was judged: sorted, named, with inferred shapes and the annotation ``target`` on its nodes.
        partitions: in the order of their ids.
        refusals: what keeps operators off the NPU, the costliest first.
        findings: what the target, or any backend, does silently; worst first.
        rules: every rule that is not kept, the most frequent of the worst verdict first, where one node that the NPU does not
            take refuses the model (policy ``whole-model``); a node may be in several. Empty for other targets: there
            the reason of each node says what to mend.
        repairs: which nodes to mend, the most profitable first.
        cut: the head to cut off instead; None where that would not pay.
        failures: why the analysis counts as failed, in words.
        known_errors: errors among ``findings`` that the baseline has too.
        memory: what it needs of the target's memory; None where nobody asked.
        missing_files: files of external data that are not there → how many tensors of the model lie there.
    """

    figures: ClassVar[Mapping[str, str]] = {
        "target": "target",
        "verdict": "verdict",
        "on_npu": "npu_compute_nodes",
        "operators": "compute_nodes",
        "macs_on_npu": "npu_macs_share",
        "partitions": "partitions",
        "findings": "findings",
    }

    target: str
    target_version: str
    policy: str
    has_integers: bool = True
    model: ir.Model
    partitions: tuple[PartitionReport, ...]
    refusals: tuple[Refusal, ...] = ()
    findings: tuple[Finding, ...] = ()
    rules: tuple[BrokenRule, ...] = ()
    repairs: tuple[Repair, ...] = ()
    cut: Cut | None = None
    failures: tuple[str, ...] = ()
    known_errors: int = 0
    memory: MemoryPlan | None = None
    missing_files: Mapping[str, int] = field(default_factory=dict)

    @property
    def verdict(self) -> VerdictKind:
        """The worst verdict of all nodes that are no Q and no DQ; of a model without such nodes ``npu-int``."""
        kinds = {node.placement.verdict for node in self.nodes if node.kind != "pair"}
        return next((kind for kind in reversed(VERDICT_KINDS) if kind in kinds), "npu-int")

    @property
    def boundary_bytes(self) -> int:
        """Bytes that cross the edges of partitions in one inference, each time they do."""
        return sum(partition.boundary_bytes for partition in self.partitions)

    @property
    def record(self) -> Record:
        """Who runs each node but the pairs, by which rule and why; how much is on the NPU."""
        return self.record_on(self.target)

    def reasons(self) -> list[Reason]:
        """Why operators are not computed on integers by the NPU: the worst verdict first, of each the most frequent reason; what
        is no operator that computes or moves data is left out, and what the target computes in floating point anyhow."""
        groups: dict[tuple[str, ...], list[NodeReport]] = {}
        for node in self.nodes:
            placement = node.placement
            if placement.verdict != "npu-int" and node.is_compute and (placement.reason or not node.is_npu):
                key = (node.placement.verdict, *group_of(node.core, node.placement.rule))
                groups.setdefault(key, []).append(node)
        found = [Reason(nodes=tuple(nodes), ops=tuple(dict.fromkeys(n.op for n in nodes))) for nodes in groups.values()]
        kinds: tuple[str, ...] = VERDICT_KINDS
        return sorted(found, key=lambda reason: (-kinds.index(reason.placement.verdict), -len(reason.nodes)))

    def _missing(self) -> dict[str, Any]:
        files = dict(self.missing_files)
        return {"missing_weights": sum(files.values()), "missing_files": files} if files else {}

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; the keys of the command's contract, and more."""
        return {
            "target": self.target,
            "target_version": self.target_version,
            "policy": self.policy,
            "verdict": self.verdict,
            "nodes": [node.to_json() for node in self.nodes],
            "partitions": [partition.to_json() for partition in self.partitions],
            "npu_nodes": self.npu_nodes,
            "cpu_nodes": len(self.nodes) - self.npu_nodes,
            "boundary_bytes": self.boundary_bytes,
            **self.shares_to_json(),
            "findings": [finding.to_json() for finding in self.findings],
            "known_errors": self.known_errors,
            "refusals": [refusal.to_json() for refusal in self.refusals],
            "rules": [asdict(rule) for rule in self.rules],
            "repairs": [asdict(repair) for repair in self.repairs],
            "cut": None if self.cut is None else asdict(self.cut),
            "failures": list(self.failures),
            **({} if self.memory is None else {"memory": self.memory.to_json()}),
            **self._missing(),
            "record": self.record.to_json(),
        }

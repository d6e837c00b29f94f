"""How much of a model an NPU takes: a report of each node, the shares that follow, and what keeps the rest on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any, Literal

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.annotate import Placement
from qdq_passes.npu.units.verdict import CPU

from qdqtool.record.record import NodeRecord, Record, Whole

#: Rules that look at what stands around an operator, so that one reason holds for many kinds of them.
AROUND = frozenset({"batch", "inner-graph", "max-rank", "minimum-group", "region", "static-shapes", "whole-model"})
#: What a node is in a report.
NodeKind = Literal["compute", "pair", "steering"]


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """One node.

    Args:
        name: of the node.
        op: operator, with its domain where that is not the standard one: ``com.acme::Op``.
        scope: module path; may be empty.
        placement: who runs it and why.
        kind: ``"compute"`` for an operator that computes or moves data, ``"pair"`` for Q and DQ nodes, ``"steering"`` for what
            works on shapes, indices and masks alone.
        macs: multiply-accumulates in one inference; None where they are not known.
        core: operator of the unit that it is part of: Conv for the Relu behind it; its own for others.
    """

    name: str
    op: str
    scope: str
    placement: Placement
    kind: NodeKind
    macs: int | None
    core: str

    @property
    def is_compute(self) -> bool:
        """Whether it is counted when shares are."""
        return self.kind == "compute"

    @property
    def is_npu(self) -> bool:
        """Whether the NPU computes it."""
        return self.placement.device != CPU

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; the keys of the command's contract, and ``kind`` and ``macs``."""
        head = {"name": self.name, "op": self.op, "scope": self.scope}
        return {**head, **asdict(self.placement), "kind": self.kind, "macs": self.macs}


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Operators that one rule keeps off the NPU, and those that the target's policy leaves to the CPU with them.

    Args:
        rule: the rule.
        nodes: names of the operators that it declines.
        ops: their operators, each once.
        pulled: how many others, which the NPU takes as they are, run on the CPU because of them.
        macs: multiply-accumulates of all of these.
        reason: in words, of the first.
        suggestion: what would mend the first, commands in backticks.
    """

    rule: str
    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    pulled: int
    macs: int
    reason: str
    suggestion: str

    @property
    def who(self) -> str:
        """``/attn/Softmax (Softmax) and 3 more, and 80 operators connected with them``."""
        return f"{self.nodes[0]} ({', '.join(self.ops)}){self._others}"

    @property
    def what(self) -> str:
        """``Softmax and 3 more, and 80 operators connected with them``: where the first node is named already."""
        return f"{', '.join(self.ops)}{self._others}"

    @property
    def _others(self) -> str:
        more = f" and {len(self.nodes) - 1} more" if len(self.nodes) > 1 else ""
        pulled = f"{self.pulled} operator{'' if self.pulled == 1 else 's'} connected with {'them' if more else 'it'}"
        return more + (f", and {pulled}" if self.pulled else "")

    @property
    def text(self) -> str:
        """Who, why, and what would mend it."""
        return f"{self.who}: {self.reason}{f'; {self.suggestion}' if self.suggestion else ''}"

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**asdict(self), "nodes": list(self.nodes), "ops": list(self.ops)}


@dataclass(frozen=True, kw_only=True)
class Shares:
    """How much of a model a target takes.

    Args:
        nodes: every node but Constants, those in bodies too, in the order of the file.
    """

    nodes: tuple[NodeReport, ...]

    @cached_property
    def npu_nodes(self) -> int:
        """Nodes on the NPU, Q and DQ included."""
        return sum(node.is_npu for node in self.nodes)

    @cached_property
    def compute_nodes(self) -> int:
        """Operators that compute or move data."""
        return sum(node.is_compute for node in self.nodes)

    @cached_property
    def npu_compute_nodes(self) -> int:
        """Those of them on the NPU."""
        return sum(node.is_compute and node.is_npu for node in self.nodes)

    @cached_property
    def on_cpu(self) -> list[str]:
        """Names of the operators that are not."""
        return [node.name for node in self.nodes if node.is_compute and not node.is_npu]

    @cached_property
    def npu_percent(self) -> float:
        """Share of operators on the NPU in percent; 100 where there are none."""
        return 100.0 * self.npu_compute_nodes / self.compute_nodes if self.compute_nodes else 100.0

    @cached_property
    def macs(self) -> int:
        """Multiply-accumulates in one inference, as far as they are known."""
        return sum(node.macs or 0 for node in self.nodes)

    @cached_property
    def npu_macs(self) -> int:
        """Those of them on the NPU."""
        return sum(node.macs or 0 for node in self.nodes if node.is_npu)

    @cached_property
    def uncounted(self) -> tuple[NodeReport, ...]:
        """Operators of which nobody knows how much they multiply, where the share on the NPU hangs on it."""
        unknown = tuple(node for node in self.nodes if node.macs is None and node.is_compute)
        sides = {node.is_npu for node in self.nodes if node.macs or node in unknown}
        return unknown if len(sides) > 1 else ()

    @cached_property
    def npu_macs_share(self) -> float | None:
        """Share of multiply-accumulates on the NPU, 0 to 1; None where there are none, or some are `uncounted`."""
        if self.uncounted or not any(node.macs is None or node.macs for node in self.nodes if node.is_compute):
            return None
        return self.npu_macs / self.macs if self.macs else float(all(n.is_npu for n in self.nodes if n.macs is None))

    @cached_property
    def share(self) -> float:
        """Share of the multiply-accumulates on the NPU, 0 to 1, as far as they are known; of the operators where there are none
        of those."""
        if self.uncounted and self.macs:
            return self.npu_macs / self.macs
        macs = self.npu_macs_share
        return self.npu_percent / 100.0 if macs is None else macs

    @cached_property
    def macs_text(self) -> str:
        """``99.1 % of the MACs``; that it is not known, and why; empty where there are none."""
        if self.uncounted:
            return f"an unknown share of the MACs ({uncounted_text(self.uncounted)})"
        return "" if self.npu_macs_share is None else f"{100 * self.npu_macs_share:.1f} % of the MACs"

    def record_on(self, target: str) -> Record:
        """Who runs each node but the pairs on the NPU ``target``, by which rule and why; how much is on it."""
        nodes = tuple(
            NodeRecord(
                name=node.name, op=node.op, verdict=(place := node.placement).verdict, rule=place.rule, device=place.device,
                reason=place.reason or ("" if node.is_npu else place.rule), suggestion=place.suggestion,
                partition=place.partition,
            )
            for node in self.nodes
            if node.kind != "pair"
        )  # fmt: skip
        whole = Whole(
            target=target, operators=self.compute_nodes, npu_operators=self.npu_compute_nodes, macs=self.macs,
            npu_macs=self.npu_macs,
        )  # fmt: skip
        return Record(nodes=nodes, whole=whole)

    def shares_to_json(self) -> dict[str, Any]:
        """The shares JSON-ready, in the words of the command's contract."""
        return {
            "compute_nodes": self.compute_nodes,
            "npu_compute_nodes": self.npu_compute_nodes,
            "npu_percent": self.npu_percent,
            "macs": self.macs,
            "npu_macs": self.npu_macs,
            "npu_macs_share": self.npu_macs_share,
            "uncounted": [node.name for node in self.uncounted],
        }


@dataclass(frozen=True, kw_only=True)
class Placed(Shares):
    """Who runs what of a model, without the advice of an analysis.

    Args:
        target: name of the target.
        partitions: how many there are.
        refusals: what keeps operators off the NPU, the costliest first.
    """

    target: str
    partitions: int
    refusals: tuple[Refusal, ...]

    @property
    def record(self) -> Record:
        """Who runs each node but the pairs, by which rule and why; how much is on the NPU."""
        return self.record_on(self.target)

    @property
    def text(self) -> str:
        """``80 of 82 operators (97.6 %), 99.1 % of the MACs, 1 partition``."""
        macs = f", {self.macs_text}" if self.macs_text else ""
        parts = f"{self.partitions} partition{'' if self.partitions == 1 else 's'}"
        return f"{self.npu_compute_nodes} of {self.compute_nodes} operators ({self.npu_percent:.1f} %){macs}, {parts}"

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; keys as in the report of an analysis, ``partitions`` a number."""
        return {
            "target": self.target,
            **self.shares_to_json(),
            "partitions": self.partitions,
            "refusals": [refusal.to_json() for refusal in self.refusals],
        }


def group_of(op: str, rule: str) -> tuple[str, str]:
    """What operators that are declined by ``rule`` have in common: the rule, and the operator unless it is one of `AROUND`."""
    return ("" if rule in AROUND else op, rule)


def uncounted_text(nodes: Sequence[NodeReport]) -> str:
    """``those of /mix (com.acme::Mix) and 2 more are not counted``."""
    more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
    return f"those of {nodes[0].name} ({nodes[0].op}){more} are not counted"


def as_share(number: float) -> float:
    """A share of 0 to 1: what is above 1 is in percent."""
    return number / 100 if number > 1 else number

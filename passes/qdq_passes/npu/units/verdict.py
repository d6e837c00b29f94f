"""Verdicts: what an NPU makes of a unit, and why. A target gives them; partitioning, lowering and reports read them."""

from __future__ import annotations

from typing import Literal, Protocol

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.npu.units.units import Unit
from qdq_passes.numerics.arithmetic import Arithmetic

#: Computed on integers; computed in floating point on the NPU; computed on the CPU; makes the compiler fail. Worst last.
VerdictKind = Literal["npu-int", "npu-float", "fallback", "refused"]
VERDICT_KINDS: tuple[VerdictKind, ...] = ("npu-int", "npu-float", "fallback", "refused")

#: What one unsupported node costs: itself; every quantized unit connected with it through units; the whole model.
Policy = Literal["node", "region", "whole-model"]
#: Where the QuantizeLinear of a float graph input and the DequantizeLinear of a float graph output run.
Boundary = Literal["cpu", "npu"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What becomes of a unit.

    Args:
        kind: see `VERDICT_KINDS`.
        engine: the engine of the target that computes it; ``"CPU"`` for a fallback and a refusal.
        rule: id of the rule that decided: ``leaky-relu-int8``.
        reason: in words; empty for a plain ``npu-int``.
        suggestion: what would mend it, commands in backticks, or that nothing does; empty for a plain ``npu-int``.
        blamed: names of the operators that the NPU does not take, where it takes this one and the policy leaves it to the CPU
            with them; else empty.
    """

    kind: VerdictKind
    engine: str
    rule: str
    reason: str = ""
    suggestion: str = ""
    blamed: tuple[str, ...] = ()

    @property
    def is_npu(self) -> bool:
        """Whether the NPU computes it."""
        return self.kind in ("npu-int", "npu-float")


class TargetRules(Protocol):
    """What passes need to know of a target (`qdqtool.targets.target.Target` is one)."""

    @property
    def name(self) -> str: ...
    @property
    def arithmetic(self) -> Arithmetic: ...
    @property
    def policy(self) -> Policy: ...
    @property
    def boundary(self) -> Boundary: ...
    @property
    def minimum_group(self) -> int:
        """Fewest compute nodes that are worth a partition."""
        ...

    @property
    def join_siblings(self) -> bool:
        """Whether groups of units that wait for the same ones are one partition."""
        ...

    def judge(self, unit: Unit) -> Verdict:
        """What becomes of ``unit``."""
        ...


#: The engine of what no NPU runs.
CPU = "CPU"
#: Rule of what is declined because it is float, where the target has it for integers alone.
UNQUANTIZED = "not-quantized"
#: How a suggestion begins that has none, and the way out of those that know no other.
NOTHING_TO_MEND, CUT_BEFORE = "nothing to mend: ", "; or end the model before it: "


@dataclass(frozen=True, kw_only=True)
class PlacedUnit:
    """An operator of a graph and what runs it.

    Args:
        name: of the node.
        op: its operator.
        engine: the engine, or ``"CPU"``.
        macs: multiply-accumulates of one run.
        rule: of what put it on the CPU; empty on an NPU.
        reason: likewise, in words.
        suggestion: what would bring it to the NPU; may be empty.
    """

    name: str
    op: str
    engine: str
    macs: int
    rule: str = ""
    reason: str = ""
    suggestion: str = ""

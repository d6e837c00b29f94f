"""An NPU made up for tests: it takes the quantized units of the operators it is told."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import Any

from qdq_passes.npu.units.float_causes import why_not_quantized
from qdq_passes.npu.units.units import Unit
from qdq_passes.npu.units.verdict import Boundary, Policy, Verdict
from qdq_passes.numerics.arithmetic import Arithmetic


def _typed(word: str) -> Any:
    return int(word) if word.isdigit() else word == "true" if word in ("true", "false") else word


@dataclass(frozen=True, kw_only=True)
class FakeTarget:
    """A `qdq_passes.npu.units.verdict.TargetRules`.

    Args:
        takes: operator types that it computes on integers; all where empty.
        floats: operator types that it computes in floating point, on its second engine.
    """

    name: str = "fake"
    takes: frozenset[str] = frozenset()
    floats: frozenset[str] = frozenset()
    policy: Policy = "node"
    boundary: Boundary = "cpu"
    minimum_group: int = 1
    join_siblings: bool = False
    arithmetic: Arithmetic = field(default_factory=Arithmetic)

    @classmethod
    def of(cls, text: str) -> FakeTarget:
        """The target that ``takes=Conv,Relu policy=region boundary=npu minimum=2 rounding=half_even`` describes; fields of
        `Arithmetic` go by their names."""
        given = dict(re.findall(r"(\S+?)=(\S*)", text))
        return cls(
            takes=frozenset(filter(None, given.get("takes", "").split(","))),
            floats=frozenset(filter(None, given.get("floats", "").split(","))),
            policy=given.get("policy", "node"),
            boundary=given.get("boundary", "cpu"),
            minimum_group=int(given.get("minimum", 1)),
            arithmetic=Arithmetic(**{f.name: _typed(given[f.name]) for f in fields(Arithmetic) if f.name in given}),
        )

    def judge(self, unit: Unit) -> Verdict:
        """By the operators of the unit, core and tail, and by whether it is quantized."""
        types = {node.op_type for node in unit.nodes}
        if types & self.floats:
            return Verdict(kind="npu-float", engine="vector", rule="floats", reason="is computed in floating point")
        unknown = sorted(types - self.takes) if self.takes else []
        if unknown:
            return Verdict(
                kind="fallback", engine="CPU", rule="takes", reason=f"{unknown[0]} is not taken", suggestion="use Relu"
            )
        why = why_not_quantized(unit)
        if why:
            return Verdict(kind="fallback", engine="CPU", rule="quantized", reason=why, suggestion="quantize it")
        return Verdict(kind="npu-int", engine="npu", rule="takes")

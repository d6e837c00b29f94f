"""Where the operators of a graph run, and why not on the NPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from qdq_passes.decoder.look.record import Phase
from qdq_passes.npu.units.verdict import CPU, PlacedUnit


@dataclass(frozen=True, kw_only=True)
class GraphPlacement:
    """Where the operators of one graph file run.

    Args:
        graph: name of its file.
        phase: what it is for.
        units: its operators (QuantizeLinear, DequantizeLinear and constants do not count).
        stages: how many pieces it is cut into.
        notes: what is to be said of it.
    """

    graph: str
    phase: Phase
    units: tuple[PlacedUnit, ...]
    stages: int
    notes: tuple[str, ...] = ()

    @property
    def nodes(self) -> dict[str, int]:
        """Engine → operators."""
        return _sums(self.units, lambda unit: 1)

    @property
    def macs(self) -> dict[str, int]:
        """Engine → multiply-accumulates of one run."""
        return _sums(self.units, lambda unit: unit.macs)

    @property
    def npu_macs_share(self) -> float | None:
        """Share of the multiply-accumulates on an NPU, 0..1; None where there are none."""
        total = sum(self.macs.values())
        return 1 - self.macs.get(CPU, 0) / total if total else None

    def to_json(self) -> dict[str, Any]:
        """JSON-ready: counts by engine, the share, and of each operator of the CPU why."""
        return {
            "graph": self.graph,
            "phase": self.phase,
            "nodes": self.nodes,
            "macs": self.macs,
            "npu_macs_share": self.npu_macs_share,
            "stages": self.stages,
            "on_cpu": [asdict(unit) for unit in self.units if unit.engine == CPU],
            "notes": list(self.notes),
        }


def _sums(units: Sequence[PlacedUnit], of: Callable[[PlacedUnit], int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for unit in units:
        found[unit.engine] = found.get(unit.engine, 0) + of(unit)
    return dict(sorted(found.items()))

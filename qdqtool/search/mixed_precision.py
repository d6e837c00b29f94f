"""What a search for mixed precision found: points of cost and figure, and the chosen one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.numerics.agreement import worst_first

from qdqtool.search.measuring import figure_json
from qdqtool.search.metrics import Metric
from qdqtool.search.node_groups import NodeGroup
from qdqtool.search.variants import Measured, Point


@dataclass(frozen=True, kw_only=True)
class Found:
    """A variant that was measured.

    Args:
        point: what is raised.
        measured: what it is worth.
    """

    point: Point
    measured: Measured

    @property
    def figure(self) -> float:
        """To compare by: infinite where nothing differs from the float model."""
        return worst_first(self.measured.figure)

    def holds(self, bound: float) -> bool:
        """Whether it reaches ``bound``."""
        return not self.measured.reason and self.figure >= bound

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        raised = {precision: list(names) for precision, names in self.point.raised}
        cost = self.measured.cost
        return {"figure": figure_json(self.measured.figure), **cost.to_json(), "raised": raised}


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """What a search found.

    Args:
        bound: what the figure had to reach.
        metric: what judged.
        floating: figure of the float model.
        plain: the plain quantization.
        chosen: the cheapest that holds the bound; the best there is where none does.
        pareto: of everything measured what nothing beats in both cost and figure, cheapest first, with the chosen one.
        limit: what keeps the bound from being met, in words; empty where it is met.
        groups: everything that could be raised, by name.
        measured: number of variants measured.
        refusals: (node, precision, why the target does not take it).
    """

    bound: float
    metric: Metric
    floating: float | None
    plain: Found
    chosen: Found
    pareto: tuple[Found, ...]
    limit: str
    groups: tuple[NodeGroup, ...]
    measured: int
    refusals: tuple[tuple[str, str, str], ...]

    @property
    def met(self) -> bool:
        """Whether the bound holds."""
        return not self.limit

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "metric": self.metric.name,
            "bound": self.bound,
            "met": self.met,
            "limit": self.limit,
            "float": figure_json(self.floating),
            "quantized": self.plain.to_json(),
            "chosen": self.chosen.to_json(),
            "pareto": [found.to_json() for found in self.pareto],
            "measured": self.measured,
            "refusals": [{"node": n, "precision": p, "reason": r} for n, p, r in self.refusals],
        }


def pareto(found: Iterable[Found], chosen: Found) -> tuple[Found, ...]:
    """What nothing beats in both cost and figure, cheapest first; and ``chosen``, which has the fewest nodes of equal cost."""
    kept: list[Found] = []
    for each in sorted(found, key=_order):
        if not kept or each.figure > kept[-1].figure:
            kept.append(each)
    points = {each.point: each for each in (*kept, chosen)}
    return tuple(sorted(points.values(), key=lambda each: (each.measured.cost.total, each.figure)))


def _order(found: Found) -> tuple[float, float, int, str]:
    """Cheapest first; of equals the best, then that with the fewest nodes."""
    names = sum(len(nodes) for _, nodes in found.point.raised)
    return found.measured.cost.total, -found.figure, names, found.point.key


def thrift(found: Found) -> tuple[float, int, float, str]:
    """Cheapest first; of equals that with the fewest nodes, then the best."""
    cost, figure, names, key = _order(found)
    return cost, names, figure, key

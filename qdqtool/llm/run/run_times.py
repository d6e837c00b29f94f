"""How long runs of graphs take where it is known as a whole, as of a chip; how their pieces share it is the estimate's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.llm.folder.manifest import StaticModel
from qdqtool.llm.plan.schedules import StagePlan


@dataclass(frozen=True, kw_only=True)
class RunTime:
    """Microseconds, and the ends of their interval.

    Args:
        us: that it takes.
        low: of the interval.
        high: likewise.
    """

    us: float = 0.0
    low: float = 0.0
    high: float = 0.0

    @classmethod
    def sum(cls, times: Sequence[RunTime]) -> RunTime:
        """One after the other. They are wrong together, so intervals add up end by end."""
        return cls(us=sum(t.us for t in times), low=sum(t.low for t in times), high=sum(t.high for t in times))

    @classmethod
    def both(cls, one: RunTime | None, other: RunTime | None) -> RunTime | None:
        """`sum` of two; None where one is not known."""
        return None if one is None or other is None else cls.sum((one, other))


class RunTimes(Protocol):
    """Who knows what runs take."""

    @property
    def told(self) -> Mapping[str, Any]:
        """Of what, JSON-ready: ``chip``, ``stack``, ``precision``, ``interval``, and what is to be said of it."""

    def of(self, model: StaticModel, start: int, end: int) -> RunTime | None:
        """The time of a run with the tokens from ``start`` up to ``end``; None of a graph that is not timed so."""


def shared_out(plans: Sequence[StagePlan], us: float) -> list[StagePlan]:
    """``plans`` that take ``us`` together, in their proportions; alike where none takes any time."""
    total = sum(plan.us for plan in plans)
    return [replace(plan, us=us * plan.us / total if total else us / len(plans)) for plan in plans]

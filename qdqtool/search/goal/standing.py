"""How the figure of a variant stands to a goal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from qdq_passes._lazy_dataclass import dataclass

#: ``met``: the low end reaches the bound too. ``close``: the figure does, its low end does not. ``missed``: neither.
Verdict = Literal["met", "close", "missed"]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How a figure stands to a goal.

    Args:
        figure: of the quantized model; None where it is exact.
        margin: above the bound, in the unit of the metric.
        low: lower end of the interval of the margin.
        high: upper end.
        samples: that were judged on.
        early: the margin on the first of these that others were judged on alone; None where these are all.
        is_proven: the hardest samples alone were judged on, and refute it: figure and margin are with the float model's answers
            to the others, ``high`` with all of these right.
    """

    figure: float | None
    margin: float
    low: float
    high: float
    samples: int
    early: float | None = None
    is_proven: bool = False

    @property
    def common(self) -> float:
        """The margin on samples that every variant was judged on."""
        return self.margin if self.early is None else self.early

    @property
    def verdict(self) -> Verdict:
        """Whether the goal is met."""
        return "missed" if self.margin < 0 else "met" if self.low >= 0 else "close"

    def to_json(self) -> dict[str, Any]:
        """JSON-ready, an infinite end as ``"inf"`` or ``"-inf"``; inverse of `from_json`."""
        ends = {name: getattr(self, name) for name in _ENDS}
        finite = {name: value if math.isfinite(value) else str(value) for name, value in ends.items()}
        early = {} if self.early is None else {"early": str(self.early) if math.isinf(self.early) else self.early}
        proven = {"is_proven": True} if self.is_proven else {}
        return {"figure": self.figure, **finite, "samples": self.samples, **early, **proven}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Standing:
        """Read the form that `to_json` writes."""
        figure, early = data["figure"], data.get("early")
        ends = {name: float(data[name]) for name in _ENDS}
        return cls(
            figure=None if figure is None else float(figure), samples=int(data["samples"]),
            early=None if early is None else float(early), is_proven=bool(data.get("is_proven")), **ends,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Fresh:
    """How a model stands to a goal on samples by which it was not chosen.

    Args:
        figure: of the quantized model; None where it is exact.
        floating: of the float model; None where the goal does not ask for it.
        margin: above the bound, in the unit of the metric.
        samples: number of them.
        interval: of the figure on as many other samples; None where it is not known.
    """

    figure: float | None
    floating: float | None
    margin: float
    samples: int
    interval: tuple[float, float] | None


_ENDS = ("margin", "low", "high")

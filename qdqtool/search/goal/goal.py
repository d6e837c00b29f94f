"""Goals as a person says them: ``accuracy >= 0.99 * float``, ``sqnr >= 30``, ``perplexity <= 1.02 * float``."""

from __future__ import annotations

import math
import re

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.search.metrics import ALIASES, BUILT_IN

#: Words that stand for metrics of one's own as well.
COMMON = ("map", "map50")
#: Metrics that are 1 at most.
SHARES = ("accuracy", *COMMON)
_NUMBER = r"[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?"
_FORMS = (
    (re.compile(rf"(?P<factor>{_NUMBER})\s*(?P<percent>%)?\s*(?:\*|of)?\s*float"), 1.0),
    (re.compile(rf"float\s*\*\s*(?P<factor>{_NUMBER})"), 1.0),
    (re.compile(rf"float\s*-\s*(?P<less>{_NUMBER})"), 1.0),
    (re.compile(rf"float\s*\+\s*(?P<more>{_NUMBER})"), 1.0),
    (re.compile(r"float"), 1.0),
    (re.compile(rf"(?P<fixed>-?{_NUMBER})"), 0.0),
)  # fmt: skip
_HINT = (
    "for example 'accuracy >= 0.99 * float', 'accuracy >= float - 0.01', 'sqnr >= 30' or 'perplexity <= 1.02 * float'"
)


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What the figure of a metric is to reach: ``factor`` times that of the float model, plus ``offset``.

    Args:
        text: as it was said.
        metric: name of the metric.
        factor: of the float model's figure; 0 where that does not count.
        offset: added, in the unit of the metric.
        is_lower: the lower the better: ``<=``.
    """

    text: str
    metric: str
    factor: float
    offset: float
    is_lower: bool = False

    @classmethod
    def of(cls, text: str, metric: str | None = None) -> Goal:
        """Read ``text``; where a ``metric`` is named, any word may stand for it.

        Raises:
            UsageError: it is no goal, or of another metric.
        """
        sign = "<=" if "<=" in text else ">="
        left, found, right = (part.strip() for part in text.partition(sign))
        if not found or not re.fullmatch(r"[\w.:/-]+", left):
            raise UsageError(f"{text!r} is no goal", where="--goal", hint=_HINT)
        name, metric = ALIASES.get(left, left), ALIASES.get(metric or "", metric)
        if metric is None and name not in BUILT_IN:
            hint = f"{', '.join((*BUILT_IN, *ALIASES))}, or --metric module:function of your own"
            raise UsageError(f"there is no metric {left!r}", where="--goal", hint=hint)
        judge = BUILT_IN.get(metric or name)
        if judge is not None and judge.is_lower != (sign == "<="):
            other = "<=" if sign == ">=" else ">="
            raise UsageError(
                f"of {judge.name} the {'lower' if other == '<=' else 'higher'} is better",
                where="--goal",
                hint=f"write {other}",
            )
        is_own = metric not in (None, *BUILT_IN)
        if metric is not None and name in BUILT_IN and name != metric and not (is_own and name in COMMON):
            raise UsageError(f"is of {left}, and --metric says {metric}", where="--goal", hint="leave one of them out")
        for form, factor in _FORMS:
            if matched := form.fullmatch(right):
                said = matched.groupdict()
                times = float(said.get("factor") or factor) / (100 if said.get("percent") else 1)
                offset = sum(float(said.get(part) or 0) for part in ("fixed", "more")) - float(said.get("less") or 0)
                if (metric or name) in SHARES and float(said.get("fixed") or 0) > 1:
                    part = f"{offset / 100:.6g}" if offset >= 10 else "a part of 1"
                    hint = f"write {part}, or '{left} {sign} 0.99 * float'"
                    raise UsageError(f"no {metric or name} is {offset:.6g}", where="--goal", hint=hint)
                text, is_lower = f"{left} {sign} {right}", sign == "<="
                goal = cls(text=text, metric=metric or name, factor=times, offset=offset, is_lower=is_lower)
                return goal._sound()
        raise UsageError(f"{right!r} is no bound", where="--goal", hint=_HINT)

    def _sound(self) -> Goal:
        if self.is_relative and self.metric == "sqnr":
            raise UsageError(
                "the float model has no SQNR of its own", where="--goal", hint="say it in dB: 'sqnr >= 30'"
            )
        return self

    @property
    def is_relative(self) -> bool:
        """Whether the float model's figure counts."""
        return self.factor != 0

    def bound(self, floating: float | None) -> float:
        """What is to be reached where the float model reaches ``floating``; None is exact."""
        return (self.factor * _number(floating) if self.is_relative else 0.0) + self.offset

    def margin(self, figure: float | None, floating: float | None) -> float:
        """How much better than the bound ``figure`` is, in the unit of the metric; negative where it is worse."""
        better = _number(figure) - self.bound(floating)
        return -better if self.is_lower else better


def _number(figure: float | None) -> float:
    return math.inf if figure is None else figure

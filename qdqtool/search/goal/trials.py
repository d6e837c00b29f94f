"""What was tried on the way to a goal: options of `quantize`, how they stand to it, what they cost, and why they lost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.search.goal.standing import Fresh, Verdict
from qdqtool.search.measuring import figure_json
from qdqtool.search.recipe import spelled
from qdqtool.search.variants import Measured, Point


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Options to try.

    Args:
        point: options beside what the user says, and nodes of the prepared model in another precision.
        why: which cause it is to mend, in words.
    """

    point: Point
    why: str

    @classmethod
    def of(cls, why: str, options: Mapping[str, Any], nodes: Mapping[str, str] | None = None) -> Candidate:
        """Of options and node name → precision."""
        return cls(point=Point.of(nodes or {}, options), why=why)

    @property
    def options(self) -> dict[str, Any]:
        """Name → value."""
        return dict(self.point.options)

    @property
    def text(self) -> str:
        """As the command says it: ``--method mse --correct-bias``; nodes by their number."""
        words = [_words(name, value) for name, value in self.point.options]
        words += [f"{_words(p, True)} on {len(names)} node{'s' * (len(names) > 1)}" for p, names in self.point.raised]
        return " ".join(words) or "as it is said"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A candidate that was tried.

    Args:
        candidate: the candidate.
        measured: what it is worth.
        units: what it took, in full quantizations.
        most_ms: what a run may take on the chip; infinite where nothing is said.
        fresh: how it stands on samples that no trial was chosen by; None where it was not judged there.
    """

    candidate: Candidate
    measured: Measured
    units: float
    most_ms: float = math.inf
    fresh: Fresh | None = None

    @property
    def is_met(self) -> bool:
        """Whether the goal is met, and not by chance."""
        return self.verdict == "met" and self.is_fast

    @property
    def verdict(self) -> Verdict | None:
        """How it stands to the goal; None where it could not be made."""
        standing, fresh = self.measured.standing, self.fresh
        is_lucky = standing is not None and standing.verdict == "met" and fresh is not None and fresh.margin < 0
        return None if standing is None else "close" if is_lucky else standing.verdict

    @property
    def refused(self) -> tuple[str, ...]:
        """Names of the operators that the target does not take."""
        return () if self.measured.placing is None else self.measured.placing.refused

    @property
    def samples(self) -> int:
        """That it was judged on; 0 where it could not be made."""
        return 0 if self.measured.standing is None else self.measured.standing.samples

    @property
    def weight_bytes(self) -> int:
        """Of its weights, biases and other constants; 0 where it could not be made."""
        return 0 if self.measured.placing is None else self.measured.placing.weight_bytes

    @property
    def ms(self) -> float | None:
        """What a run takes on the chip."""
        return None if self.measured.placing is None else self.measured.placing.ms

    def is_same(self, other: Trial) -> bool:
        """Whether it is the same model, though more is said."""
        own, its = self.measured.placing, other.measured.placing
        return own is not None and its is not None and own.sha256 == its.sha256

    @property
    def is_fast(self) -> bool:
        """Whether a run takes no longer than it may."""
        return (self.ms or 0.0) <= self.most_ms

    def unwanted(self, plain: Trial) -> set[str]:
        """Operators that the target takes in ``plain`` and not here, and that were not left float on purpose."""
        return {*self.refused} - {*plain.refused} - {*dict(self.candidate.point.raised).get("float", ())}

    @property
    def is_proven(self) -> bool:
        """Whether the hardest samples refute it."""
        return self.measured.standing is not None and self.measured.standing.is_proven

    @property
    def margin(self) -> float:
        """By which the better one is told, on the samples that it was judged on."""
        return -math.inf if self.measured.standing is None else self.measured.standing.margin

    @property
    def common(self) -> float:
        """Likewise, on samples that every trial was judged on."""
        return -math.inf if self.measured.standing is None else self.measured.standing.common

    def is_better(self, other: Trial) -> bool:
        """Whether its margin is larger than that of ``other``: on the same samples, of all of them, or as good as of all."""
        is_alike = self.samples == other.samples or self.is_proven or other.is_proven
        return self.margin > other.margin if is_alike else self.common > other.common

    @property
    def price(self) -> tuple[int, float, float, int, int]:
        """The cheapest first: what the target refuses, time, what is not in 8 bit, bytes of weights, how much is said."""
        point = self.candidate.point
        said = len(point.options) + sum(len(names) for _, names in point.raised)
        wide = math.inf if self.measured.reason else self.measured.cost.total
        return len(self.refused), self.ms or 0.0, wide, self.weight_bytes, said

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        standing, measured = self.measured.standing, self.measured
        ends = (None, None) if standing is None else (standing.margin, standing.low)
        margin, low = (end if end is not None and math.isfinite(end) else None for end in ends)
        return {
            "options": self.candidate.options, "nodes": {p: list(n) for p, n in self.candidate.point.raised},
            "text": self.candidate.text, "why": self.candidate.why, "figure": measured.figure, "margin": margin, "low": low,
            "verdict": self.verdict or "failed", "samples": self.samples,
            "cost": None if measured.reason else measured.cost.to_json(),
            "refused": len(self.refused), "weight_bytes": self.weight_bytes, "ms": self.ms, "units": self.units,
            "reason": measured.reason,
        }  # fmt: skip


def are_told_by_weights(trials: Sequence[Mapping[str, Any]]) -> bool:
    """Whether ``trials``, as JSON has them, multiply alike and differ in the bytes of their weights."""
    made = [trial for trial in trials if trial["cost"] is not None]
    return (
        len({trial["cost"]["share_8_bit"] for trial in made}) == 1
        and len({trial["weight_bytes"] for trial in made}) > 1
    )


def why_lost(trial: Trial, chosen: Trial, plain: Trial) -> str:
    """Why ``chosen`` was taken and not ``trial``, in words; empty of the chosen one."""
    standing = trial.measured.standing
    if trial is chosen:
        return ""
    if standing is None:
        return f"cannot be made: {trial.measured.reason}"
    if unwanted := sorted(trial.unwanted(plain)):
        more = f" and {len(unwanted) - 1} more" if len(unwanted) > 1 else ""
        return f"the target does not take {unwanted[0]}{more} then"
    if not trial.is_fast:
        return f"a run takes {trial.ms:.4g} ms, over {trial.most_ms:.4g}"
    figure = figure_json(standing.figure)
    if standing.is_proven:
        return f"{figure} by the hardest samples: at best {-standing.high:.4g} short of the bound"
    if standing.verdict == "missed":
        return f"{figure}: {-standing.margin:.4g} short of the bound"
    if trial.verdict == "close" and standing.verdict == "met" and trial.fresh is not None:
        return f"{figure}: meets it by chance ({figure_json(trial.fresh.figure)} on others)"
    if standing.verdict == "close":
        told = "one sample says nothing of others"
        told = f"{-standing.low:.4g} short on 5 % of draws" if math.isfinite(standing.low) else told
        return f"{figure}: meets it, but perhaps by chance ({told})"
    if trial.price > chosen.price:
        return "meets it too, and costs more"
    return "meets it too, by less" if trial.margin < chosen.margin else "meets it as well"


def are_alike(trials: Iterable[Trial]) -> bool:
    """Whether their margins can be compared: all are of the same samples, or as good as of all."""
    return len({trial.samples for trial in trials if not trial.is_proven}) <= 1


def best_of(trials: Iterable[Trial], plain: Trial) -> Trial:
    """The cheapest that meets the goal; where none does, what comes nearest of what the target takes as well as the plain one."""
    listed = [trial for trial in trials if trial.measured.standing is not None and not trial.unwanted(plain)]
    met = [trial for trial in listed if trial.is_met]
    if met:
        return min(met, key=lambda trial: (trial.price, -trial.margin, trial.candidate.point.key))
    alike = are_alike(listed)

    def nearest(trial: Trial) -> tuple[object, ...]:
        margin = trial.margin if alike else trial.common
        return trial.is_fast, margin, not trial.is_proven, [-part for part in trial.price]

    return max(listed, key=nearest, default=plain)


def _words(name: str, value: Any) -> str:
    flag = spelled(name)
    if isinstance(value, Mapping):
        return " ".join(f"{flag} {key}={one}" for key, one in value.items())
    if value is True:
        return flag
    return f"--no-{flag[2:]}" if value is False else f"{flag} {value}"

"""What was tried on the way to a goal: options of `quantize`, how they stand to it, what they cost, and why they lost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from qdqtool.io.files.artifacts import sha256_of_json
from qdqtool.search.goal.chance import Standing
from qdqtool.search.measuring import figure_json
from qdqtool.search.precision_cost import Cost


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Options to try.

    Args:
        options: of `quantize`, beside what the user says.
        nodes: precision → names of nodes of the prepared model that have it.
        why: which cause it is to mend, in words.
    """

    options: Mapping[str, Any]
    nodes: Mapping[str, tuple[str, ...]]
    why: str

    @property
    def key(self) -> str:
        """Hex SHA-256 of what it says."""
        return sha256_of_json({"options": dict(self.options), "nodes": {p: list(n) for p, n in self.nodes.items()}})

    @property
    def text(self) -> str:
        """As the command says it: ``--method mse --correct-bias``; nodes by their number."""
        words = [_words(name, value) for name, value in self.options.items()]
        words += [
            f"--{precision} on {len(names)} node{'s' * (len(names) > 1)}"
            for precision, names in self.nodes.items()
            if names
        ]
        return " ".join(words) or "as it is said"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A candidate that was tried.

    Args:
        candidate: the candidate.
        standing: to the goal; None where it could not be made.
        cost: what is not in 8 bit.
        refused: operators that the target does not take; 0 without a target.
        units: what it took, in full quantizations.
        reason: why it could not be made; empty where it could.
    """

    candidate: Candidate
    standing: Standing | None
    cost: Cost | None
    refused: int
    units: float
    reason: str = ""

    @property
    def is_met(self) -> bool:
        """Whether the goal is met, and not by chance."""
        return self.standing is not None and self.standing.verdict == "met"

    @property
    def unwanted(self) -> int:
        """Operators that the target does not take and that were not left float on purpose."""
        return self.refused - len(self.candidate.nodes.get("float", ()))

    @property
    def margin(self) -> float:
        """By which the better one is told."""
        return -math.inf if self.standing is None else self.standing.margin

    @property
    def price(self) -> tuple[int, float, int]:
        """The cheapest first: what the target refuses, what is not in 8 bit, how much is said."""
        said = len(self.candidate.options) + sum(map(len, self.candidate.nodes.values()))
        return self.refused, math.inf if self.cost is None else self.cost.total, said

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; inverse of `from_json`."""
        found = self.standing
        return {
            "options": dict(self.candidate.options), "nodes": {p: list(n) for p, n in self.candidate.nodes.items()},
            "why": self.candidate.why, "figure": None if found is None else found.figure,
            "margin": None if found is None else _finite(found.margin), "low": None if found is None else _finite(found.low),
            "cost": None if self.cost is None else self.cost.to_json(), "refused": self.refused, "units": self.units,
            "reason": self.reason,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trial:
        """Read the form that `to_json` writes."""
        candidate = Candidate(
            options=dict(data["options"]), nodes={p: tuple(n) for p, n in data["nodes"].items()}, why=str(data["why"])
        )
        figure = data["figure"]
        found = None if data["reason"] else Standing(
            figure=None if figure is None else float(figure), margin=_number(data["margin"]), low=_number(data["low"])
        )  # fmt: skip
        return cls(
            candidate=candidate, standing=found, cost=None if data["cost"] is None else Cost.from_json(data["cost"]),
            refused=int(data["refused"]), units=float(data["units"]), reason=str(data["reason"]),
        )  # fmt: skip


def why_lost(trial: Trial, chosen: Trial, plain: Trial) -> str:
    """Why ``chosen`` was taken and not ``trial``, in words; empty of the chosen one."""
    if trial is chosen:
        return ""
    if trial.standing is None:
        return f"cannot be made: {trial.reason}"
    if trial.unwanted > plain.unwanted:
        return f"the target refuses {trial.unwanted - plain.unwanted} more operators"
    figure = figure_json(trial.standing.figure)
    if trial.standing.verdict == "missed":
        return f"{figure}: {-trial.standing.margin:.4g} below the bound"
    if trial.standing.verdict == "close":
        return f"{figure}: above the bound, but perhaps by chance ({-trial.standing.low:.4g} below on 5 % of draws)"
    if trial.price > chosen.price:
        return "meets it too, and costs more"
    return "meets it too, by less" if trial.margin < chosen.margin else "meets it as well"


def best_of(trials: Iterable[Trial], plain: Trial) -> Trial:
    """The cheapest that meets the goal; where none does, what comes nearest of what the target takes as well as the plain one."""
    listed = [trial for trial in trials if trial.standing is not None and trial.unwanted <= plain.unwanted]
    met = [trial for trial in listed if trial.is_met]
    if met:
        return min(met, key=lambda trial: (trial.price, -trial.margin, trial.candidate.key))
    return max(listed, key=lambda trial: (trial.margin, [-part for part in trial.price]), default=plain)


def _words(name: str, value: Any) -> str:
    flag = f"--{name.replace('_', '-')}"
    if value is True:
        return flag
    return f"--no-{flag[2:]}" if value is False else f"{flag} {value}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.inf if value is None else float(value)

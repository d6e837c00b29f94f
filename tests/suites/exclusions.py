"""Failures that are known and are not ours, from ``exclusions.toml``; each must go on failing, and in the same way."""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.suites.harness import Examination

FILE = Path(__file__).with_name("exclusions.toml")


@dataclass(frozen=True)
class Exclusion:
    """One entry of the file.

    Args:
        cases: globs on names of cases.
        steps: globs on texts of steps.
        failure: words that the failure holds, so that another one is not hidden.
        reason: why this is not our fault.
    """

    cases: tuple[str, ...]
    steps: tuple[str, ...]
    failure: str
    reason: str

    def covers(self, case: str, step: str) -> bool:
        """Whether it speaks of this case in this step."""
        return any(matches(case, glob) for glob in self.cases) and any(matches(step, glob) for glob in self.steps)


def matches(text: str, glob: str) -> bool:
    """``*`` and ``?`` only: brackets are part of pipeline texts."""
    return fnmatch.fnmatchcase(text, glob.replace("[", "[[]"))


def exclusions() -> list[Exclusion]:
    """All entries, in the order of the file."""
    tables = tomllib.loads(FILE.read_text(encoding="utf-8")).get("exclude", [])
    return [Exclusion(tuple(t["cases"]), tuple(t["steps"]), t["failure"], t["reason"]) for t in tables]


def unexcused(examinations: Iterable[Examination], step: str, known: list[Exclusion]) -> list[str]:
    """Failures in ``step`` that no exclusion speaks of, one line each."""
    return [
        f"{e.case}: {e.results[step].detail}"
        for e in examinations
        if step in e.results and e.results[step].status == "failed" and not any(x.covers(e.case, step) for x in known)
    ]


def complaints(exclusion: Exclusion, examinations: Iterable[Examination]) -> Iterator[str]:
    """Results that an exclusion speaks of which do not fail, or fail otherwise."""
    for examination in examinations:
        for step, result in examination.results.items():
            if not exclusion.covers(examination.case, step):
                continue
            if result.status != "failed":
                yield f"{examination.case} in {step} is no longer a failure ({result.status}): take it out"
            elif exclusion.failure not in result.detail:
                yield f"{examination.case} in {step} fails otherwise: {result.detail}"


def idle(exclusion: Exclusion, cases: Sequence[str], steps: Sequence[str]) -> Iterator[str]:
    """Globs of an exclusion that match no name of a case, or no text of a step."""
    for globs, texts in ((exclusion.cases, cases), (exclusion.steps, steps)):
        for glob in globs:
            if not any(matches(text, glob) for text in texts):
                yield f"{glob!r} matches nothing: take it out"

"""Whether a part of a model fails: by a command of the user's, by what onnxruntime makes of it, or by its SQNR to the floats.

What runs it is a process of its own, with a limit of time; what takes longer does not count as failing."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import field
from typing import Protocol

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.reduction.prober import Prober, end

#: Stands for the file of the part in a command; and the variables of its environment that name it and its feed.
PLACE = "{}"
MODEL_VARIABLE, FEEDS_VARIABLE = "QDQTOOL_MODEL", "QDQTOOL_FEEDS"
#: Characters of what a command said last that are shown.
MOST_SAID = 200


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A part in files.

    Args:
        model: the part.
        feeds: arrays by the names of its inputs (.npz); None where nobody knows any.
        reference: the same part of the float model; None without one.
    """

    model: str
    feeds: str | None = None
    reference: str | None = None


class Check(Protocol):
    """Whether a part fails."""

    def __call__(self, candidate: Candidate) -> str | None:
        """In words how ``candidate`` fails; None where it does not.

        Raises:
            TimeoutError: nobody knows: it takes too long.
        """


@dataclass(frozen=True, kw_only=True)
class CommandCheck:
    """A command of the user's: it fails by an exit status that is not 0.

    Args:
        command: for a shell; ``{}`` in it is the file of the part, which the environment names too.
        timeout: seconds that it may take.
        codes: the statuses that count as failing; empty for all but 0.
        text: what the output must hold as well, a regular expression.
    """

    command: str
    timeout: float
    codes: Sequence[int] = ()
    text: str = ""

    def __post_init__(self) -> None:
        try:
            re.compile(self.text)
        except re.error as error:
            raise UsageError(f"is no regular expression ({error})", where=f"--fail-text {self.text}") from error

    @property
    def warnings(self) -> list[str]:
        """That the command may not look at the part at all."""
        if PLACE in self.command or MODEL_VARIABLE in self.command:
            return []
        return [
            f"--check does not say where the file of the part goes ({PLACE}, or ${MODEL_VARIABLE}): does the command read it?"
        ]

    def __call__(self, candidate: Candidate) -> str | None:
        """The exit status, where it counts, and what was said last.

        Raises:
            TimeoutError: it takes too long.
        """
        feeds = {FEEDS_VARIABLE: candidate.feeds} if candidate.feeds is not None else {}
        with subprocess.Popen(
            self.command.replace(PLACE, shlex.quote(candidate.model)), shell=True, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, MODEL_VARIABLE: candidate.model, **feeds}, process_group=0 if os.name == "posix" else None,
        ) as process:  # fmt: skip
            try:
                said, _ = process.communicate(timeout=self.timeout)
            except subprocess.TimeoutExpired:
                raise TimeoutError from None
            finally:
                end(process)
        counts = process.returncode in self.codes if self.codes else process.returncode != 0
        if not counts or not re.search(self.text, said):
            return None
        last = "".join(said.strip().splitlines()[-1:])[:MOST_SAID]
        return f"exit status {process.returncode}{': ' if last else ''}{last}"


@dataclass(kw_only=True)
class CrashCheck:
    """onnxruntime does not load or not run the part, or dies of it, in the way in which it failed first.

    Args:
        prober: runs it.
        optimize: let onnxruntime optimize the graph first.
        first: how it failed first; whatever else a part fails by is another fault.
    """

    prober: Prober
    optimize: bool = False
    first: str | None = field(default=None, init=False)

    def __call__(self, candidate: Candidate) -> str | None:
        """The message, or the signal.

        Raises:
            TimeoutError: it takes too long.
        """
        found = self.prober.ask("run", model=candidate.model, feeds=candidate.feeds, optimize=self.optimize)
        kind = found.get("failure")
        self.first = self.first or kind
        return found["message"] if kind is not None and kind == self.first else None


@dataclass(frozen=True, kw_only=True)
class SqnrCheck:
    """An output of the part, on what the float model computes at its inputs, is below an SQNR to the float model.

    Args:
        prober: runs it.
        least: the SQNR in dB.
    """

    prober: Prober
    least: float

    def __call__(self, candidate: Candidate) -> str | None:
        """The SQNR of the worst output.

        Raises:
            TimeoutError: it takes too long.
        """
        found = self.prober.ask("sqnr", model=candidate.model, feeds=candidate.feeds, reference=candidate.reference)
        figure = found.get("sqnr_db")
        return f"SQNR {figure:.1f} dB" if figure is not None and figure < self.least else None

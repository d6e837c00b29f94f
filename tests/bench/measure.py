"""Measure whole processes: wall time, CPU time and peak RSS of a command, and of several in turn."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

#: The commands of the interpreter that runs the benchmarks.
PYTHON = sys.executable
QDQTOOL = os.path.join(os.path.dirname(sys.executable), "qdqtool")

_compiled = tempfile.TemporaryDirectory()
#: Environment of what is measured: modules are compiled once, as in an installed package, and not into the source tree.
ENVIRONMENT = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": _compiled.name}


@dataclass(frozen=True)
class Run:
    """One run of a command.

    Args:
        wall: seconds.
        cpu: seconds, user + system, of the process and the children it waited for.
        peak_rss: most resident memory in bytes; at least what this process has, which the kernel hands down.
        output: what it printed.
    """

    wall: float
    cpu: float
    peak_rss: int
    output: str = ""


@dataclass(frozen=True)
class Result:
    """One line of the report.

    Args:
        name: what was measured.
        value: the figure.
        unit: its unit; ``×`` for ratios.
        bound: what it may be at most; None for a figure to compare with.
        detail: the figures behind it.
    """

    name: str
    value: float
    unit: str
    bound: float | None
    detail: str

    @property
    def holds(self) -> bool:
        """Whether the bound holds."""
        return self.bound is None or self.value <= self.bound

    def __str__(self) -> str:
        verdict = "" if self.bound is None else f"(at most {self.bound:.4g}) {'holds' if self.holds else 'BROKEN'}"
        return f"{self.name:45} {self.value:8.2f} {self.unit:2} {verdict:22}  {self.detail}".rstrip()


def run(command: Sequence[str]) -> Run:
    """Run ``command`` to its end; what it says is shown when it fails, which raises."""
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as printed:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=printed, stderr=said, env=ENVIRONMENT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - start
        said.seek(0)
        printed.seek(0)
        if process.returncode:
            tail = said.read()[-2000:]
            raise RuntimeError(f"exit {process.returncode}: {' '.join(command)[:500]}\n{tail}")
        return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, printed.read())


def progress(text: str) -> None:
    """Print the measurement that starts now."""
    print(f"  … {text}", flush=True)


def in_turn(*commands: Sequence[str], rounds: int) -> list[Run]:
    """Run ``commands`` in turn, after one run of each to warm up.

    Returns:
        Medians of each command; the output is that of its last run.
    """
    for command in commands:
        run(command)
    columns = zip(*([run(command) for command in commands] for _ in range(rounds)), strict=True)
    return [median(column) for column in columns]


def median(runs: Sequence[Run]) -> Run:
    """Medians of wall time, CPU time and memory, each by itself."""
    wall, cpu, peak = (
        statistics.median(values) for values in zip(*((r.wall, r.cpu, r.peak_rss) for r in runs), strict=True)
    )
    return Run(wall, cpu, int(peak), runs[-1].output)


def shown(measured: Run) -> str:
    """All figures of ``measured``."""
    return f"{measured.wall:.2f} s, {measured.cpu:.2f} CPU s, {measured.peak_rss / 2**20:.0f} MB"

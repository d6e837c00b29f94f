"""Measuring whole processes: wall time, CPU time and peak RSS of a command, and the paired ratio of two."""

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


def ratio(name: str, tested: Sequence[str], baseline: Sequence[str], *, bound: float, repeats: int = 15) -> Result:
    """Ratio of wall times, ``tested`` ÷ ``baseline``: the median over runs made in turn, after one run of each to warm up."""
    run(tested)
    run(baseline)
    pairs = [(run(tested).wall, run(baseline).wall) for _ in range(repeats)]
    first, second = (statistics.median(times) for times in zip(*pairs, strict=True))
    detail = f"{first * 1000:.0f} ms against {second * 1000:.0f} ms, medians of {repeats}"
    return Result(name, first / second, "×", bound, detail)

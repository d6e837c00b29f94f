"""Measuring whole processes: wall time, CPU time and peak RSS of a command, and the paired ratio of two."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

#: The commands of the interpreter that runs the benchmarks.
PYTHON = sys.executable
QDQTOOL = os.path.join(os.path.dirname(sys.executable), "qdqtool")


@dataclass(frozen=True)
class Run:
    """One run of a command: wall and CPU (user + system) seconds, peak resident memory in bytes."""

    wall: float
    cpu: float
    peak_rss: int


@dataclass(frozen=True)
class Result:
    """One line of the report.

    Args:
        name: what was measured.
        value: the figure.
        unit: its unit; ``×`` for ratios.
        bound: what it may be at most.
        detail: the figures behind it.
    """

    name: str
    value: float
    unit: str
    bound: float
    detail: str

    @property
    def holds(self) -> bool:
        """Whether the bound holds."""
        return self.value <= self.bound


def run(command: Sequence[str]) -> Run:
    """Run ``command`` to its end; its output is thrown away, a failure raises."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - start
    if process.returncode:
        raise RuntimeError(f"exit {process.returncode}: {' '.join(command)}")
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def ratio(name: str, tested: Sequence[str], baseline: Sequence[str], *, bound: float, repeats: int = 15) -> Result:
    """Ratio of wall times, ``tested`` ÷ ``baseline``: the median over runs made in turn, after one run of each to warm up."""
    run(tested)
    run(baseline)
    pairs = [(run(tested).wall, run(baseline).wall) for _ in range(repeats)]
    first, second = (statistics.median(times) for times in zip(*pairs, strict=True))
    detail = f"{first * 1000:.0f} ms against {second * 1000:.0f} ms, medians of {repeats}"
    return Result(name, first / second, "×", bound, detail)

"""One run of the benchmarks as a file: the figures of each, with date, commit and machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.bench.measure import Result

ROOT = Path(__file__).parents[2]
#: The file of the last run of all benchmarks.
LAST = ROOT / "build" / "bench.json"
#: Packages whose versions belong to a figure.
PACKAGES = ("onnxruntime", "onnx", "onnx-ir", "numpy")
#: Instruction sets that figures depend on, as Linux calls them.
FLAGS = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "sha_ni")


@dataclass(frozen=True)
class Measured:
    """Figures of one benchmark.

    Args:
        results: its lines.
        seconds: wall time, a second try included.
        tries: 2 where a bound was broken at first.
        broken: names of the results that broke their bound in each try.
        error: why it gave no results; empty where it did.
    """

    results: tuple[Result, ...]
    seconds: float
    tries: int = 1
    broken: tuple[str, ...] = ()
    error: str = ""

    @property
    def holds(self) -> bool:
        """Whether it ran, and every bound holds."""
        return not self.broken and not self.error


@dataclass
class BenchRun:
    """A run of benchmarks.

    Args:
        date: day of its start, UTC.
        commit: of the tree; with ``+`` behind it where files differ from it.
        machine: what it ran on, see `machine`.
        benches: name → figures, in the order in which they ran.
    """

    date: str
    commit: str
    machine: Mapping[str, Any]
    benches: dict[str, Measured] = field(default_factory=dict)

    @classmethod
    def begin(cls) -> BenchRun:
        """A run that starts here and now."""
        return cls(datetime.now(UTC).date().isoformat(), _commit(), machine())

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_run(path: Path) -> BenchRun:
    """The run in a file that `BenchRun.write` wrote."""
    data = json.loads(path.read_text(encoding="utf-8"))
    benches = {
        name: Measured(
            **{
                **one,
                "results": tuple(Result(**each) for each in one["results"]),
                "broken": tuple(one["broken"]),
            }
        )
        for name, one in data.pop("benches").items()
    }
    return BenchRun(**data, benches=benches)


def machine() -> dict[str, Any]:
    """Processor, cores that may be used, memory in GiB, instruction sets, versions of the interpreter and of packages."""
    info = _processor()
    have = set(info.get("flags", "").split())
    return {
        "processor": info.get("model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "flags": [flag for flag in FLAGS if flag in have],
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
    }


def _processor() -> dict[str, str]:
    """Keys of the first processor in /proc/cpuinfo; none where there is no such file."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _commit() -> str:
    """The commit of the tree, with ``+`` where it was changed since; ``unknown`` outside of a clone."""
    head = _git("rev-parse", "HEAD")
    if not head:
        return "unknown"
    return head[:8] + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""

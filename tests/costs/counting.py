"""Count what commands cost, in processes of their own.

Counts of own modules, own calls, verifications and files depend on the product alone. Counts that include libraries hold for the
versions that were counted with (`versions`)."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

from qdq_passes.pipeline.hooks import VERIFY_EACH

from tests.architecture.places import ROOT

#: Counts of the last recording: `python -m tests.costs` writes it.
RECORD = Path(__file__).with_name("counts.json")
#: Packages whose modules and calls the counts with libraries include.
LIBRARIES = ("click", "ml_dtypes", "numpy", "onnx", "onnx-ir", "onnxruntime", "onnxscript", "rich")
#: Part of a count of bytes or of library calls within which two runs of the same code may differ: reports hold times and paths.
NOISE = 0.01


@dataclass(frozen=True)
class Modules:
    """Modules in a process after a command.

    Args:
        own: number of modules of qdqtool and qdq_passes.
        total: number of all modules.
        packages: names of third-party packages.
    """

    own: int
    total: int
    packages: list[str]


@dataclass(frozen=True)
class Work:
    """Work of a command that ran once before in the same process.

    Args:
        own_calls: calls of Python functions of the product, in the main thread.
        total_calls: calls of all Python functions, in the main thread.
        verifications: whole-graph verifications.
        files: files and folders opened by Python, without source and compiled modules.
        bytes: bytes that the process read by system calls. Mapped pages do not count.
    """

    own_calls: int
    total_calls: int
    verifications: int
    files: int
    bytes: int


@dataclass(frozen=True)
class Counts:
    """All counts.

    Args:
        versions: version of Python and of each library.
        modules: command → its modules.
        work: command → its work on the digits network.
        per_node: command → own calls that one more node of a chain costs.
    """

    versions: dict[str, str] = field(default_factory=dict)
    modules: dict[str, Modules] = field(default_factory=dict)
    work: dict[str, Work] = field(default_factory=dict)
    per_node: dict[str, float] = field(default_factory=dict)

    def write(self, path: Path = RECORD) -> None:
        """Write the record."""
        path.write_text(json.dumps(asdict(self), indent=1, sort_keys=True) + "\n", encoding="utf-8")


def recorded(path: Path = RECORD) -> Counts:
    """Return the record."""
    found = json.loads(path.read_text(encoding="utf-8"))
    return Counts(
        versions=found["versions"],
        modules={name: Modules(**row) for name, row in found["modules"].items()},
        work={name: Work(**row) for name, row in found["work"].items()},
        per_node=found["per_node"],
    )


def versions() -> dict[str, str]:
    """Return the versions that counts with libraries depend on."""
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in LIBRARIES}}


def child(module: str, *arguments: str, folder: Path) -> object:
    """Run ``module`` of this package in ``folder`` and return the JSON document that it prints last.

    The hash seed is fixed: the order of sets decides how often some functions run."""
    env = {key: value for key, value in os.environ.items() if key != VERIFY_EACH}  # commands as users run them
    env |= {"PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "passes")))}
    done = subprocess.run(
        [sys.executable, "-m", f"tests.costs.{module}", *arguments],
        cwd=folder, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"tests.costs.{module} {' '.join(arguments)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])

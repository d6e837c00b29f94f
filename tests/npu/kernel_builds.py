"""Test programs in C++ (tests/npu/cpp) linked with kernels: with the objects of the installed library while they are up to date, else
compiled as the library is."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.cases.waiting import PATIENCE
from tests.dial import sized

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "qdqtool" / "npu" / "ep"
PROGRAMS = Path(__file__).parent / "cpp"
#: The options of qdqtool/npu/ep/CMakeLists.txt; a warning is an error here. A program that runs a fraction of its rounds takes longer to optimize than to run.
OPTIONS = ["-std=c++17", "-ffp-contract=off", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]

#: What every kernel needs: the table of operators and what its rows name.
ALWAYS = ["arguments", "isa", "kernel", "operators", "shapes"]


def _run(command: list[str]) -> str:
    """What the command prints.

    Raises:
        AssertionError: it failed; with what it said.
    """
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


def build(program: str, kernels: Iterable[str], folder: Path) -> Path:
    """The executable of ``tests/npu/cpp/<program>.cc`` and the library's ``<name>.cc``; objects in ``folder`` that are there are kept."""
    compiler = os.environ.get("CXX", "c++")

    def compile_one(source: Path) -> Path:
        target = folder / f"{source.stem}.o"
        if not target.exists():
            level = sized("-O1", "-O0") if source.parent == PROGRAMS else "-O2"
            _run([compiler, *OPTIONS, level, f"-I{LIBRARY}", "-c", str(source), "-o", str(target)])
        return target

    main, installed = PROGRAMS / f"{program}.cc", _installed()
    parts = {source.stem: source for source in LIBRARY.rglob("*.cc")}
    sources = [main] if installed else [main, *(parts[name] for name in [*ALWAYS, *kernels])]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = [*pool.map(compile_one, sources), *installed]
    executable = folder / program
    _run([compiler, *map(str, objects), "-pthread", "-o", str(executable)])
    return executable


def _installed() -> list[Path]:
    """The objects of the library that the installation left behind, each of many sources; none when one is older than any source."""
    objects = sorted(ROOT.glob("build/py3-none-*/CMakeFiles/*.dir/Unity/*.o"))
    newest = max(path.stat().st_mtime for path in LIBRARY.rglob("*.[chi]*"))
    return objects if all(path.stat().st_mtime > newest for path in objects) else []


def run(executable: Path, divisor: int = 1) -> str:
    """What the program prints; it must end with 0. Of its random cases the part runs one in ``divisor``."""
    return _run([str(executable), str(sized(1, divisor))])

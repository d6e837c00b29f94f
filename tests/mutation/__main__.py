"""Which mutants of the product the tests kill: ``python -m tests.mutation --map FILE --count 60 --seed S``.

The map, made by a run of the part when it is not there, says which tests call which functions. Each mutant is tried in a copy of the
tree: by the tests of the part that reach its function, those that reach little first; what they let live by all cases of those of them
that the dial thins out (`is_dialed`): the others have run as they are. Tests of a file share caches: the other tests of a file that
reaches it come last. C++ is built anew. What a test says that fails without the mutant too does not count: it is left out."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from queue import SimpleQueue

from qdqtool.npu.library import NAME, library_path
from qdqtool.npu.library import VARIABLE as LIBRARY
from tests import recent_failures
from tests.architecture.places import ROOT
from tests.mutation import only, reach
from tests.mutation.mutants import Mutant, draw

#: A file with more tests than this is not run as a whole for the sake of its caches.
MANY = 300
#: What calls C++.
DOOR = "qdqtool/npu/library.py"
#: Of an editable installation: it finds the packages of the repository before those of the copy.
SITE = "import sys\nsys.meta_path[:] = [f for f in sys.meta_path if 'Redirecting' not in type(f).__name__]\n"
COPIED = ("docs", "passes", "qdqtool", "sample_models", "tests", "build", ".git")
Map = dict[str, list[str]]


def make_map(workers: str, seed: int) -> Map:
    """Run the part that ``seed`` draws; test → functions that it calls."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["-q", "-m", "not extra", "-n", workers, "--dist", "worksteal", "-p", reach.__name__]
        options += ["--dial-seed", str(seed)]
        env = {**os.environ, reach.VARIABLE: folder}
        subprocess.run([sys.executable, "-m", "pytest", *options], cwd=ROOT, env=env, stdout=sys.stderr, check=True)
        rows = [json.loads(row) for file in Path(folder).glob("*.jsonl") for row in file.read_text().splitlines()]
    return dict(rows)


def tests_of(mutant: Mutant, reached: Map) -> list[str]:
    """Tests that reach it, those that reach little first, then the others of their files."""
    functions = {function for found in reached.values() for function in found}
    if mutant.function is not None:
        wanted = {f"{mutant.file}:{mutant.function}"} & functions
    else:
        files = readers(mutant.file) if mutant.file.endswith(".py") else {DOOR}
        wanted = {function for function in functions if function.rpartition(":")[0] in files}
    first = [test for test, found in reached.items() if not wanted.isdisjoint(found)]
    if not mutant.file.endswith(".py"):
        first += [test for test in reached if "test_kernels" in test]
    sizes = Counter(map(file_of, reached))
    files, known = set(map(file_of, first)), set(first)
    rest = [test for test in reached if file_of(test) in files and sizes[file_of(test)] <= MANY and test not in known]
    return [*sorted(first, key=lambda test: len(reached[test])), *rest]


def file_of(test: str) -> str:
    """The file of a test."""
    return test.partition("::")[0]


@cache
def is_dialed(file: Path) -> bool:
    """Whether tests of ``file`` do less in the part: it asks the dial, or a module of tests does that it imports from."""
    text = file.read_text(encoding="utf-8")
    if ".product(" in text or "from tests.dial import" in text:
        return True
    used = re.findall(r"^from (tests\.[\w.]+) import|^from (tests[\w.]*) import (\w+)", text, re.M)
    helpers = {
        name.replace(".", "/") + ".py"
        for one, parent, child in used
        for name in (one, f"{parent}.{child}")
        if name != "."
    }
    return any(is_dialed(ROOT / name) for name in helpers if (ROOT / name).exists() and ROOT / name != file)


def readers(file: str) -> set[str]:
    """A file of Python, and those that import from it: they read its constants."""
    module = file.removeprefix("passes/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    parent, _, name = module.rpartition(".")
    line = re.compile(
        rf"^\s*(from {re.escape(module)} import|import {re.escape(module)}\b|from {re.escape(parent)} import .*\b{name}\b)",
        re.M,
    )
    return {file, *(other for other in product("python") if line.search((ROOT / other).read_text(encoding="utf-8")))}


class Scratch:
    """A copy of the tree to mutate."""

    def __init__(self, root: Path, limit: float) -> None:
        self.root, self.limit = root, limit
        for name in COPIED:
            if (ROOT / name).exists():
                shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "npu/sanitized"))
        for name in ("pyproject.toml", "README.md", "Makefile", ".gitignore"):
            shutil.copy2(ROOT / name, root / name)
        (root / "site").mkdir()
        (root / "site" / "sitecustomize.py").write_text(SITE, encoding="utf-8")
        path = os.pathsep.join(str(root / each) for each in ("site", "", "passes"))
        self.env = {**os.environ, "PYTHONPATH": path, LIBRARY: str(library_path()), "PYTHONDONTWRITEBYTECODE": "1"}
        self.unfit: set[str] = set()

    def build(self) -> bool:
        """Build the library of the copy; whether it compiles."""
        place = self.root / "build" / "mutant"
        source = self.root / "qdqtool" / "npu" / "ep"
        for command in (["cmake", "-S", source, "-B", place], ["cmake", "--build", place, "--parallel"]):
            if subprocess.run(command, capture_output=True, check=False).returncode:
                return False
        self.env[LIBRARY] = str(place / NAME)
        return True

    @contextmanager
    def holding(self, mutant: Mutant) -> Iterator[bool]:
        """The copy has ``mutant``, and for a while its library; whether that compiles."""
        path = self.root / mutant.file
        source = path.read_bytes()
        path.write_bytes(mutant.applied(source))
        try:
            yield path.suffix == ".py" or self.build()
        finally:
            path.write_bytes(source)
            self.env[LIBRARY] = str(library_path())

    def failing(self, tests: list[str], *options: str) -> tuple[str, str]:
        """``killed``, ``survived`` or ``unfinished``; what pytest says of the first of ``tests`` that fails."""
        if not tests:
            return "survived", ""
        (self.root / "only.txt").write_text("\n".join(tests) + "\n", encoding="utf-8")
        files = sorted(set(map(file_of, tests)))
        options = ("-q", "-x", "--no-header", "-m", "not extra", "-p", only.__name__, *options)
        options = ("-p", f"no:{recent_failures.__name__}", *options)  # a mutant's failures are no recent failures
        command = [sys.executable, "-m", "pytest", *options, *files]
        env = {**self.env, only.VARIABLE: str(self.root / "only.txt")}
        try:
            done = subprocess.run(
                command, cwd=self.root, env=env, capture_output=True, text=True, timeout=self.limit, check=False
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "unfinished", ""
        if done.returncode in (0, 5):
            return "survived", ""
        lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return "killed", lines[0] if lines else done.stdout[-150:]


def judge(mutant: Mutant, scratch: Scratch, reached: Map, seed: int, *, whole: bool) -> tuple[str, str]:
    """``killed``, ``survived`` or ``unfinished`` by the part, or by the whole; ``invalid`` does not compile; and by which test."""
    tests, options = tests_of(mutant, reached), ("--dial-seed", str(seed))
    if whole:
        dialed = [test for test in tests if is_dialed(ROOT / file_of(test))]
        tests, options = list(dict.fromkeys(test.partition("[")[0] for test in dialed)), ("--whole",)
    while True:
        with scratch.holding(mutant) as compiles:
            if not compiles:
                return "invalid", ""
            verdict, detail = scratch.failing([test for test in tests if test not in scratch.unfit], *options)
        named = max((test for test in tests if detail.partition(" ")[2].startswith(test)), key=len, default=None)
        if named is None or scratch.failing([named], *options)[0] == "survived":
            return verdict, detail[:150]
        scratch.unfit.add(named)


def product(languages: str) -> list[str]:
    """The files of the product that are mutated."""
    kinds = {"python": ("*.py",), "cpp": ("*.cc", "*.hpp"), "both": ("*.py", "*.cc", "*.hpp")}[languages]
    found = [file for folder in ("passes", "qdqtool") for kind in kinds for file in (ROOT / folder).rglob(kind)]
    return sorted(file.relative_to(ROOT).as_posix() for file in found)


def main() -> int:
    """Draw mutants, try each, print one line for each and the counts."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("--map", type=Path, required=True, help="JSON; made when it is not there")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--languages", choices=("python", "cpp", "both"), default="both")
    parser.add_argument(
        "--dial-seed", type=int, default=recent_failures.today(), help="draws the part; that of the map"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants tried at a time")
    parser.add_argument("--limit", type=float, default=1800, help="seconds of one run of pytest")
    asked = parser.parse_args()
    if not asked.map.exists():
        asked.map.write_text(json.dumps(make_map(str(asked.jobs), asked.dial_seed)), encoding="utf-8")
    reached: Map = json.loads(asked.map.read_text(encoding="utf-8"))
    mutants = draw(ROOT, product(asked.languages), asked.count, asked.seed)
    with tempfile.TemporaryDirectory() as folder:
        copies: SimpleQueue[Scratch] = SimpleQueue()
        for number in range(asked.jobs):
            copies.put(Scratch(Path(folder) / str(number), asked.limit))
        part = judged(mutants, reached, copies, asked.jobs, asked.dial_seed, whole=False)
        left = [mutant for mutant, verdict in part.items() if verdict == "survived"]
        whole = judged(left, reached, copies, asked.jobs, asked.dial_seed, whole=True)
    killed, more = (list(found.values()).count("killed") for found in (part, whole))
    print(f"of {killed + more} that the whole kills the part kills {killed}: {killed / max(killed + more, 1):.0%}")
    return 0


def judged(
    mutants: Sequence[Mutant], reached: Map, copies: SimpleQueue[Scratch], jobs: int, seed: int, *, whole: bool
) -> dict[Mutant, str]:
    """Try ``mutants``, ``jobs`` at a time, each in a copy of its own; print a line for each and the counts."""

    def one(mutant: Mutant) -> str:
        copy, start = copies.get(), time.monotonic()
        try:
            verdict, detail = judge(mutant, copy, reached, seed, whole=whole)
        finally:
            copies.put(copy)
        said = mutant.describe((ROOT / mutant.file).read_bytes())
        by = "whole" if whole else "part"
        print(f"| {by} | {verdict} | {said} | {detail} | {time.monotonic() - start:.0f} s |", flush=True)
        return verdict

    with ThreadPoolExecutor(jobs) as pool:
        found = dict(zip(mutants, pool.map(one, mutants), strict=True))
    counts = Counter(found.values())
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())), flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())

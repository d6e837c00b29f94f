"""CPU seconds of every test and of the collection of every file: ``python -m tests.cpu_seconds [options of pytest]`` runs the tests
and prints the table of docs/testing.md.

Children count when they have been waited for. As a plugin (``-p tests.cpu_seconds``) it writes one JSON line a test into the folder
that ``CPU_SECONDS`` names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

VARIABLE = "CPU_SECONDS"
#: Files in the table; the others are one row.
SHOWN = 25


def _used() -> float:
    return sum(os.times()[:4])


def _write(file: str, kind: str, start: float) -> None:
    path = Path(os.environ[VARIABLE]) / f"{os.getpid()}.jsonl"
    with path.open("a", encoding="utf-8") as rows:
        rows.write(json.dumps({"file": file, "kind": kind, "cpu": round(_used() - start, 3)}) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    start = _used()
    done = yield
    _write(item.location[0], "test", start)
    return done  # type: ignore[return-value]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    start = _used()
    done = yield
    if isinstance(collector, pytest.Module):
        _write(collector.nodeid, "collection", start)
    return done  # type: ignore[return-value]


def table(folder: Path) -> str:
    """The files that take most, in Markdown; collection is of one process where several collected."""
    counts, tests, collection = Counter[str](), Counter[str](), Counter[str]()
    files = sorted(folder.glob("*.jsonl"))
    for file in files:
        collected = Counter[str]()
        for row in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            (tests if row["kind"] == "test" else collected)[row["file"]] += row["cpu"]
            counts[row["file"]] += row["kind"] == "test"
        collection |= collected
    order = [name for name, _ in tests.most_common()]
    rows = [(f"`{name}`", counts[name], tests[name], collection[name]) for name in order[:SHOWN]]
    rest = order[SHOWN:]
    for name, of in ((f"{len(rest)} others", rest), ("**all**", order)):
        rows.append((name, *(sum(by[file] for file in of) for by in (counts, tests, collection))))
    lines = [f"| {name} | {count:,} | {cpu:,.1f} | {import_:.1f} |" for name, count, cpu, import_ in rows]
    return "\n".join(["| file | tests | CPU s | its collection |", "|---|---:|---:|---:|", *lines])


def main(arguments: list[str]) -> int:
    """Run pytest with ``arguments``, and print the table of what ran."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", "-q", "-m", "not extra", "-p", "tests.cpu_seconds", *arguments]
        done = subprocess.run(
            command, env={**os.environ, VARIABLE: folder, "PYTHONDONTWRITEBYTECODE": ""}, stdout=sys.stderr, check=False
        )
        print(table(Path(folder)))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

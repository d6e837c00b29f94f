"""No test reads a clock: a time depends on what else the machine does. Sizes and operations are counted; times stand in tests/bench.

`CLOCKS` are looked for in the text of a file, so that scripts in strings, also of JavaScript, are looked at too."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.architecture.places import ROOT, python_files, short

#: Names that read a clock, in Python and in a browser.
CLOCKS = re.compile(
    r"\b(?:perf_counter|monotonic|process_time|thread_time|clock_gettime|os\.times|ru_utime|ru_stime|timeit|pytest_benchmark"
    r"|time\.time|from time import|datetime\.(?:datetime\.)?(?:now|utcnow|today)|date\.today"
    r"|performance\.(?:now|timing|mark|measure|getEntries\w*)|Date\.now|new Date\(\s*\)|console\.time\w*)"
)
#: Names of measured times, as objects and dictionaries of the product hold them.
TIMES = {"seconds", "elapsed", "duration", "wall_s", "cpu_s", "wall_seconds", "cpu_seconds", "took"}
#: Files and folders that may read a clock, and the reason. None of them is a test.
ALLOWED = {
    "tests/bench/": "measures",
    "tests/cpu_seconds.py": "measures",
    "tests/extra/": "runs tests within minutes, and prints what they took",
    "tests/mutation/": "prints what a mutant took",
    "tests/same_bytes/": "prints what the comparison took",
    "tests/fuzz/kills.py": "draws the moment of a kill",
    "tests/fuzz/worker.py": "ends a command that hangs, by ten seconds of CPU, which another process does not take from it",
    "tests/cases/waiting.py": "ends a test that hangs",
    "tests/recent_failures.py": "reads the date",
    "tests/unit/dial/test_recent_failures.py": "reads the date",
    "tests/architecture/test_clocks.py": "names them",
}


def clocks_in(text: str) -> Iterator[str]:
    """Yield ``line: name`` for what reads a clock, and for comparisons of order that name a measured time."""
    for number, line in enumerate(text.splitlines(), 1):
        for found in CLOCKS.findall(line):
            yield f"{number}: {found}"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare) and any(
            isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for op in node.ops
        ):
            for name in sorted(names_in(node) & TIMES):
                yield f"{node.lineno}: compares {name}"


def names_in(node: ast.AST) -> set[str]:
    """Return the variables, attributes and keys in ``node``."""
    found = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            found.add(inner.id)
        elif isinstance(inner, ast.Attribute):
            found.add(inner.attr)
        elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            found.add(inner.value)
    return found


def test_no_test_reads_a_clock() -> None:
    files = [file for file in python_files() if short(file).startswith("tests/")]
    found = [
        f"{short(file)}:{clock}"
        for file in files
        if not short(file).startswith(tuple(ALLOWED))
        for clock in clocks_in(file.read_text(encoding="utf-8"))
    ]
    assert not found, "count what is done, or move the test to tests/bench:\n" + "\n".join(found)


def test_what_may_read_a_clock_is_there() -> None:
    for place in ALLOWED:
        files = [ROOT / place] if place.endswith(".py") else sorted((ROOT / place).rglob("*.py"))
        assert any(CLOCKS.search(file.read_text(encoding="utf-8")) for file in files), (
            f"{place} reads no clock: take it out"
        )


@pytest.mark.parametrize(("text", "found"), [
    ("import time\nstart = time.perf_counter()\nassert time.perf_counter() - start < 3", ["2: perf_counter", "3: perf_counter"]),
    ("from time import monotonic as now", ["1: from time import", "1: monotonic"]),
    ("page.evaluate('performance.timing.domContentLoadedEventEnd') < 3000", ["1: performance.timing"]),
    ("page.evaluate('Date.now() - new Date()')", ["1: Date.now", "1: new Date()"]),
    ("assert datetime.datetime.now() > before", ["1: datetime.datetime.now"]),
    ("assert os.times()[0] < 1", ["1: os.times"]),
    ("assert done.json['seconds'] < 5", ["1: compares seconds"]),
    ("assert 1 > result.elapsed", ["1: compares elapsed"]),
    ("assert result.seconds == approx(model.seconds)", []),
    ("time.sleep(1)\nassert count < 3 and page.evaluate('performance.memory') and steps > 2", []),
])  # fmt: skip
def test_planted_clocks(text: str, found: list[str]) -> None:
    assert list(clocks_in(text)) == found

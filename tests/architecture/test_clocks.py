"""No test reads a clock: a time depends on what else the machine does. Sizes and operations are counted; times stand in tests/bench.

`CLOCKS` are looked for in the text of a file, so that scripts in strings, also of JavaScript, are looked at too; and in its syntax tree
under the names that imports give them. Nor has a wait a number of its own: its guard is `tests.cases.waiting.PATIENCE`."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping

import pytest

from tests.architecture.places import ROOT, python_files, short

#: Names that read a clock, in Python and in a browser.
CLOCKS = re.compile(
    r"\b(?:perf_counter|monotonic|process_time|thread_time|clock_gettime|os\.times|ru_utime|ru_stime|timeit|pytest_benchmark"
    r"|time\.time|from time import|datetime\.(?:datetime\.)?(?:now|utcnow|today)|date\.today"
    r"|performance\.(?:now|timing|mark|measure|getEntries\w*)|Date\.now|new Date\(\s*\)|console\.time\w*)"
)
#: Modules with clocks, and what of them reads one.
MODULES = {"time", "datetime", "timeit", "os", "resource"}
READS = re.compile(
    r"time\.(?:time|perf_counter|monotonic|process_time|thread_time)(?:_ns)?|time\.clock_gettime(?:_ns)?|timeit\..+"
    r"|datetime\.(?:datetime\.(?:now|utcnow|today)|date\.today)|os\.times|resource\.getrusage"
)
#: Names of measured times, which no comparison of order may hold.
TIMES = re.compile(
    r"(?:.*_)?(?:seconds|elapsed|duration|took|wall|latency)(?:_s|_ms|_us|_ns|_time|_of)?|cpu(?:_s|_ms|_us|_ns|_seconds|_time)?"
)
#: Names of times that the cost model may have predicted as well: these may be compared with one another, not with a number but 0.
PREDICTED = re.compile(r"(?:.*_)?(?:ms|us|ns|millis|milliseconds|microseconds)")
#: What leaves of times a time.
SAME_UNIT = {
    "abs",
    "float",
    "fmean",
    "int",
    "list",
    "max",
    "mean",
    "median",
    "min",
    "next",
    "round",
    "sorted",
    "sum",
    "tuple",
}
#: Calls that compare their first two arguments.
COMPARING = {"assertAlmostEqual", "assertGreater", "assertGreaterEqual", "assertLess", "assertLessEqual", "isclose"}
#: What waits, and takes the seconds as its first argument.
WAITS = {"wait", "join", "result", "communicate", "set_default_timeout", "Prober"}
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
    """Yield ``line: name`` for what reads a clock, compares a time, or waits for a number of seconds."""
    named = set()
    for number, line in enumerate(text.splitlines(), 1):
        for found in CLOCKS.findall(line):
            named.add(number)
            yield f"{number}: {found}"
    tree = ast.parse(text)
    imported, numbers, times = imported_as(tree), constants_in(tree), times_in(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and node.lineno not in named:
            if READS.fullmatch(name := dotted(node, imported)):
                yield f"{node.lineno}: {name}"
        elif isinstance(node, ast.Compare):
            yield from (f"{node.lineno}: compares {name}" for name in compared(node, numbers, times))
        elif isinstance(node, ast.Call):
            if is_clock_of_an_object(node, imported) and node.lineno not in named:
                yield f"{node.lineno}: {ast.unparse(node)}"
            if last_name(node.func) in COMPARING:
                yield from (f"{node.lineno}: compares {name}" for name in compared(node, numbers, times))
            yield from (
                f"{node.lineno}: waits {ast.unparse(each)} s" for each in waits(node) if is_number(each, numbers)
            )


def imported_as(tree: ast.AST) -> dict[str, str]:
    """Return what the names are that imports of `MODULES` bind: ``{"d": "datetime.datetime"}`` of ``from datetime import datetime as d``."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name: alias.name for alias in node.names if alias.name in MODULES}
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def dotted(node: ast.AST, imported: Mapping[str, str]) -> str:
    """Return the full name of ``d.now`` where ``d`` is ``imported``; empty of anything else."""
    if isinstance(node, ast.Name):
        return imported.get(node.id, "")
    if isinstance(node, ast.Attribute) and (above := dotted(node.value, imported)):
        return f"{above}.{node.attr}"
    return ""


def is_clock_of_an_object(node: ast.Call, imported: Mapping[str, str]) -> bool:
    """Return whether ``node`` is the call of a method ``time()``, as an event loop has it."""
    is_time = isinstance(node.func, ast.Attribute) and node.func.attr == "time"
    return is_time and not node.args and not node.keywords and not dotted(node.func, imported)


def assigned_in(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield variables with what is assigned to them, and functions with what they return."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((target.id, node.value) for target in targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.FunctionDef):
            returns = (each.value for each in ast.walk(node) if isinstance(each, ast.Return))
            yield from ((node.name, value) for value in returns if value is not None)


def constants_in(tree: ast.AST) -> set[str]:
    """Return the variables that a plain number is assigned to."""
    return {name for name, value in assigned_in(tree) if is_number(value, ())}


def times_in(tree: ast.AST) -> set[str]:
    """Return the variables that a time is assigned to, and the functions that return one, whatever their names."""
    found: set[str] = set()
    assigned = list(assigned_in(tree))
    while new := {name for name, value in assigned if name not in found and times_of(value, found)}:
        found |= new
    return found


def is_number(node: ast.AST, constants: Collection[str]) -> bool:
    """Return whether ``node`` is made of numbers other than 0, and of ``constants``."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and not isinstance(node.value, bool) and node.value != 0
    if isinstance(node, ast.BinOp):
        return is_number(node.left, constants) and is_number(node.right, constants)
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand, constants)
    return isinstance(node, ast.Name) and node.id in constants


def compared(node: ast.Compare | ast.Call, constants: Collection[str], times: Collection[str]) -> list[str]:
    """Return measured times in a comparison of order, and times that are beside a number in it, or within a tolerance of one."""
    if isinstance(node, ast.Call):
        sides, is_order = node.args[:2], True
    else:
        sides = [node.left, *node.comparators]
        is_order = any(isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for op in node.ops)
    calls = [side for side in sides if isinstance(side, ast.Call) and last_name(side.func) == "approx"]
    about = [
        call.args[0] for call in calls if len(call.args) + len(call.keywords) > 1
    ]  # without a tolerance it is equality
    found = {name for name in names_in(node) if is_order and TIMES.fullmatch(name)}
    if any(is_number(side, constants) for side in (*about, *(sides if is_order else ()))):
        found |= {name for side in sides for name in times_of(side, times)}
    return sorted(found)


def times_of(node: ast.AST, known: Collection[str]) -> set[str]:
    """Return the names of the times that ``node`` is made of, if it is a time: by their names, or among ``known``."""
    if isinstance(node, ast.Call) and last_name(node.func) in SAME_UNIT:
        return {name for arg in node.args for name in times_of(arg, known)}
    if isinstance(node, ast.Call):
        return times_of(node.func, known)
    if isinstance(node, ast.GeneratorExp | ast.ListComp | ast.SetComp):
        return times_of(node.elt, known)
    if isinstance(node, ast.List | ast.Tuple):
        return {name for each in node.elts for name in times_of(each, known)}
    if isinstance(node, ast.UnaryOp):
        return times_of(node.operand, known)
    if isinstance(node, ast.BinOp):
        is_ratio = isinstance(node.op, ast.Div | ast.FloorDiv | ast.Mod)
        is_count = isinstance(node.right, ast.Call | ast.Constant)
        sides = (node.left, node.right) if not is_ratio else (node.left,) if is_count else ()
        return {name for side in sides for name in times_of(side, known)}
    if isinstance(node, ast.Subscript) and not last_name(node):
        return times_of(node.value, known)
    name = last_name(node)
    return {name} if name in known or TIMES.fullmatch(name) or PREDICTED.fullmatch(name) else set()


def last_name(node: ast.AST) -> str:
    """Return the name of a variable, attribute or key; empty of anything else."""
    if isinstance(node, ast.Subscript):
        node = node.slice
    found = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "value", None)
    return found if isinstance(found, str) else ""


def waits(node: ast.Call) -> Iterator[ast.AST]:
    """Yield the seconds that a call waits for at most."""
    yield from (keyword.value for keyword in node.keywords if keyword.arg and "timeout" in keyword.arg.lower())
    callee = last_name(node.func)
    if callee in WAITS:
        yield from node.args[:1]
    elif callee == "wait_for":
        yield from (*node.args[1:2], *(keyword.value for keyword in node.keywords if keyword.arg == "seconds"))


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
    assert not found, (
        "count what is done, move the test to tests/bench, or wait for PATIENCE of tests/cases/waiting.py:\n"
        + "\n".join(found)
    )


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
    ("import time as t\nstart = t.time()", ["2: time.time"]),
    ("import time as t\nstart = t.time_ns", ["2: time.time_ns"]),
    ("from datetime import datetime as d, date\nd.now() > d.utcnow()\ndate.today()",
     ["3: date.today", "2: datetime.datetime.now", "2: datetime.datetime.utcnow"]),
    ("from os import times as t\nassert t()[0] < 1", ["2: os.times"]),
    ("import resource as r\nr.getrusage(r.RUSAGE_SELF)", ["2: resource.getrusage"]),
    ("from timeit import repeat as r\nr(f)", ["1: timeit", "2: timeit.repeat"]),
    ("began = asyncio.get_running_loop().time()", ["1: asyncio.get_running_loop().time()"]),
    ("assert wall < cpu_s", ["1: compares cpu_s", "1: compares wall"]),
    ("assert ms < 3000", ["1: compares ms"]),
    ("MOST = 3 * 1000\nassert MOST >= done.json['load_ms']", ["2: compares load_ms"]),
    ("assert low.ms < high.ms and us > 0 and abs(ms / published - 1) < 0.1 and macs_per_cpu < 3", []),
    ("assert max(ms) < 3000 and sorted(ms)[0] < 3 and min(us, ns) > 5",
     ["1: compares ms", "1: compares ms", "1: compares ns", "1: compares us"]),
    ("LIMIT: float = 3.0\nassert load_ms < LIMIT\nassert -ms > -3", ["2: compares load_ms", "3: compares ms"]),
    ("assert result.seconds < 5 and took(run) < most", ["1: compares seconds", "1: compares took"]),
    ("def of(run):\n    return run.seconds\nassert of(run) < 5", ["3: compares of"]),
    ("t = after.ms - before.ms\nassert sum(t for t in ts) / len(ts) < 5", ["2: compares t"]),
    ("assert elapsed_of(run) < most_seconds", ["1: compares elapsed_of", "1: compares most_seconds"]),
    ("assert ms == approx(3, abs=2)\nassert result.seconds == pytest.approx(3, 0.5)", ["1: compares ms", "2: compares seconds"]),
    ("self.assertLess(ms, 3)\nassert math.isclose(us, 3, rel_tol=1)", ["1: compares ms", "2: compares us"]),
    ("assert max(each.ms for each in runs) < 3 and round(float(done['ms']), 1) < 3", ["1: compares ms", "1: compares ms"]),
    ("assert found.us == approx(240) and low.ms < max(high.ms, 0) and ms / published < 1.1", []),
    ("run(command, timeout=60)", ["1: waits 60 s"]),
    ("GUARD = 5.5\npage.click(timeout_ms=GUARD)", ["2: waits GUARD s"]),
    ("thread.join(5)\npage.set_default_timeout(2 * 60)", ["1: waits 5 s", "2: waits 2 * 60 s"]),
    ("wait_for(done, 10)\nwait_for(done, seconds=10)", ["1: waits 10 s", "2: waits 10 s"]),
    ("run(command, timeout=PATIENCE)\nthread.join(2 * PATIENCE)\nfuture.result(timeout=0)\n', '.join(parts)", []),
    ("assert result.seconds == approx(model.seconds)", []),
    ("time.sleep(1)\nassert count < 3 and page.evaluate('performance.memory') and steps > 2", []),
])  # fmt: skip
def test_planted_clocks(text: str, found: list[str]) -> None:
    assert list(clocks_in(text)) == found

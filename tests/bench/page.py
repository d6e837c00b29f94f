"""The figures of a run in docs/benchmarks.md: everything between markers comes from the file of the run, nothing else does.

``<!-- bench: NAME -->`` … ``<!-- /bench -->`` holds the table of the benchmark NAME, of ``run`` the date, commit and machine."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tests.bench.measure import Result
from tests.bench.results import ROOT, BenchRun, Measured

PAGE = ROOT / "docs" / "benchmarks.md"
#: The block that says when and on what machine.
RUN = "run"
_BLOCK = re.compile(r"(<!-- bench: (\w+) -->\n).*?(<!-- /bench -->)", re.DOTALL)


def blocks_of(page: str) -> list[str]:
    """Names of the blocks of ``page``, in order."""
    return [found[2] for found in _BLOCK.finditer(page)]


def rendered(page: str, run: BenchRun) -> str:
    """``page`` with the figures of ``run`` in its blocks.

    Raises:
        LookupError: the run lacks a benchmark of the page, or the page has no place for one of the run.
    """
    places, given = blocks_of(page), [RUN, *run.benches]
    missing, unplaced = sorted({*places} - {*given}), sorted({*given} - {*places})
    if missing or unplaced:
        raise LookupError(
            f"in the run but not on the page: {', '.join(unplaced) or 'nothing'}; "
            f"on the page but not in the run: {', '.join(missing) or 'nothing'}"
        )
    texts = {RUN: about(run), **{name: table(measured) for name, measured in run.benches.items()}}
    return _BLOCK.sub(lambda found: f"{found[1]}\n{texts[found[2]]}\n\n{found[3]}", page)


def about(run: BenchRun) -> str:
    """Date, commit, machine and verdict of ``run`` as a paragraph."""
    machine, versions = run.machine, run.machine["versions"]
    minutes = sum(one.seconds for one in run.benches.values()) / 60
    broken = [name for name, one in run.benches.items() if not one.holds]
    flags = f" ({', '.join(machine['flags'])})" if machine["flags"] else ""
    bounds = f"Broken bounds or errors: {', '.join(broken)}." if broken else "All bounds hold."
    lines = [
        f"Run of {run.date}, commit `{run.commit}`: {len(run.benches)} benchmarks in {minutes:.1f} minutes on {machine['cores']} cores,",
        f"{machine['processor']}{flags}, {machine['memory_gib']:.0f} GiB;",
        f"{', '.join(f'{name} {number}' for name, number in versions.items())}. {bounds}",
    ]
    return "\n".join(lines)


def table(measured: Measured) -> str:
    """The results of a benchmark as a table, with its time below."""
    if measured.error:
        return f"No figures: {measured.error}"
    rows = [
        (_text(one.name), figure(one.value, one.unit), _bound(one, measured.broken), _text(one.detail))
        for one in measured.results
    ]
    again = ", measured twice" if measured.tries > 1 else ""
    return "\n".join([*_lines(rows), "", f"Measured in {measured.seconds:.0f} s{again}."])


def _lines(rows: Iterable[tuple[str, ...]]) -> list[str]:
    head = [("what", "figure", "at most", "details"), ("---", "--:", "--:", "---")]
    return [f"| {' | '.join(row)} |" for row in [*head, *rows]]


def figure(value: float, unit: str) -> str:
    """A figure with its unit: hundredths below 100."""
    number = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
    return f"{number} {unit}".rstrip()


def _bound(result: Result, broken: Iterable[str]) -> str:
    if result.bound is None:
        return ""
    text = f"{result.bound:.4g} {result.unit}".rstrip()
    return f"**{text}, broken**" if result.name in broken else text


def _text(text: str) -> str:
    """``text`` in a cell."""
    return text.replace("|", "\\|")


def write(run: BenchRun) -> None:
    """Put the figures of ``run`` into the page."""
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8"), run), encoding="utf-8")

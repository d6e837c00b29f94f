"""Print each reason for skipped tests once, with the number of tests, at the end of a run.

A module that is skipped as a whole counts as one: pytest does not collect its tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest


def skip_lines(reports: Iterable[pytest.TestReport | pytest.CollectReport]) -> list[str]:
    """Return a line for each reason in ``reports``, the most frequent first."""
    counts = Counter(_reason(report) for report in reports)
    return [
        f"skipped {count:,}: {reason}" for reason, count in sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    ]


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return " ".join(text.removeprefix("Skipped: ").split())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the reasons behind the report of the run."""
    for line in skip_lines(terminalreporter.stats.get("skipped", [])):
        terminalreporter.write_line(line)

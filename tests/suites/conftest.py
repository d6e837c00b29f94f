"""Figures of the suite stand at the end of pytest's output."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line with the counts."""
    reports = terminalreporter.stats.get("passed", [])
    counts = [value for report in reports for name, value in report.user_properties if name == "examined"]
    if counts:
        cases, runs, alone = map(sum, zip(*counts, strict=True))
        terminalreporter.write_line(
            f"outside suite: {cases:,} cases through every pass, {alone} that nothing runs; {runs:,} runs"
        )

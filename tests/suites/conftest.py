"""The suite runs once a session; its figures stand at the end of pytest's output."""

from __future__ import annotations

import pytest

from tests.suites.run import Report, run_suite

_REPORT = pytest.StashKey[Report]()


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> Report:
    """What came of every case in every step."""
    found = run_suite()
    pytestconfig.stash[_REPORT] = found
    return found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line with the counts."""
    report = config.stash.get(_REPORT, None)
    if report is not None:
        cases = ", ".join(f"{count} {kind}" for kind, count in sorted(report.cases.items()))
        statuses = ", ".join(f"{count} {status}" for status, count in sorted(report.statuses().items()))
        engines = ", ".join(f"{count} {engine}" for engine, count in sorted(report.engines().items()))
        terminalreporter.write_line(
            f"outside suite: {cases}; run by {engines}; {report.runs()} runs; {statuses}; {report.seconds:.0f} s"
        )

"""Reasons for skipped tests: one line each, with a count."""

from __future__ import annotations

import pytest

from tests.skip_reasons import skip_lines


def report(longrepr: tuple[str, int, str] | str) -> pytest.TestReport:
    return pytest.TestReport("test_a.py::test", ("test_a.py", 1, "test"), {}, "skipped", longrepr, "setup")


def test_each_reason_is_one_line() -> None:
    reports = [
        report(("test_a.py", n, f"Skipped: {reason}"))
        for n, reason in enumerate(["no b", "no a", "no  c\nat all", "no c at all"])
    ]
    assert skip_lines(reports) == ["skipped 2: no c at all", "skipped 1: no a", "skipped 1: no b"]
    assert skip_lines([report("damaged")]) == ["skipped 1: damaged"]
    assert skip_lines([]) == []

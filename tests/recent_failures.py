"""Product items and tests with samples that failed in the last seven days: every part contains all of them (see `tests.dial`).

The controller of a run alone reads and writes ``build/dial_failures.json``. It hands the names to the workers of pytest-xdist, so
that all collect the same items."""

from __future__ import annotations

import datetime
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[1] / "build" / "dial_failures.json"
#: Number of days a failure stays in the part, the day of the failure included.
DAYS = 7
#: User property of a test that took a part of its values (`tests.dial.some`).
SAMPLED = "sampled"

_PINNED = pytest.StashKey[frozenset[str]]()


def today() -> int:
    """Return the ordinal of the current UTC date, which is also the seed of the day."""
    return datetime.datetime.now(datetime.UTC).date().toordinal()


def pin_name(nodeid: str) -> str:
    """Return ``<stem of the file>::<test>[<case>]`` of a node id, which a move of the file leaves as it is."""
    file, _, test = nodeid.partition("::")
    return f"{Path(file).stem}::{test}"


def read_failures(day: int, file: Path | None = None) -> dict[str, int]:
    """Return the day of the last failure of each pinned item; without days before ``day - DAYS + 1``.

    Raises:
        pytest.UsageError: the file is damaged.
    """
    file = file or FILE
    if not file.is_file():
        return {}
    try:
        days = {str(name): int(failed) for name, failed in json.loads(file.read_text(encoding="utf-8")).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise pytest.UsageError(f"cannot read {file}: {error}. Delete the file.") from error
    return {name: failed for name, failed in days.items() if day - DAYS < failed <= day}


def write_failures(names: Iterable[str], day: int, file: Path | None = None) -> dict[str, int]:
    """Add ``names`` as failures of ``day``, drop expired ones, and return all that are left."""
    file = file or FILE
    known = {**read_failures(day, file), **dict.fromkeys(names, day)}
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=file.name)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        json.dump(dict(sorted(known.items())), stream, indent=1)
    os.replace(temporary, file)
    return known


def summary(failures: Mapping[str, int]) -> list[str]:
    """Describe pinned items, one a line, with the line that pins one for good."""
    if not failures:
        return []
    head = f"pinned: {len(failures)} recently failed items stay in the part for {DAYS} days (build/dial_failures.json)"
    lines = [
        f"  {name}  # failed on {datetime.date.fromordinal(day).isoformat()}" for name, day in sorted(failures.items())
    ]
    return [head, *lines, "To pin one for good, add its line to tests/pinned.txt with the reason behind '  # '."]


def recently_failed(config: pytest.Config) -> frozenset[str]:
    """Return the names that this run pins; none without this plugin."""
    return config.stash.get(_PINNED, frozenset())


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Read the failures once, in the controller; a worker gets them from it."""
    worker = getattr(config, "workerinput", None)
    config.stash[_PINNED] = frozenset(read_failures(today()) if worker is None else worker["recent_failures"])
    if worker is None:
        config.pluginmanager.register(_Recorder(), "recent_failures_recorder")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand the names to a worker of pytest-xdist."""
    node.workerinput["recent_failures"] = sorted(recently_failed(node.config))


class _Recorder:
    """Failures of this run, recorded by the controller."""

    def __init__(self) -> None:
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and ("product" in report.keywords or (SAMPLED, True) in report.user_properties):
            self._failed.add(pin_name(report.nodeid))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        if self._failed:
            write_failures(self._failed, today())

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in summary(read_failures(today())):
            terminalreporter.write_line(line)

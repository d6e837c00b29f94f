"""Product items, tests with samples and tests of hypothesis that failed in the last seven days, with the seed of hypothesis then:
every part contains all of them (see `tests.dial`).

The controller of a run alone reads and writes ``build/recent_failures.json``; runs at the same time wait for one another's write. It
hands the failures to the workers of pytest-xdist, so that all collect the same items."""

from __future__ import annotations

import datetime
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import hypothesis.core
import pytest

FILE = Path(__file__).parents[1] / "build" / "recent_failures.json"
#: Number of days a failure stays in the part, the day of the failure included.
DAYS = 7
#: User property of a test that took a part of its values (`tests.dial.some`).
SAMPLED = "sampled"


class Failure(NamedTuple):
    """The last failure of an item.

    Attributes:
        day: ordinal of the UTC date.
        seed: what hypothesis drew with.
    """

    day: int
    seed: int | str


Failures = dict[str, Failure]
_PINNED = pytest.StashKey[Failures]()


def today() -> int:
    """Return the ordinal of the current UTC date, which is also the seed of the day."""
    return datetime.datetime.now(datetime.UTC).date().toordinal()


def pin_name(nodeid: str) -> str:
    """Return ``<stem of the file>::<test>[<case>]`` of a node id, which a move of the file leaves as it is."""
    file, _, test = nodeid.partition("::")
    return f"{Path(file).stem}::{test}"


def read_failures(day: int, file: Path | None = None) -> Failures:
    """Return the last failure of each pinned item; without days before ``day - DAYS + 1``.

    Raises:
        pytest.UsageError: the file is damaged.
    """
    file = file or FILE
    if not file.is_file():
        return {}
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        known = {str(name): Failure(int(failed["day"]), failed["seed"]) for name, failed in stored.items()}
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise pytest.UsageError(f"cannot read {file}: {error}. Delete the file.") from error
    return {name: failed for name, failed in known.items() if day - DAYS < failed.day <= day}


def write_failures(new: Mapping[str, Failure], day: int, file: Path | None = None) -> Failures:
    """Add ``new`` failures to what the file holds by now, drop those that expire by ``day``, and return all that are left."""
    file = file or FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(f"{file}.lock"):
        known = {**read_failures(day, file), **new}
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=file.name)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump({name: failed._asdict() for name, failed in sorted(known.items())}, stream, indent=1)
        os.replace(temporary, file)
    return known


def summary(failures: Mapping[str, Failure]) -> list[str]:
    """Describe pinned items, one a line, with the line that pins one for good."""
    if not failures:
        return []
    head = (
        f"pinned: {len(failures)} recently failed items stay in the part for {DAYS} days (build/recent_failures.json)"
    )
    lines = [
        f"  {name}  # failed on {datetime.date.fromordinal(failed.day).isoformat()}"
        for name, failed in sorted(failures.items())
    ]
    return [head, *lines, "To pin one for good, add its line to tests/pinned.txt with the reason behind '  # '."]


def recently_failed(config: pytest.Config) -> Failures:
    """Return the failures that this run pins; none without this plugin."""
    return config.stash.get(_PINNED, {})


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Read the failures once, in the controller; a worker gets them from it. A seed on the command line is that of all of them."""
    worker = getattr(config, "workerinput", None)
    failures = (
        read_failures(today())
        if worker is None
        else {name: Failure(*failed) for name, failed in worker["recent_failures"].items()}
    )
    if worker is None and (given := getattr(config.option, "hypothesis_seed", None)) is not None:
        seed = int(given) if given.lstrip("-").isdigit() else given
        failures = {name: failed._replace(seed=seed) for name, failed in failures.items()}
    config.stash[_PINNED] = failures
    if worker is None:
        config.pluginmanager.register(_Recorder(recently_failed(config)), "recent_failures_recorder")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand the failures to a worker of pytest-xdist."""
    node.workerinput["recent_failures"] = {name: tuple(failed) for name, failed in recently_failed(node.config).items()}


class _Recorder:
    """Failures of this run, recorded by the controller.

    Args:
        pinned: failures of before, which were drawn with their own seeds.
    """

    def __init__(self, pinned: Failures) -> None:
        self._pinned = pinned
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        is_drawn = (
            not {"product", "hypothesis"}.isdisjoint(report.keywords) or (SAMPLED, True) in report.user_properties
        )
        if report.failed and is_drawn:
            self._failed.add(pin_name(report.nodeid))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        if self._failed:
            day, seed = today(), hypothesis.core.global_force_seed
            seeds = {name: self._pinned[name].seed if name in self._pinned else seed for name in self._failed}
            write_failures({name: Failure(day, seed) for name, seed in seeds.items()}, day)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in summary(read_failures(today())):
            terminalreporter.write_line(line)

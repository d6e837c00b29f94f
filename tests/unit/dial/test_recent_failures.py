"""Failures of the last seven days stay in the part, with and without pytest-xdist, and expire."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import dial, recent_failures
from tests.architecture.places import ROOT
from tests.recent_failures import DAYS, Failure, pin_name, read_failures, summary, write_failures

DAY = datetime.date(2026, 3, 1).toordinal()
#: Fifty items, of which the part takes two, and tests that take two of forty samples, a smaller size, and examples of hypothesis; which
#: fails the environment says.
PRODUCT = """
import os, pytest
from hypothesis import given, settings, strategies
from tests.dial import examples, some, sized

@pytest.mark.product(extra=2)
@pytest.mark.parametrize("n", range(50))
def test_one(n):
    assert n != int(os.environ["BROKEN"])

def test_samples():
    assert int(os.environ["BROKEN"]) not in some(range(50, 90), 2)

def test_sizes():
    assert int(os.environ["BROKEN"]) + 37 not in range(95, sized(100, 95))

@settings(max_examples=examples(40))
@given(strategies.integers(0, 2**64))
def test_property(n):
    with open("drawn", "a") as file:
        print(n, file=file)
    assert int(os.environ["BROKEN"]) != 200 or n < 2**16
"""
CONFTEST = """
from pathlib import Path
from tests import recent_failures
recent_failures.FILE = Path(__file__).with_name("failures.json")
recent_failures.today = lambda: int(Path(__file__).with_name("day").read_text())
pytest_plugins = ("tests.recent_failures", "tests.dial")  # the dial imports the other
"""


def test_failures_expire_after_seven_days(tmp_path: Path) -> None:
    file = tmp_path / "build" / "failures.json"
    assert read_failures(DAY, file) == {}
    first, second, third = Failure(DAY, 7), Failure(DAY + 3, 8), Failure(DAY + 5, 9)
    write_failures({"test_a::test[1]": first}, DAY, file)
    assert write_failures({"test_b::test": second}, DAY + 3, file) == {"test_a::test[1]": first, "test_b::test": second}
    assert read_failures(DAY + DAYS - 1, file) == {"test_a::test[1]": first, "test_b::test": second}
    assert read_failures(DAY + DAYS, file) == {"test_b::test": second}
    write_failures({"test_a::test[1]": third}, DAY + 5, file)
    assert read_failures(DAY + 5 + DAYS - 1, file) == {"test_a::test[1]": third}
    assert {path.name for path in file.parent.iterdir()} <= {file.name, f"{file.name}.lock"}


def test_runs_at_once_keep_one_anothers_failures(tmp_path: Path) -> None:
    """Eight writers of ten failures each, all from the same moment on."""
    file = tmp_path / "failures.json"
    start = threading.Barrier(8)

    def write(writer: int) -> None:
        start.wait()
        for at in range(10):
            write_failures({f"test_{writer}::test[{at}]": Failure(DAY, writer)}, DAY, file)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert len(read_failures(DAY, file)) == 80


def test_a_damaged_file_names_the_repair(tmp_path: Path) -> None:
    for text in ("[", "[1]", '{"a": "b"}', '{"a": {"day": 1}}'):
        (tmp_path / "f.json").write_text(text)
        with pytest.raises(pytest.UsageError, match=r"cannot read .*f\.json: .* Delete the file"):
            read_failures(DAY, tmp_path / "f.json")


def test_the_summary_prints_lines_for_the_pinned_file() -> None:
    assert summary({}) == []
    lines = summary({"test_a::test[1]": Failure(DAY, 7)})
    assert lines[0].startswith("pinned: 1 recently failed")
    assert lines[1] == "  test_a::test[1]  # failed on 2026-03-01"
    assert "tests/pinned.txt" in lines[2]
    assert pin_name("tests/unit/test_a.py::Class::test[a/b.py::c]") == "test_a::Class::test[a/b.py::c]"


def run(folder: Path, *options: str, broken: int, day: int = DAY) -> str:
    """Print of a run of the part of `PRODUCT` on a day, with the dial as it is in this repository, on a machine for CI."""
    (folder / "day").write_text(str(day))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--color=no",
        "-c",
        str(folder / "pytest.ini"),
        *options,
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "BROKEN": str(broken), "CI": "1"}
    done = subprocess.run(
        [*command, "--rootdir", str(folder), str(folder)], cwd=folder, env=env, capture_output=True, text=True
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_products.py").write_text(PRODUCT)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  product: a product\n  always: always there\n")
    return tmp_path


def test_a_failed_item_is_in_every_part_for_a_week(project: Path) -> None:
    """Workers of pytest-xdist get the pins and the seed of the controller."""
    assert "1 failed, 52 passed" in run(project, "--whole", "-n", "2", broken=17)
    text = run(project, "-n", "2", broken=-1, day=DAY + 1)
    assert "6 passed" in text
    assert "  test_products::test_one[17]  # failed on 2026-03-01" in text
    assert f"part: 6 of 53 items, --dial-seed {DAY + 1}" in text
    assert "6 passed" in run(project, broken=-1, day=DAY + DAYS - 1)
    text = run(project, broken=-1, day=DAY + DAYS)
    assert "5 passed" in text
    assert "pinned" not in text


def test_a_failed_test_takes_all_of_its_samples_and_sizes_for_a_week(project: Path) -> None:
    assert "2 failed" in run(project, "--whole", "-k", "samples or sizes", broken=60)
    assert "2 failed" in run(project, "-k", "samples or sizes", broken=60, day=DAY + 1)
    assert "2 passed" in run(project, "-k", "samples or sizes", broken=60, day=DAY + 1 + DAYS)
    assert "failed" in run(project, "test_products.py::test_samples", broken=60, day=DAY + 20)


def test_hypothesis_draws_for_a_week_what_failed(project: Path) -> None:
    """Of a test that fails again, what failed first; the seed of the day draws for it when the week is over."""

    def drawn(day: int) -> str:
        (project / "drawn").unlink(missing_ok=True)
        assert "1 failed" in run(project, "-k", "property", broken=200, day=day)
        return (project / "drawn").read_text()

    first = drawn(DAY)
    assert drawn(DAY + DAYS - 1) == first
    assert drawn(DAY + 2 * (DAYS - 1)) == first
    assert drawn(DAY + 3 * DAYS) != first


def test_a_seed_on_the_command_line_draws_and_is_what_a_failure_records(project: Path) -> None:
    """In a worker too, and in the place of the seed that the test failed with before."""

    def drawn(*options: str, seed: int) -> str:
        (project / "drawn").unlink(missing_ok=True)
        assert "1 failed" in run(project, "-k", "property", *options, broken=200)
        assert read_failures(DAY, project / "failures.json") == {"test_products::test_property": Failure(DAY, seed)}
        return (project / "drawn").read_text()

    first, other = drawn(seed=DAY), drawn("--hypothesis-seed", "5", "-n", "1", seed=5)
    assert other != first
    assert drawn(seed=5) == other


def test_the_seed_is_the_day_in_utc() -> None:
    now = datetime.datetime.now(datetime.UTC).date().toordinal()
    assert recent_failures.today() in (now, now - 1)
    assert dial.today is recent_failures.today

"""Failures of the last seven days stay in the part, with and without pytest-xdist, and expire."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import dial, recent_failures
from tests.architecture.places import ROOT
from tests.recent_failures import DAYS, pin_name, read_failures, summary, write_failures

DAY = datetime.date(2026, 3, 1).toordinal()
#: Fifty items, of which the part takes two, and a test that takes two of forty samples; one fails where the environment says so.
PRODUCT = """
import os, pytest
from tests.dial import some

@pytest.mark.product(extra=2)
@pytest.mark.parametrize("n", range(50))
def test_one(n):
    assert n != int(os.environ["BROKEN"])

def test_samples():
    assert int(os.environ["BROKEN"]) not in some(range(50, 90), 2)
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
    write_failures(["test_a::test[1]"], DAY, file)
    assert write_failures(["test_b::test"], DAY + 3, file) == {"test_a::test[1]": DAY, "test_b::test": DAY + 3}
    assert read_failures(DAY + DAYS - 1, file) == {"test_a::test[1]": DAY, "test_b::test": DAY + 3}
    assert read_failures(DAY + DAYS, file) == {"test_b::test": DAY + 3}
    write_failures(["test_a::test[1]"], DAY + 5, file)
    assert read_failures(DAY + 5 + DAYS - 1, file) == {"test_a::test[1]": DAY + 5}
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_damaged_file_names_the_repair(tmp_path: Path) -> None:
    for text in ("[", "[1]", '{"a": "b"}'):
        (tmp_path / "f.json").write_text(text)
        with pytest.raises(pytest.UsageError, match=r"cannot read .*f\.json: .* Delete the file"):
            read_failures(DAY, tmp_path / "f.json")


def test_the_summary_prints_lines_for_the_pinned_file() -> None:
    assert summary({}) == []
    lines = summary({"test_a::test[1]": DAY})
    assert lines[0].startswith("pinned: 1 recently failed")
    assert lines[1] == "  test_a::test[1]  # failed on 2026-03-01"
    assert "tests/pinned.txt" in lines[2]
    assert pin_name("tests/unit/test_a.py::Class::test[a/b.py::c]") == "test_a::Class::test[a/b.py::c]"


def run(folder: Path, *options: str, broken: int, day: int = DAY) -> str:
    """Print of a run of the part of `PRODUCT` on a day, with the dial as it is in this repository."""
    (folder / "day").write_text(str(day))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        str(folder / "pytest.ini"),
        *options,
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "BROKEN": str(broken)}
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
    assert "1 failed, 50 passed" in run(project, "--whole", "-n", "2", broken=17)
    text = run(project, "-n", "2", broken=-1, day=DAY + 1)
    assert "4 passed" in text
    assert "  test_products::test_one[17]  # failed on 2026-03-01" in text
    assert f"part: 4 of 51 items, --dial-seed {DAY + 1}" in text
    assert "4 passed" in run(project, broken=-1, day=DAY + DAYS - 1)
    text = run(project, broken=-1, day=DAY + DAYS)
    assert "3 passed" in text
    assert "pinned" not in text


def test_a_failed_test_takes_all_of_its_samples_for_a_week(project: Path) -> None:
    assert "1 failed" in run(project, "--whole", "-k", "samples", broken=60)
    assert "1 failed" in run(project, "-k", "samples", broken=60, day=DAY + 1)
    assert "1 passed" in run(project, "-k", "samples", broken=60, day=DAY + 1 + DAYS)
    assert "failed" in run(project, "test_products.py::test_samples", broken=60, day=DAY + 20)


def test_the_seed_is_the_day_in_utc() -> None:
    now = datetime.datetime.now(datetime.UTC).date().toordinal()
    assert recent_failures.today() in (now, now - 1)
    assert dial.today is recent_failures.today

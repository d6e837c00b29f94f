"""The other supported Python versions: the unit and golden tests in each that is installed."""

from __future__ import annotations

import subprocess
import sys

from tests.extra.part import ALL_CORES, Missing, environment, pytest_summary

SUPPORTED = ("3.11", "3.12", "3.13")


def run(whole: bool) -> str:
    """Run the tests in every supported interpreter but the present one."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    results, absent = [], []
    for version in SUPPORTED:
        if version == own:
            continue
        if not _starts(f"python{version}"):
            absent.append(f"python{version}")
            continue
        python = environment(f"python{version}", ["-e", ".[test]"], f"python{version}")
        summary = pytest_summary(python, "tests/unit", "tests/golden", "-m", "not extra", *ALL_CORES, whole=whole)
        results.append(f"{version}: {summary}")
    if not results:
        raise Missing(" and ".join(absent))
    return "; ".join([*results, *(f"{name} is not installed" for name in absent)])


def _starts(command: str) -> bool:
    try:
        return subprocess.run([command, "-c", "pass"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False

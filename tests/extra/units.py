"""Tests of units that `make test` leaves out: workers of a real Dask cluster, and searches that quantize real networks."""

from __future__ import annotations

import sys

from tests.extra.part import ALL_CORES, pytest_summary

DASK = "tests/unit/workers/test_dask_workers.py"


def run_dask() -> str:
    """Run the tests that start a Dask cluster."""
    return pytest_summary(sys.executable, DASK, "-m", "extra")


def run_searches() -> str:
    """Run the other tests of units with the mark ``extra``."""
    return pytest_summary(sys.executable, "tests/unit", f"--ignore={DASK}", "-m", "extra", *ALL_CORES)

"""All of every test that is a product, of which `make test` takes a part."""

from __future__ import annotations

import sys

from tests.extra.part import ALL_CORES, pytest_summary


def run() -> str:
    """Run the tests with the dial at its end."""
    return pytest_summary(sys.executable, "-m", "not extra", *ALL_CORES, whole=True)

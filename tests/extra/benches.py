"""The benchmarks; a broken bound fails."""

from __future__ import annotations

import sys

from tests.extra.part import call


def run() -> str:
    """Run them all and return their report."""
    return "\n" + call([sys.executable, "-m", "tests.bench"]).rstrip()

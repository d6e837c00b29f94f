"""The profiles of chips, fitted on the public rows again: files and page say what comes out."""

from __future__ import annotations

import sys

from tests.extra.part import call


def run() -> str:
    """Fit them; fails where a number lies further off than another machine's rounding puts it."""
    return call([sys.executable, "-m", "tests.bench.chip_fit"]).rstrip().splitlines()[-1]

"""How much the parts run of tests that are products (tests/dial.py)."""

from __future__ import annotations

#: Set by the command line: all of it, or what `make test` takes.
whole = True


def options() -> list[str]:
    """Options of pytest for it, on all cores."""
    return ["-n", "auto", "--dist", "worksteal", *(["--whole"] if whole else [])]

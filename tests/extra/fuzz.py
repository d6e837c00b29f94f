"""The attack: some thousand damaged inputs, and commands that are ended in the middle."""

from __future__ import annotations

import sys

from tests.extra.part import call

INPUTS, KILLS = 6000, 50


def run() -> str:
    """Run it."""
    attack = [sys.executable, "-m", "tests.fuzz"]
    call([*attack, "--inputs", str(INPUTS)])
    for what in ("kills", "interrupts"):
        call([*attack, what, "--count", str(KILLS)])
    return f"{INPUTS} inputs, {KILLS} kills and {KILLS} interrupts: nothing died, hung, or was lost"

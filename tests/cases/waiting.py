"""Wait for other processes, with a guard against a hang: the only clock that tests outside of tests/bench read.

No test compares a time. A guard is so long that only a hang reaches it, on a machine with other work on all cores too."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Seconds that a test waits for a process, for which it usually waits one.
PATIENCE = 300.0
#: Seconds after which is ended what a test lets hang.
HASTE = 0.05


def wait_for(is_done: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Return when ``is_done`` says so.

    Raises:
        TimeoutError: it has not within ``seconds``.
    """
    end = time.monotonic() + seconds
    while not is_done():
        if time.monotonic() > end:
            raise TimeoutError(f"nothing happened within {seconds:.0f} s")
        time.sleep(0.02)

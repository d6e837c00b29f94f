"""Count again and write the record: ``python -m tests.costs``. Prints each count that changed. A change that raises a count says why
in its commit."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.costs.counting import Counts, recorded, versions
from tests.costs.measuring import STARTS, modules_of, work


def main() -> int:
    """Count, compare and write."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        digits, chains = work(folder)
        counts = Counts(
            versions=versions(),
            modules={start: modules_of(start, folder) for start in STARTS},
            work=digits,
            per_node=chains,
        )
    before = asdict(recorded())
    for kind, rows in asdict(counts).items():
        for key, row in rows.items():
            if before[kind].get(key) != row:
                print(f"{kind}, {key}: {before[kind].get(key)} -> {row}")
    counts.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())

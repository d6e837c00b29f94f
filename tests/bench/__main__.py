"""Run every benchmark, print one line each, exit 1 when a bound is broken."""

from __future__ import annotations

import sys

from tests.bench import big_model, start_up


def main() -> int:
    """Run all and report."""
    results = [*start_up.results(), *big_model.results()]
    for r in results:
        verdict = "holds" if r.holds else "BROKEN"
        print(f"{r.name:45} {r.value:8.2f} {r.unit:2} (at most {r.bound:g}) {verdict:6}  {r.detail}", flush=True)
    return 0 if all(r.holds for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())

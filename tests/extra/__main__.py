"""Run every part; each says PASSED, FAILED, or SKIPPED with the missing thing. Exit 1 when one failed.

``python -m tests.extra [NAME …]`` runs the parts so called. With ``--minutes N`` those that fit, the others are NOT RUN: parts whose
sources have not changed since what has landed, parts that time something, which a busy machine would fail, and parts that need more
seconds than are left. A part that runs Python's tests then takes the part of them that `make test` takes, else the whole."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.extra import (
    benches,
    browser,
    chips,
    fuzz,
    genai,
    interpreters,
    new_onnxruntime,
    npu,
    old_onnxruntime,
    site,
    torch_pages,
    units,
    wheel,
    whole,
)  # fmt: skip
from tests.extra.changed import changed_files, is_touched
from tests.extra.part import Missing
from tests.journeys import __main__ as journeys

#: What the library of the simulated NPU is built from, and what its tests are.
LIBRARY = ("qdqtool/npu/ep/", "tests/npu/", "tests/extra/", "pyproject.toml")


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part.

    Args:
        run: does it, all of tests that are products if it is handed True, and says what it did.
        seconds: what it takes on 2 cores with ``--minutes``, its environment included.
        sources: beginnings of paths; where none of such files changed, it says nothing new.
        is_timed: it holds times, on an idle machine alone.
    """

    run: Callable[[bool], str]
    seconds: int
    sources: tuple[str, ...] = ()
    is_timed: bool = False


#: In the order in which time is spent on them.
PARTS = {
    "onnxruntime 1.23.2": Part(run=old_onnxruntime.run, seconds=430),
    "simulated NPU": Part(run=npu.run, seconds=240, sources=LIBRARY),
    "wheel": Part(run=lambda _: wheel.run(), seconds=110),
    "journeys": Part(
        run=lambda _: journeys.run([]), seconds=400, sources=("docs/", "README.md", "tests/journeys/", "pyproject.toml")
    ),
    "onnxruntime-genai": Part(run=lambda _: genai.run(), seconds=60),
    "browser": Part(run=lambda _: browser.run(), seconds=150),
    "chips": Part(
        run=lambda _: chips.run(),
        seconds=150,
        sources=("qdqtool/chips/", "qdqtool/cost/", "tests/bench/", "tests/data/chips/"),
    ),
    "site": Part(
        run=lambda _: site.run(), seconds=40, sources=("docs/", "mkdocs.yml", "pyproject.toml", "tests/extra/")
    ),
    "torch": Part(
        run=lambda _: torch_pages.run(), seconds=240, sources=("docs/from_torch", "README.md", "tests/extra/")
    ),
    "newest onnxruntime": Part(run=new_onnxruntime.run, seconds=10),
    "Dask": Part(
        run=lambda _: units.run_dask(),
        seconds=60,
        sources=("qdqtool/workers/", "qdqtool/calibrate/", "tests/unit/workers/", "tests/cases/", "pyproject.toml"),
    ),
    "other interpreters": Part(run=interpreters.run, seconds=480),
    "bench-quick": Part(run=lambda _: benches.quick(), seconds=180, is_timed=True),
    "benches": Part(run=lambda _: benches.run(), seconds=1200, is_timed=True),
    "fuzz": Part(run=lambda _: fuzz.run(), seconds=900, is_timed=True),
    "searches": Part(run=lambda _: units.run_searches(), seconds=1200),
    "every test": Part(run=lambda _: whole.run(), seconds=2400),
}


def main(arguments: list[str]) -> int:
    """Run the parts that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.extra")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PARTS))
    parser.add_argument("--minutes", type=float, help="run what changed and fits")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.names) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    end = time.monotonic() + 60 * (asked.minutes or 0)
    changed = changed_files() if asked.minutes is not None else None
    verdicts = []
    for name, part in PARTS.items():
        if asked.names and name not in asked.names:
            continue
        left = end - time.monotonic() if asked.minutes is not None else None
        start = time.perf_counter()
        verdict, detail = _verdict(part, changed, left)
        verdicts.append(verdict)
        print(f"{verdict:8} {name}: {detail} ({time.perf_counter() - start:.0f} s)", flush=True)
    print(", ".join(f"{verdicts.count(verdict)} {verdict.lower()}" for verdict in dict.fromkeys(verdicts)), flush=True)
    return 1 if "FAILED" in verdicts else 0


def _verdict(part: Part, changed: list[str] | None, left: float | None) -> tuple[str, str]:
    """Run ``part`` if there is reason to and time for it, ``left`` seconds; what came of it, and details."""
    if not is_touched(part.sources, changed):
        return "NOT RUN", f"nothing of {', '.join(part.sources)} changed"
    if left is not None and part.is_timed:
        return "NOT RUN", "times something: needs an idle machine"
    if left is not None and part.seconds > left:
        return "NOT RUN", f"takes {part.seconds} s, of which {max(left, 0):.0f} are left"
    try:
        return "PASSED", part.run(left is None)
    except Missing as error:
        return "SKIPPED", f"missing: {error}"
    except Exception as error:  # noqa: BLE001  (one part's failure is reported, the others still run)
        return "FAILED", f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The whole suite: two worker processes, each taking chunks of cases through everything."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.suites.cases import Case, collect
from tests.suites.frozen import variants
from tests.suites.harness import Examination, Result, examine
from tests.suites.steps import all_steps

WORKERS = 2
#: Cases handed to a worker at once.
CHUNK = 50


@dataclass(frozen=True)
class Report:
    """What came of all cases.

    Args:
        cases: number of cases by kind; variants with constants are ``"frozen"``.
        examinations: one per case, by its name.
        seconds: wall time.
    """

    cases: Counter[str]
    examinations: dict[str, Examination]
    seconds: float

    def results(self, step: str) -> dict[str, Result]:
        """Results of one step, by case."""
        return {name: e.results[step] for name, e in self.examinations.items() if step in e.results}

    def engines(self) -> Counter[str]:
        """How many cases each engine runs; ``"none"`` for those that nothing runs."""
        return Counter(e.engine or "none" for e in self.examinations.values())

    def statuses(self) -> Counter[str]:
        """How often each status came out, over all cases and steps."""
        return Counter(result.status for e in self.examinations.values() for result in e.results.values())

    def runs(self) -> int:
        """How many models were run, originals included."""
        return sum(e.runs for e in self.examinations.values())


def run_suite() -> Report:
    """Collect every case and take it through every step."""
    start = time.perf_counter()
    cases = collect()
    frozen = variants(cases)
    kinds = Counter(case.kind for case in cases) + Counter({"frozen": len(frozen)})
    everything = [*cases, *frozen]
    chunks = [everything[i :: len(everything) // CHUNK] for i in range(len(everything) // CHUNK)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(WORKERS, mp_context=context, initializer=_begin) as pool:
        examinations = {e.case: e for chunk in pool.map(examine_all, chunks) for e in chunk}
    return Report(kinds, examinations, time.perf_counter() - start)


def _begin() -> None:
    warnings.simplefilter("error")


def examine_all(cases: Sequence[Case]) -> list[Examination]:
    """What a worker does with a chunk."""
    steps = all_steps()
    with tempfile.TemporaryDirectory() as folder:
        return [examine(case, steps, Path(folder)) for case in cases]

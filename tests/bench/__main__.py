"""Run the benchmarks: ``python -m tests.bench [NAME …]``; exit 1 when a bound is broken twice, or one of them fails.

Each runs in a process of its own (what a process takes is at least what the one that started it has taken) and prints its figures as
they come. Other work on the machine only ever adds to a figure, so what breaks a bound is measured once more; broken twice, it is
broken. Without names all of them run, twenty minutes on two idle cores, and their figures are kept in build/bench.json.

    python -m tests.bench --quick       start-up and quantization beside onnxruntime's, three minutes
    python -m tests.bench --report      write the figures of build/bench.json into docs/benchmarks.md"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.bench import page
from tests.bench.measure import PYTHON, Result
from tests.bench.results import LAST, ROOT, BenchRun, Measured, read_run

#: Modules of this package with ``results()``, in the order in which they run.
ALL = (
    "start_up", "verifying", "partitioning", "big_model", "quantize", "npu", "splitting", "generating", "weight_only",
    "recovering", "decoder_block", "simplifying", "deploying", "growth",
)  # fmt: skip
#: Those of them with ``quick()``.
QUICK = ("start_up", "quantize")

#: Gives the results of the benchmark so called.
Measure = Callable[[str], Iterable[Result]]


class Failed(Exception):
    """A benchmark ended without results."""


def main(arguments: Sequence[str]) -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Run the benchmarks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ALL))
    parser.add_argument("--quick", action="store_true", help=f"{' and '.join(QUICK)}, in fewer rounds")
    parser.add_argument(
        "--json-out", type=Path, metavar="FILE", help=f"file for the figures ({LAST.relative_to(ROOT)})"
    )
    parser.add_argument("--report", action="store_true", help="write the figures of the last run into the page")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "FILE"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    known = QUICK if given.quick else ALL
    if unknown := set(given.names) - set(known):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}: there is {', '.join(known)}")
    if given.one:
        return measure_here(given.one[0], Path(given.one[1]), is_quick=given.quick)
    out = given.json_out or (None if given.quick or given.names else LAST)
    if given.report:
        page.write(read_run(given.json_out or LAST))
        return 0
    done = run_all(given.names or known, lambda name: measure_apart(name, is_quick=given.quick), out)
    return 0 if all(one.holds for one in done.benches.values()) else 1


def run_all(names: Iterable[str], measure: Measure, out: Path | None) -> BenchRun:
    """Run the benchmarks ``names``; what is done so far is written to ``out`` after each."""
    done = BenchRun.begin()
    for name in names:
        print(f"{name}:", flush=True)
        done.benches[name] = measured = measured_twice(name, measure)
        if measured.error:
            print(f"{name} FAILED: {measured.error}", flush=True)
        if out is not None:
            done.write(out)
    seconds = sum(one.seconds for one in done.benches.values())
    bad = [name for name, one in done.benches.items() if not one.holds]
    print(
        f"{len(done.benches)} benchmarks in {seconds:.0f} s; {', '.join(bad) or 'none'} with broken bounds", flush=True
    )
    return done


def measured_twice(name: str, measure: Measure) -> Measured:
    """Run the benchmark ``name``, once more where a bound is broken: of a figure with a bound the smaller one counts."""
    start = time.perf_counter()
    try:
        results = {one.name: one for one in measure(name)}
        broken = {one.name for one in results.values() if not one.holds}
        if not broken:
            return Measured(tuple(results.values()), time.perf_counter() - start)
        print(f"{name} once more, as a bound was broken: {', '.join(sorted(broken))}", flush=True)
        for again in measure(name):
            first = results.get(again.name)
            if first is None or again.bound is None or again.value < first.value:
                results[again.name] = again
    except Failed as error:
        return Measured((), time.perf_counter() - start, error=str(error))
    twice = tuple(one.name for one in results.values() if not one.holds and one.name in broken)
    return Measured(tuple(results.values()), time.perf_counter() - start, tries=2, broken=twice)


def measure_apart(name: str, *, is_quick: bool) -> list[Result]:
    """Run the benchmark ``name`` in a process of its own, which prints.

    Raises:
        Failed: it ended without results.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        command = [PYTHON, "-m", "tests.bench", "--one", name, str(file), *(["--quick"] if is_quick else [])]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        if code or not file.exists():
            raise Failed(f"exit {code} of its process, see above")
        return [Result(**one) for one in json.loads(file.read_text(encoding="utf-8"))]


def measure_here(name: str, file: Path, *, is_quick: bool) -> int:
    """Run the benchmark ``name`` in this process, print each result, and write them to ``file`` as JSON."""
    module = importlib.import_module(f"tests.bench.{name}")
    results = []
    for result in module.quick() if is_quick else module.results():
        print(result, flush=True)
        results.append(asdict(result))
    file.write_text(json.dumps(results), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

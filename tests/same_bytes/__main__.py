"""Compare this checkout with another one: what both write must be the same, byte for byte; exit 1 where it is not.

    python -m tests.same_bytes OTHER                                    run both, compare
    python -m tests.same_bytes OTHER --save FILE                        run OTHER alone, and keep what it gave
    python -m tests.same_bytes [OTHER] --against FILE                   compare with what was kept
    python -m tests.same_bytes OTHER --sample 20 --seed 3 --no-texts    a slice

Compared are goldens, presets and options of `quantize` on the sample models, splits of decoders, lowered programs, and JSON of
`inspect`, `check` and `analyze`. Wordings of help, lists and errors are shown as a diff and change no exit code. Differences that
are meant stand in ``expected.toml`` with their reason."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.same_bytes.compare import Difference, expected, first_difference, report
from tests.same_bytes.produce import GROUPS, HERE, Record, chosen, units

SCRIPT, EXPECTED = Path(__file__).with_name("produce.py"), Path(__file__).with_name("expected.toml")


@dataclass
class Results:
    """Case → its record; the versions of packages that bytes depend on; case → the unit that ran it."""

    cases: dict[str, Record] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    unit_of: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkout:
    """A checkout and its interpreter."""

    root: Path
    python: Path

    def run(self, unit: str, options: Iterable[str]) -> Results:
        """What the cases of one unit give, run in one process."""
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as work:
            output = Path(folder, "results.json")
            done = subprocess.run(
                [self.python, SCRIPT, unit, "--root", self.root, "--output", output, *options],
                cwd=work, env=environment | {"PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode or not output.exists():
                raise RuntimeError(f"{unit} of {self.root}: exit {done.returncode}\n{done.stderr[-2000:]}")
            results = Results(**json.loads(output.read_text(encoding="utf-8")))
            results.unit_of = dict.fromkeys(results.cases, unit)
            return results


def produced(checkouts: Sequence[Checkout], wanted: Sequence[str], options: Sequence[str], jobs: int) -> list[Results]:
    """Run the units in each checkout, ``jobs`` processes at a time."""
    every = [Results() for _ in checkouts]
    pool = ThreadPoolExecutor(jobs)
    try:
        work = [[pool.submit(checkout.run, unit, options) for checkout in checkouts] for unit in wanted]
        for futures in work:
            for results, future in zip(every, futures, strict=True):
                for name, value in vars(future.result()).items():
                    getattr(results, name).update(value)
    finally:
        pool.shutdown(cancel_futures=True)
    return every


def explained(
    pair: Sequence[Checkout], found: Sequence[Difference], unit_of: Mapping[str, str]
) -> dict[Difference, str]:
    """Run the cases of these differences again, keep their files, and say where each begins to differ."""
    told = {}
    with tempfile.TemporaryDirectory() as folder:
        for unit in {unit_of[one.case] for one in found if one.case in unit_of}:
            cases = {one.case for one in found if unit_of.get(one.case) == unit}
            for side, checkout in zip("ab", pair, strict=True):
                checkout.run(unit, ["--only", *cases, "--keep", str(Path(folder, side))])
        for one in found:
            old, new = (Path(folder, side, one.case, one.part) for side in "ab")
            if old.is_file() and new.is_file():
                told[one] = f"; first {first_difference(old, new)}"
    return told


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, nargs="?", help="the other checkout, installed in its own .venv")
    parser.add_argument("--python", type=Path, help="its interpreter, if another one")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write what OTHER gives, and stop")
    parser.add_argument("--against", type=Path, metavar="FILE", help="compare with that, instead of running OTHER")
    parser.add_argument("--decoders", type=Path, metavar="DIR", help="also split every model.onnx under DIR")
    parser.add_argument(
        "--only", default="", metavar="A,B", help=f"of {', '.join(sorted(set.union(*GROUPS.values())))}"
    )
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="one case in N")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--no-texts", action="store_true", help="leave out wordings")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--explain", type=int, default=10, metavar="N", help="say of N differences where they begin")
    told = parser.parse_args(arguments)
    told.decoders = told.decoders and told.decoders.resolve()
    if told.other is None and (told.against is None or told.save):
        parser.error("name the other checkout, or --against FILE")
    return told


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; its exit code."""
    told, start = parsed(arguments), time.perf_counter()
    only = [name for name in told.only.split(",") if name]
    groups = {name.partition("/")[0] for name in only} or set.union(*GROUPS.values())
    groups -= ({"texts"} if told.no_texts else set()) | (set() if told.decoders else {"exports"})
    wanted = [unit for unit in units(told.decoders) if GROUPS[unit.partition(":")[0]] & groups]
    options = ["--only", *(only or sorted(groups)), "--sample", str(told.sample), "--seed", str(told.seed)]
    # not resolved: the interpreter that a virtual environment links to does not know its packages
    python = (told.python or (told.other or HERE) / ".venv/bin/python").absolute()
    other, ours = Checkout((told.other or HERE).resolve(), python), Checkout(HERE, Path(sys.executable))
    if told.save:
        (made,) = produced([other], wanted, options, told.jobs)
        data = {"versions": made.versions, "cases": made.cases}
        told.save.write_text(json.dumps(data, indent=0, sort_keys=True), encoding="utf-8")
        print(f"{len(made.cases)} cases in {time.perf_counter() - start:.0f} s")
        return 0
    if told.against:
        (after,) = produced([ours], wanted, options, told.jobs)
        before = Results(**json.loads(told.against.read_text(encoding="utf-8")))
        asked = {n for n in before.cases if n.partition("/")[0] in groups and chosen(n, only, told.sample, told.seed)}
        before.cases = {name: before.cases[name] for name in asked}
    else:
        before, after = produced([other, ours], wanted, options, told.jobs)
    if before.versions != after.versions:
        print(f"of other packages: {before.versions} and {after.versions}")

    def explain(found: Sequence[Difference]) -> dict[Difference, str]:
        return explained((other, ours), found[: told.explain], after.unit_of) if told.other else {}

    open_ones = report(before.cases, after.cases, expected(EXPECTED), explain, texts=not told.no_texts)
    print(f"{time.perf_counter() - start:.0f} s")
    return 1 if open_ones else 0


if __name__ == "__main__":
    sys.exit(main())

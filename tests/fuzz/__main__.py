"""``python -m tests.fuzz``: attack every command with damaged models and texts, show what breaks, and keep it small in ``found/``.

``python -m tests.fuzz kills`` (or ``interrupts``) ends commands in the middle, and looks at what they leave."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from rich.progress import Progress

from tests.fuzz import kills
from tests.fuzz.attack import Attack, jobs
from tests.fuzz.minimise import keep, minimised
from tests.fuzz.worker import Outcome, Worker, as_json, run_all

#: Inputs between two notes of how far the attack is.
PIECE = 500


@dataclass
class State:
    """How far an attack is; written after each piece, so that it goes on where it was.

    Args:
        seed: of the attack.
        done: inputs that are over.
        codes: exit code → how often.
        found: signature → how often.
    """

    seed: int
    done: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)

    @classmethod
    def read(cls, path: Path | None, seed: int) -> State:
        """The state in ``path``; a new one where there is none yet."""
        if path is None or not path.exists():
            return cls(seed)
        stored = json.loads(path.read_text(encoding="utf-8"))
        return cls(stored["seed"], stored["done"], Counter(stored["codes"]), Counter(stored["found"]))

    def write(self, path: Path | None) -> None:
        """Keep it in ``path``."""
        if path is not None:
            made = path.with_suffix(".new")
            made.write_text(json.dumps(self.__dict__), encoding="utf-8")
            made.replace(path)

    def add(self, outcome: Outcome) -> bool:
        """Count ``outcome``; whether it is the first of its kind."""
        self.codes[str(outcome.code)] += 1
        if outcome.problem:
            self.found[outcome.signature] += 1
        return bool(outcome.problem) and self.found[outcome.signature] == 1


def attack(state: State, inputs: int, options: argparse.Namespace) -> None:
    """Run inputs until ``inputs`` are done."""
    made = Attack.prepared(state.seed)
    with tempfile.TemporaryDirectory(prefix="fuzz") as folder, Progress(disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("attack", total=inputs, completed=state.done)
        small = Worker(Path(folder) / "small", made.shared) if options.minimise else None
        while state.done < inputs:
            last = min(state.done + PIECE, inputs)
            for outcome in run_all(
                jobs(made, state.done, last), Path(folder), workers=options.workers, shared=made.shared
            ):
                if state.add(outcome):
                    print(as_json(outcome), flush=True)
                    if small is not None and "m.onnx" in outcome.job.files:
                        print(
                            f"  kept: {keep(minimised(outcome, small, made.without(outcome.job)), outcome)}", flush=True
                        )
                bar.advance(task)
            state.done = last
            state.write(options.resume)
        if small is not None:
            small.end()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("what", nargs="?", default="inputs", choices=("inputs", "kills", "interrupts"))
    parser.add_argument("--inputs", type=int, default=1000, help="how many damaged inputs")
    parser.add_argument("--count", type=int, default=100, help="how many kills or interrupts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="keep in FILE how far it is; an interrupted attack goes on there"
    )
    parser.add_argument(
        "--minimise", action="store_true", help="make findings small, and keep them in tests/fuzz/found"
    )
    options = parser.parse_args()
    if options.what != "inputs":
        with tempfile.TemporaryDirectory(prefix="fuzz") as folder:
            problems = kills.run(options.count, options.seed, options.what.rstrip("s"), Path(folder))
        print("\n".join(problems) or f"{options.count} {options.what}: nothing lost")
        return 1 if problems else 0
    state = State.read(options.resume, options.seed)
    attack(state, options.inputs, options)
    print(f"{state.done} inputs, exit codes {dict(sorted(state.codes.items()))}")
    for signature, count in state.found.most_common():
        print(f"{count:6} {signature}")
    return 1 if state.found else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""``python -m tests.fuzz``: attack every command with damaged models and texts, show what breaks, and keep it small in ``found/``.

``python -m tests.fuzz kills`` (or ``interrupts``) ends commands in the middle, and looks at what they leave."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.progress import track

from tests.fuzz import kills
from tests.fuzz.attack import Attack
from tests.fuzz.minimise import keep, minimised
from tests.fuzz.worker import Worker, run_all


@dataclass
class State:
    """How far an attack is.

    Args:
        seed: of the attack.
        done: inputs that are over.
        codes: exit code → how often.
        found: signature → how often.
    """

    seed: int
    done: int = 0
    codes: dict[str, int] = field(default_factory=dict)
    found: dict[str, int] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Keep it in ``path``."""
        made = path.with_suffix(".new")
        made.write_text(json.dumps(asdict(self)), encoding="utf-8")
        made.replace(path)


def attack(state: State, options: argparse.Namespace, folder: Path) -> None:
    """Run inputs until all are done, and tell what is found."""
    made, numbers = Attack.prepared(state.seed), range(state.done, options.inputs)
    outcomes = run_all(made.job, numbers, folder, options.workers)
    for outcome in track(outcomes, "attack", options.inputs, state.done, disable=not sys.stderr.isatty()):
        code, signature = str(outcome.code), outcome.signature
        state.codes[code] = state.codes.get(code, 0) + 1
        if outcome.problem:
            state.found[signature] = state.found.get(signature, 0) + 1
            if state.found[signature] == 1:
                print(outcome, flush=True)
                if options.minimise and "m.onnx" in outcome.job.files:
                    with Worker(folder / "small") as worker:
                        small = minimised(outcome, worker, made.alone(state.done))
                    print(f"  kept: {keep(small, outcome)}", flush=True)
        state.done += 1
        if options.resume:
            state.write(options.resume)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    add = parser.add_argument
    add("what", nargs="?", default="inputs", choices=("inputs", "kills", "interrupts"))
    add("--inputs", type=int, default=1000, help="how many damaged inputs")
    add("--count", type=int, default=100, help="how many kills or interrupts")
    add("--seed", type=int, default=1)
    add("--workers", type=int, default=2)
    add("--resume", type=Path, metavar="FILE", help="keep in FILE how far it is; an interrupted attack goes on there")
    add("--minimise", action="store_true", help="make findings small, and keep them in tests/fuzz/found")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz") as name:
        if options.what != "inputs":
            problems = kills.run(options.count, options.seed, options.what.rstrip("s"), kills.prepared(Path(name)))
            print("\n".join(problems) or f"{options.count} {options.what}: nothing lost")
            return 1 if problems else 0
        state = State(options.seed)
        if options.resume and options.resume.exists():
            state = State(**json.loads(options.resume.read_text(encoding="utf-8")))
        attack(state, options, Path(name))
    print(f"{state.done} inputs, exit codes {dict(sorted(state.codes.items()))}")
    for signature, count in sorted(state.found.items(), key=lambda item: -item[1]):
        print(f"{count:6} {signature}")
    return 1 if state.found else 0


if __name__ == "__main__":
    raise SystemExit(main())

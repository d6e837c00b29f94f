"""Commands killed or interrupted at random moments: what was there is whole, old or new, what is read stays, the next run tidies up.

``run(200, 1, "kill", prepared(folder))`` gives the problems found. Half of the moments are drawn from the whole time that a command
takes, half from the instants after its first hidden file appears, while it writes; an interrupt comes after our first line."""

from __future__ import annotations

import hashlib
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.cases.cli_helpers import CALIB, DIGITS, cli, command_line, environment
from tests.cases.tiny_decoder import dynamic
from tests.cases.waiting import PATIENCE

Kind = Literal["kill", "interrupt"]

#: How our hidden files and folders are called.
HIDDEN = re.compile(r"\..+\.qdqtool-[0-9a-f]{6}-[0-9a-f]{12}\.(tmp|old)")
#: Seconds after the first hidden file from which a moment is drawn, and that a process takes to begin.
WRITING, BEGINNING = 0.05, 1.0
#: Signals of Ctrl-C, of a service that stops, and of a terminal that closes.
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Numbers that no two runs of `deploy` share.
_SECONDS = re.compile(rb'"(seconds|wall_s)": ?(\{[^}]*\}|[^,}]*)')

#: A command line that writes into OUT, and what stands in it for {} in the run before it, and in the one that is killed.
CASES = {
    "save": ("externalize IN/{}.onnx -o OUT/m.onnx --threshold 64", "other", "m"),
    "quantize": ("quantize IN/m.onnx --preset xint8 --data IN/calib.npz --samples {} -o OUT/m.onnx --save-ranges OUT/r.json "
                 "--report OUT/report.json --json-out OUT/j.json", "3", "4"),
    "split": ("split IN/{}.onnx --prefill 4 --context 16 -o OUT/s", "decoder", "decoder2"),
    "deploy": ("deploy IN/m.onnx --target vitis_xint8 --data IN/calib.npz --simulate-samples 0 -o OUT/d --samples {}", "3", "4"),
}  # fmt: skip
#: Cases whose files are one version, not each its own.
TOGETHER = ("deploy",)


@dataclass(frozen=True)
class Prepared:
    """A case that has run.

    Args:
        name: of the case.
        command: its words.
        work: where it writes; ``inputs`` lie in the folder IN beside it.
        seconds: how long a process takes with it.
        old: what is there before it, by name; the files themselves lie beside ``work``.
        new: what is there after it.
        inputs: what it reads.
    """

    name: str
    command: list[str]
    work: Path
    seconds: float
    old: dict[str, str]
    new: dict[str, str]
    inputs: dict[str, str]

    def problems(self) -> list[str]:
        """What is wrong with the output: files that are neither the old nor the new ones; and with the inputs."""
        found = _hashes(self.work)
        names = sorted(self.old.keys() | self.new.keys() | found.keys())
        changed = [] if _hashes(self.work.with_name("IN")) == self.inputs else ["an input is changed"]
        broken = [name for name in names if found.get(name) not in (self.old.get(name), self.new.get(name))]
        if self.name in TOGETHER and found not in (self.old, self.new):
            broken.append("the folder")
        return [*changed, *(f"{name} is neither old nor new" for name in broken)]


def prepared(folder: Path) -> list[Prepared]:
    """All cases, which work in ``folder``."""
    (folder / "IN").mkdir(parents=True)
    shutil.copy(DIGITS, folder / "IN" / "m.onnx")
    shutil.copy(CALIB, folder / "IN" / "calib.npz")
    cli("simplify", DIGITS, "-o", folder / "IN" / "other.onnx")
    cli("quantize", dynamic(folder / "IN" / "decoder.onnx"), "--preset", "w8", "-o", folder / "IN" / "decoder2.onnx")
    return [_prepare(name, folder) for name in CASES]


def _prepare(name: str, folder: Path) -> Prepared:
    work, (line, *versions) = folder / name, CASES[name]
    line = line.replace("IN/", f"{folder}/IN/").replace("OUT/", f"{work}/")
    before, command = ([*line.format(version).split(), "--overwrite"] for version in versions)
    cli(*before)
    shutil.copytree(work, work.with_suffix(".old"))
    start = time.monotonic()
    cli(*command)
    seconds = time.monotonic() - start + BEGINNING
    hashes = [_hashes(place) for place in (work.with_suffix(".old"), work, folder / "IN")]
    return Prepared(name, command, work, seconds, *hashes)


def run(count: int, seed: int, kind: Kind, cases: Sequence[Prepared]) -> list[str]:
    """Kill or interrupt ``count`` commands, drawn by ``seed``; what went wrong, a line each.

    Args:
        count: how many.
        seed: draws the moments.
        kind: SIGKILL, or one of `INTERRUPTS`, now and then twice.
        cases: the commands.
    """
    found = []
    for number in range(count):
        case = cases[number % len(cases)]
        shutil.rmtree(case.work, ignore_errors=True)
        shutil.copytree(case.work.with_suffix(".old"), case.work)
        problems = _ended(case, kind, random.Random(f"{seed} {kind} {number}"))
        cli(*case.command)
        left = [path.name for path in case.work.rglob("*") if HIDDEN.fullmatch(path.name)]
        problems += [f"the next run leaves {', '.join(left)}"] if left else []
        found += [f"{kind} {seed}:{number} {case.name}: {text}" for text in problems]
    return found


def _ended(case: Prepared, kind: Kind, rng: random.Random) -> list[str]:
    """What is wrong after the command was killed or interrupted."""
    while_writing, share, twice = rng.random() < 0.5, rng.random(), kind == "interrupt" and rng.random() < 0.2
    number = signal.SIGKILL if kind == "kill" else rng.choice(INTERRUPTS)
    share *= rng.random() < 0.5 or not while_writing  # at the instant at which the file is made
    with subprocess.Popen(
        command_line(*case.command), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: [signal.signal(each, signal.SIG_DFL) for each in INTERRUPTS],
    ) as process:  # fmt: skip
        if kind == "interrupt":
            _wait(process, lambda: _listens(process.pid))
        start = time.monotonic()
        if while_writing:
            _wait(process, lambda: any(HIDDEN.fullmatch(path.name) for path in case.work.rglob(".*")))
        time.sleep(share**2 * WRITING if while_writing else share * case.seconds)
        when = f"after {time.monotonic() - start:.3f} s"
        process.send_signal(number)
        if twice:
            time.sleep(share**2 * WRITING)
            process.send_signal(number)
        try:
            said = process.communicate(timeout=PATIENCE)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            return [f"interrupted {when} it goes on for {PATIENCE:g} s"]
    found = [f"{when}: {text}" for text in case.problems()]
    if kind == "interrupt" and (process.returncode not in (0, 128 + number) or "Traceback" in said):
        found.append(f"interrupted {when} it exits {process.returncode}: {said[-300:]}")
    if kind == "interrupt" and (left := [path.name for path in case.work.rglob(".*") if HIDDEN.fullmatch(path.name)]):
        found.append(f"interrupted {when} it leaves {', '.join(left)}")
    return found


def _wait(process: subprocess.Popen[str], until: Callable[[], bool]) -> None:
    while process.poll() is None and not until():
        time.sleep(0.001)


def _listens(pid: int) -> bool:
    """Whether the process has come to our first line, which hears SIGHUP last; the interpreter hears SIGINT before."""
    caught = re.findall(r"SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(caught[0], 16) >> (signal.SIGHUP - 1) & 1)


def _hashes(folder: Path) -> dict[str, str]:
    """Name → hash of every file that is not hidden, of reports without the times in them."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not any(HIDDEN.fullmatch(part) for part in name.parts):
            data = path.read_bytes()
            data = data if path.suffix in (".onnx", ".data") else _SECONDS.sub(b"", data)
            found[str(name)] = hashlib.sha256(data).hexdigest()
    return found

"""Commands killed or interrupted at random moments: what was there is whole, old or new, what is read stays, the next run tidies up.

``run(200, 1, "kill", folder)`` gives the problems found. Half of the moments are drawn from the whole time that a command takes,
half from the instants after its first hidden file appears, while it writes; an interrupt comes after our first line."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import random
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
from onnx import numpy_helper

from qdqtool.cli.main import run as run_here
from tests.cases.cli_helpers import CALIB, DIGITS, command_line, environment
from tests.cases.tiny_decoder import dynamic

Kind = Literal["kill", "interrupt"]

#: How our hidden files and folders are called.
HIDDEN = re.compile(r"\..+\.qdqtool-[0-9a-f]{6}-[0-9a-f]{12}\.(tmp|old)")
#: Seconds after the first hidden file from which a moment is drawn, and for which a command may go on once it is interrupted.
WRITING, PATIENCE = 0.05, 20.0
#: Numbers that no two runs of `deploy` share.
_SECONDS = re.compile(rb'"(seconds|wall_s)": ?(\{[^}]*\}|[^,}]*)')


@dataclass(frozen=True)
class Case:
    """A command that is killed.

    Args:
        words: its words; OUT is the folder it writes into, IN the folder of its inputs.
        old: words that the run before it has instead, so that old and new differ.
        together: the files are one version, not each its own.
    """

    words: tuple[str, ...]
    old: tuple[str, ...]
    together: bool = False


_QUANTIZE = ("quantize", "IN/m.onnx", "--preset", "xint8", "--data", "IN/calib.npz", "--samples")
_MORE = ("-o", "OUT/m.onnx", "--save-ranges", "OUT/r.json", "--report", "OUT/report.json", "--json-out", "OUT/j.json")
_DEPLOY = ("deploy", "IN/m.onnx", "--target", "vitis_xint8", "--data", "IN/calib.npz", "--simulate-samples", "0",
           "-o", "OUT/d", "--samples")  # fmt: skip
_SPLIT = ("--prefill", "4", "--context", "16", "-o", "OUT/s")
CASES = {
    "save": Case(("externalize", "IN/m.onnx", "-o", "OUT/m.onnx", "--threshold", "64"),
                 ("externalize", "IN/other.onnx", "-o", "OUT/m.onnx", "--threshold", "64")),
    "quantize": Case((*_QUANTIZE, "4", *_MORE), (*_QUANTIZE, "3", *_MORE)),
    "split": Case(("split", "IN/decoder.onnx", *_SPLIT), ("split", "IN/decoder2.onnx", *_SPLIT)),
    "deploy": Case((*_DEPLOY, "4"), (*_DEPLOY, "3"), together=True),
}  # fmt: skip


def run(count: int, seed: int, kind: Kind, folder: Path) -> list[str]:
    """Kill or interrupt ``count`` commands, drawn by ``seed``; what went wrong, a line each.

    Args:
        count: how many.
        seed: draws commands and moments.
        kind: SIGKILL, or SIGINT as of Ctrl-C, now and then twice.
        folder: where they work; made where missing.
    """
    rng = random.Random(f"{seed} {kind}")
    inputs = _inputs(folder / "in")
    made = {name: _Prepared(name, case, folder) for name, case in CASES.items()}
    found = []
    for number in range(count):
        name = list(CASES)[number % len(CASES)]
        found += [f"{kind} {seed}:{number} {name}: {text}" for text in _attempt(rng, kind, made[name])]
        if _hashes(folder / "in") != inputs:
            return [*found, f"{kind} {seed}:{number} {name}: an input is changed"]
    return found


class _Prepared:
    """A case with what its output is before and after, and how long it takes."""

    def __init__(self, name: str, case: Case, folder: Path) -> None:
        self.folder, self.work, self.template = folder, folder / name, folder / f"{name}.old"
        self.together, self.command = case.together, self._words(case.words)
        _here(self._words(case.old))
        shutil.copytree(self.work, self.template)
        start = time.monotonic()
        done = subprocess.run(command_line(*self.command), env=environment(), capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        self.seconds = time.monotonic() - start
        self.old, self.new = _hashes(self.template), _hashes(self.work)

    def _words(self, words: tuple[str, ...]) -> list[str]:
        """``words`` with the folders in them."""
        places = {"IN/": f"{self.folder / 'in'}/", "OUT/": f"{self.work}/"}
        return [*(places.get(w[: w.find("/") + 1], "") + w[w.find("/") + 1 :] if "/" in w else w for w in words),
                "--overwrite"]  # fmt: skip

    def problems(self) -> list[str]:
        """What is wrong with the output: files that are neither the old nor the new ones."""
        found = _hashes(self.work)
        if self.together:
            return (
                []
                if found in (self.old, self.new)
                else [f"the folder is neither old nor new: {_differing(found, self)}"]
            )
        broken = [name for name, digest in found.items() if digest not in (self.old.get(name), self.new.get(name))]
        lost = [name for name in self.old.keys() & self.new.keys() if name not in found]
        return [*(f"{name} is neither old nor new" for name in broken), *(f"{name} is lost" for name in lost)]


def _differing(found: dict[str, str], made: _Prepared) -> str:
    return ", ".join(sorted(name for name in made.old.keys() | found.keys() if found.get(name) != made.old.get(name)))


def _attempt(rng: random.Random, kind: Kind, made: _Prepared) -> list[str]:
    shutil.rmtree(made.work, ignore_errors=True)
    shutil.copytree(made.template, made.work)
    command = command_line(*made.command)
    while_writing, share, twice = rng.random() < 0.5, rng.random(), kind == "interrupt" and rng.random() < 0.2
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:  # fmt: skip
        while kind == "interrupt" and process.poll() is None and not _listens(process.pid):
            time.sleep(0.001)
        start = time.monotonic()
        if while_writing:
            while process.poll() is None and not _hidden(made.work):
                time.sleep(0.001)
            time.sleep(share**2 * WRITING)
        else:
            time.sleep(share * made.seconds)
        waited = time.monotonic() - start
        process.send_signal(signal.SIGKILL if kind == "kill" else signal.SIGINT)
        if twice:
            time.sleep(share**2 * WRITING)
            process.send_signal(signal.SIGINT)
        try:
            said = process.communicate(timeout=PATIENCE)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            return [f"interrupted after {waited:.3f} s it goes on for {PATIENCE:g} s"]
    found = [f"after {waited:.3f} s: {text}" for text in made.problems()]
    if kind == "interrupt":
        if process.returncode not in (0, 130):
            found.append(f"interrupted after {waited:.3f} s it exits {process.returncode}: {said[-300:]}")
        if "Traceback" in said:
            found.append(f"interrupted after {waited:.3f} s it shows a traceback: {said[-300:]}")
    _here(made.command)
    left = _hidden(made.work)
    return [*found, *([f"after {waited:.3f} s the next run leaves {left}"] if left else [])]


def _listens(pid: int) -> bool:
    """Whether the process has come to our first line, which hears SIGTERM as well; the interpreter hears SIGINT before."""
    try:
        caught = re.search(r"SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return True
    return caught is None or bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def _here(words: list[str]) -> None:
    """Run a command in this process."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = run_here(words)
    assert code == 0, said.getvalue()


def _hidden(folder: Path) -> list[str]:
    return sorted(
        entry for _, folders, files in os.walk(folder) for entry in (*folders, *files) if HIDDEN.fullmatch(entry)
    )


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


def _inputs(folder: Path) -> dict[str, str]:
    folder.mkdir(parents=True)
    shutil.copy(DIGITS, folder / "m.onnx")
    shutil.copy(CALIB, folder / "calib.npz")
    _here(["simplify", str(DIGITS), "-o", str(folder / "other.onnx")])
    decoder = onnx.load(dynamic(folder / "decoder.onnx"))
    for tensor in decoder.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(2), tensor.name))
    onnx.save(decoder, folder / "decoder2.onnx")
    return _hashes(folder)

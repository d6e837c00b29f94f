"""Processes that run command lines one after the other, and the watch over them: who dies, hangs or takes too much is found out."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import re
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from queue import SimpleQueue

#: CPU seconds and bytes that one command may take, and seconds after which it is asleep, or a machine has no time for it.
CPU, MEMORY, ASLEEP = 10.0, 2 << 30, 300.0
#: Exit codes of a command that kept its promise.
ALLOWED = (0, 1, 2, 3)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f]")


@dataclass(frozen=True)
class Job:
    """A command line, and the files it finds in its folder."""

    label: str
    arguments: list[str]
    files: dict[str, bytes]


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    Args:
        job: the job.
        problem: what is wrong, in a word or two; empty where nothing is.
        code: its exit code; None where the process died or was killed.
        where: of an internal error, its type and the function that raised it.
        peak: bytes of memory at most.
        said: the end of what it printed.
    """

    job: Job
    problem: str
    code: int | None = None
    where: str = ""
    peak: int = 0
    said: str = ""

    @property
    def signature(self) -> str:
        """Problems of one cause have one signature, as far as can be told."""
        return f"{self.problem}: {self.where or self.job.arguments[0]}"

    def __str__(self) -> str:
        return f"{self.signature} ({self.job.label}: {' '.join(self.job.arguments)})"


def run_all(make: Callable[[int], Job], numbers: Iterable[int], folder: Path, workers: int) -> Iterator[Outcome]:
    """The outcomes of the jobs that ``make`` makes of ``numbers``, in this order."""
    idle: SimpleQueue[Worker] = SimpleQueue()

    def check(number: int) -> Outcome:
        worker = idle.get()
        try:
            return worker.check(make(number))
        finally:
            idle.put(worker)

    with contextlib.ExitStack() as stack:
        for k in range(workers):
            idle.put(stack.enter_context(Worker(folder / f"w{k}")))
        pool = stack.enter_context(ThreadPoolExecutor(workers))
        for some in _pieces(numbers, 50 * workers):  # an interrupt ends with those that are begun
            yield from pool.map(check, some)


def _pieces(numbers: Iterable[int], size: int) -> Iterator[list[int]]:
    left = iter(numbers)
    while piece := list(itertools.islice(left, size)):
        yield piece


@dataclass
class Worker:
    """A process that runs one command line after the other, in ``folder``; ``cpu`` and ``memory`` are what each may take."""

    folder: Path
    cpu: float = CPU
    memory: int = MEMORY
    _pipe: Connection = field(init=False)
    _process: SpawnProcess = field(init=False)

    def __enter__(self) -> Worker:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self.folder, self.cpu, self.memory), daemon=True)
        self._process.start()
        theirs.close()
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.join()
        shutil.rmtree(self.folder, ignore_errors=True)

    def check(self, job: Job) -> Outcome:
        """Run ``job`` and wait for it."""
        self._pipe.send(job)
        try:
            found = self._pipe.recv() if self._pipe.poll(ASLEEP) else Outcome(job, "asleep")
        except (EOFError, ConnectionResetError):
            self._process.join()
            code = self._process.exitcode
            said = self.folder.with_suffix(".out").read_text(errors="replace")[-2000:]
            found = Outcome(job, "hang" if code == -signal.SIGXCPU else f"dead process (exit {code})", said=said)
        if found.code is None or found.peak > self.memory // 2:  # what one command left behind is not the next one's
            self.__exit__()
            self.__enter__()
        return found


# --- in the process ---------------------------------------------------------------------------------------------------


def _serve(pipe: Connection, folder: Path, cpu: float, memory: int) -> None:
    import onnx  # noqa: F401 - imported once, not for each command
    import onnxruntime
    from qdq_passes.core import budget

    from qdqtool.cli.main import run

    onnxruntime.set_default_logger_severity(4)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, resource.RLIM_INFINITY))
    out = folder.with_suffix(".out")
    sys.stdout = sys.stderr = said = out.open("a", encoding="utf-8", errors="replace")
    for stream in (1, 2):
        os.dup2(said.fileno(), stream)
    while True:
        job = pipe.recv()
        _prepare(folder, job.files)
        budget.forget()
        said.truncate(0)
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        start = time.process_time()
        resource.setrlimit(resource.RLIMIT_CPU, (int(start + 1.5 * cpu) + 1, resource.RLIM_INFINITY))
        code = run([*job.arguments, "-v"])
        cpu_taken = time.process_time() - start
        said.flush()
        text = out.read_text(encoding="utf-8", errors="replace")
        peak = int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) << 10
        problems = {
            f"exit {code}": code not in ALLOWED, (left := _left(job)): left, "control characters": _CONTROL.search(text),
            "slow": cpu_taken > cpu, "memory": peak > memory,
        }  # fmt: skip
        problem = next((name for name, wrong in problems.items() if wrong), "")
        where = _raised(text) if code not in ALLOWED else ""
        pipe.send(Outcome(job, problem, code, where, peak, text[-2000:]))


def _prepare(folder: Path, files: dict[str, bytes]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.chdir(folder)
    for name, data in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(data)


def _left(job: Job) -> str:
    """What a command did that none may: to its inputs, or with a file that it did not take away."""
    for name, data in job.files.items() if "--overwrite" not in job.arguments else ():
        if not os.path.isfile(name) or Path(name).read_bytes() != data:
            return f"changed {name}"
    stale = [path for path in Path().rglob(".*") if path.suffix in (".tmp", ".old")]
    return f"left {stale[0]}" if stale else ""


def _raised(text: str) -> str:
    """Of the first traceback in ``text``, the cause of the others: its exception, and the last function of ours on its way."""
    cause = text.partition("Traceback (most recent call last):\n")[2].partition("\n\n")[0]
    ours = re.findall(r'File "[^"]*?((?:qdqtool|qdq_passes)/[^"]+)", line \d+, in (\S+)', cause)
    error = re.findall(r"^[\w.]+", cause, re.MULTILINE)
    return " in ".join([*error[-1:], *("/".join(frame) for frame in ours[-1:])])

"""Processes that run command lines one after the other, and the watch over them: who dies, hangs or takes too much is found out."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import resource
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path

#: CPU seconds and bytes that one command may take, and seconds without any work.
CPU, MEMORY, ASLEEP = 10.0, 2 << 30, 60.0
#: Exit codes of a command that kept its promise.
ALLOWED = (0, 1, 2, 3)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f]")
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Job:
    """A command line, and the files it finds in its folder."""

    label: str
    arguments: list[str]
    files: dict[str, bytes]


@dataclass
class Outcome:
    """What became of a job.

    Args:
        job: the job.
        code: its exit code; None where the process died or was killed.
        problem: what is wrong, in a word or two; empty where nothing is.
        where: of an internal error, its type and the line that raised it.
        cpu: seconds of CPU.
        peak: bytes of memory at most.
        said: the end of what it printed.
    """

    job: Job
    code: int | None = None
    problem: str = ""
    where: str = ""
    cpu: float = 0.0
    peak: int = 0
    said: str = ""

    @property
    def signature(self) -> str:
        """Problems of one cause have one signature, as far as can be told."""
        return f"{self.problem}: {self.where}" if self.where else f"{self.problem}: {self.job.arguments[0]}"


def run_all(
    jobs: Iterable[Job], folder: Path, *, workers: int = 2, shared: dict[str, bytes] | None = None
) -> Iterator[Outcome]:
    """The outcomes of ``jobs``, as they come; ``shared`` files lie in the folder of every job."""
    pool = [Worker(folder / f"w{k}", shared or {}) for k in range(workers)]
    jobs = iter(jobs)
    try:
        for worker in pool:
            worker.give(next(jobs, None))
        while busy := [worker for worker in pool if worker.job is not None]:
            ready = wait([worker.pipe for worker in busy], timeout=0.25)
            for worker in busy:
                outcome = worker.outcome() if worker.pipe in ready else worker.watch()
                if outcome is not None:
                    worker.give(next(jobs, None))
                    yield outcome
    finally:
        for worker in pool:
            worker.end()


@dataclass
class Worker:
    """A process that runs one command line after the other, in ``folder``, where ``shared`` files lie beside those of each job."""

    folder: Path
    shared: dict[str, bytes]
    job: Job | None = None
    pipe: Connection = field(init=False)
    process: multiprocessing.process.BaseProcess = field(init=False)
    _cpu: float = 0.0
    _last: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self) -> None:
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, str(self.folder), self.shared), daemon=True)
        self.process.start()
        theirs.close()
        assert self.pipe.recv() == "ready"

    def check(self, job: Job) -> Outcome:
        """Run ``job`` and wait for it."""
        self.give(job)
        while True:
            ready = self.pipe.poll(0.25)
            found = self.outcome() if ready else self.watch()
            if found is not None:
                return found

    def give(self, job: Job | None) -> None:
        """Begin with ``job``; None: there is none."""
        self.job = job
        if job is not None:
            self._cpu, self._last = self._seconds(), (self._seconds(), time.monotonic())
            self.pipe.send(asdict(job))

    def outcome(self) -> Outcome:
        """What became of the job, which has ended."""
        assert self.job is not None
        try:
            found = Outcome(self.job, **self.pipe.recv())
        except (EOFError, ConnectionResetError):
            self.process.join()
            return self._anew(f"dead process (exit {self.process.exitcode})")
        if found.code not in ALLOWED:
            found.problem = f"exit {found.code}"
        elif found.problem:
            pass
        elif found.cpu > CPU:
            found.problem = "slow"
        elif found.peak > MEMORY:
            found.problem = "memory"
        if found.peak > MEMORY // 2:  # what one command left behind is not the next one's
            self.end()
            self._start()
        return found

    def watch(self) -> Outcome | None:
        """Kill the process if its job takes too long, and say so."""
        assert self.job is not None
        now, seconds = time.monotonic(), self._seconds()
        if seconds - self._last[0] > 0.02:
            self._last = seconds, now
        asleep = now - self._last[1] > ASLEEP
        if seconds - self._cpu <= CPU * 1.5 and not asleep:
            return None
        self.process.kill()
        self.process.join()
        return self._anew("asleep" if asleep else "hang")

    def _anew(self, problem: str) -> Outcome:
        assert self.job is not None
        said = self.folder.with_suffix(".out")
        found = Outcome(self.job, None, problem, said=said.read_text(errors="replace")[-2000:] if said.exists() else "")
        self._start()
        return found

    def _seconds(self) -> float:
        """CPU seconds of the process so far."""
        try:
            words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(words[11]) + int(words[12])) / _TICK

    def end(self) -> None:
        """Kill the process; its folder goes."""
        self.process.kill()
        self.process.join()
        shutil.rmtree(self.folder, ignore_errors=True)


# --- in the process ---------------------------------------------------------------------------------------------------


def _serve(pipe: Connection, folder: str, shared: dict[str, bytes]) -> None:
    import onnx  # noqa: F401 - imported once, not for each command
    import onnxruntime
    from qdq_passes.core import budget

    from qdqtool.cli.main import run

    onnxruntime.set_default_logger_severity(4)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, resource.RLIM_INFINITY))
    said = open(f"{folder}.out", "w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - for as long as the process lives
    for stream in (1, 2):
        os.dup2(said.fileno(), stream)
    sys.stdout = sys.stderr = said
    pipe.send("ready")
    while True:
        job = pipe.recv()
        _prepare(folder, {**shared, **job["files"]})
        budget.forget()
        said.seek(0)
        said.truncate()
        _clear_peak()
        start = time.process_time()
        code = run([*job["arguments"], *_verbosity(job["arguments"])])
        cpu = time.process_time() - start
        said.flush()
        files = {} if "--overwrite" in job["arguments"] else {**shared, **job["files"]}
        text = Path(f"{folder}.out").read_text(encoding="utf-8", errors="replace")
        where = _raised(text) if code not in ALLOWED else ""
        problem = _left(files) or ("control characters" if _CONTROL.search(text) else "")
        pipe.send({"code": code, "problem": problem, "cpu": cpu, "peak": _peak(), "said": text[-2000:], "where": where})


def _left(files: dict[str, bytes]) -> str:
    """What a command did that none may: to its inputs, or with a file that it did not take away."""
    changed = [name for name, data in files.items() if not os.path.isfile(name) or Path(name).read_bytes() != data]
    stale = [path for path in Path().rglob(".*") if path.suffix in (".tmp", ".old")]
    return f"changed {changed[0]}" if changed else f"left {stale[0]}" if stale else ""


def _prepare(folder: str, files: dict[str, bytes]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    os.chdir(folder)
    for name, data in files.items():
        if os.path.dirname(name):
            os.makedirs(os.path.dirname(name), exist_ok=True)
        with open(name, "wb") as file:
            file.write(data)


def _verbosity(arguments: list[str]) -> list[str]:
    """``-v`` for the traceback of what goes wrong."""
    return [] if "-v" in arguments or "-q" in arguments else ["-v"]


def _raised(text: str) -> str:
    """Type of the last exception of the traceback in ``text`` and the last line of ours that it went through."""
    failed = re.findall(
        r"(?:failed with (\w+)|broke the model): .*?(?:\((\w+\.py, line \d+)\)|rule ([\w-]+)|; ([\w-]+))", text
    )
    if failed:
        return " in ".join(word for word in failed[-1] if word)
    lines = re.findall(r'File "[^"]*?((?:qdqtool|qdq_passes)/[^"]+)", line \d+, in (\S+)', text)
    error = re.findall(r"internal error: (\w+)", text)
    return f"{error[-1] if error else '?'} in {'/'.join(lines[-1]) if lines else '?'}"


def _clear_peak() -> None:
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _peak() -> int:
    """Bytes of memory at most since `_clear_peak`."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) << 10 if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def as_json(outcome: Outcome) -> str:
    """A finding in one line, without its files."""
    return json.dumps(
        {
            "label": outcome.job.label,
            "arguments": outcome.job.arguments,
            "problem": outcome.problem,
            "where": outcome.where,
            "cpu": round(outcome.cpu, 2),
            "peak": outcome.peak,
        }
    )

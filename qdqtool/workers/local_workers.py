"""Processes of this machine: started when there is work, replaced when they die, gone when the block ends."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import BinaryIO, Self, TypeVar, cast

import onnx_ir as ir

from qdqtool.io.files.progress import Progress
from qdqtool.workers.shared_model import SharedFolder, SharedModel
from qdqtool.workers.task_row import Row, Task
from qdqtool.workers.worker_tasks import (
    CONTEXT,
    DONE,
    KEPT,
    ONE_THREAD,
    TASK,
    Answer,
    Packed,
    read_frame,
    serve,
    write_frame,
)

C = TypeVar("C")
T = TypeVar("T")
R = TypeVar("R")

#: Tasks begun before the first one without a result, per worker: bounds what is held when one task takes long.
AHEAD = 8


class LocalWorkers:
    """So many processes, each with one thread; a context manager.

    They are made by a fresh interpreter, not by forking, so that no thread or session of this process is copied into them, and
    do not import the caller's main module.

    Args:
        count: how many work at a time.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._folder = SharedFolder()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in list(self._all):
            self._end(worker)
        self._folder.remove()

    def share(self, model: ir.Model | str | os.PathLike[str]) -> SharedModel:
        """See `Workers.share`: through a file in the folder for temporary files, which the workers map."""
        return self._folder.add(model)

    def sees(self, path: str) -> bool:
        """See `Workers.sees`."""
        return os.path.exists(path)

    def map(
        self, function: Callable[[C, T], R], context: C, tasks: Iterable[T], *, progress: Progress | None = None
    ) -> Iterator[R]:
        """See `Workers.map`."""
        packed, row = Packed.of(function, context), Row(tasks)
        busy: dict[_Worker, Task] = {}
        events: Events = queue.SimpleQueue()
        try:
            while True:
                while len(busy) < self.count and (task := row.take(self.count * AHEAD)) is not None:
                    worker = self._hired()
                    task.attempts += 1
                    busy[worker] = task
                    worker.give(task.data, packed, events)
                if not busy:
                    break
                worker, answer = _next(events)
                task = busy.pop(worker)
                if answer is None:
                    self._all.discard(worker)
                    row.again(task, worker.fate())
                    continue
                self._idle.append(worker)
                row.finish(task, answer)
                if progress is not None and answer.done:
                    progress(row.done, row.total)
                yield from row.ready()
        finally:
            for worker in busy:  # what they would answer is of no use
                self._end(worker)

    def _hired(self) -> _Worker:
        """A worker that is idle and alive, or a new one."""
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
            self._end(worker)
        worker = _Worker()
        self._all.add(worker)
        return worker

    def _end(self, worker: _Worker) -> None:
        self._all.discard(worker)
        worker.end()


def _next(events: Events) -> tuple[_Worker, Answer | None]:
    while True:
        with suppress(queue.Empty):  # a wait without end cannot be interrupted on every system
            return events.get(timeout=1)


class _Worker:
    """One process, and the thread that talks to it; its answers, and None when it dies, come as events."""

    def __init__(self) -> None:
        start = f"import sys; sys.path[:] = {sys.path!r}; from {serve.__module__} import serve; serve()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", start],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **dict.fromkeys(ONE_THREAD, "1")},
            process_group=0 if os.name == "posix" else None,  # an interrupt at the terminal is for us, who end them
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        self._known: list[str] = []
        self._orders: queue.SimpleQueue[tuple[bytes, Packed, Events] | None] = queue.SimpleQueue()
        threading.Thread(target=self._talk, daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def give(self, task: bytes, packed: Packed, events: Events) -> None:
        """Have it do a task; what becomes of it is put into ``events``."""
        self._orders.put((task, packed, events))

    def end(self) -> None:
        """End the process."""
        self._orders.put(None)
        self._process.kill()
        self._process.wait()

    def fate(self) -> str:
        """How the process ended, which answers no more."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)
        self.end()
        code = self._process.returncode
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def _talk(self) -> None:
        orders, answers = cast(BinaryIO, self._process.stdin), cast(BinaryIO, self._process.stdout)
        with suppress(OSError), orders, answers:  # what a dead process did not read is flushed in vain
            while (order := self._orders.get()) is not None:
                task, packed, events = order
                try:
                    if packed.sha256 not in self._known:
                        write_frame(orders, CONTEXT, packed.sha256, packed.data)
                    self._known = [*(k for k in self._known if k != packed.sha256), packed.sha256][
                        -KEPT:
                    ]  # as `ContextCache` does
                    write_frame(orders, TASK, packed.sha256, task)
                    kind, _, data = read_frame(answers)
                except (OSError, EOFError):
                    events.put((self, None))
                    return
                events.put((self, Answer(kind == DONE, data)))


Events = queue.SimpleQueue[tuple[_Worker, Answer | None]]

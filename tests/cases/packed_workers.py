"""Workers of ``--jobs N`` without processes: contexts, tasks, results and models go the way that they go to a process, packed into
bytes and read from there, but in this process, which a test need not start anew with all its imports.

That processes do it just so is tested in `tests/unit/workers`; what a command sends them is tested with these."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from qdqtool.io.files.progress import Progress
from qdqtool.workers import local_workers
from qdqtool.workers.local_workers import LocalWorkers
from qdqtool.workers.worker_tasks import PATH, VARIABLES, ContextCache, Packed, dumps


class PackedWorkers(LocalWorkers):
    """As many as are asked for, all of them this process; ``sent`` has the number of tasks of each call."""

    sent: list[int]

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._caches = [ContextCache() for _ in range(count)]

    def map(
        self,
        function: Callable[[Any, Any], Any],
        context: Any,
        tasks: Iterable[Any],
        *,
        progress: Progress | None = None,
    ) -> Iterator[Any]:
        """See `Workers.map`: every other task is done by a second worker, which unpacks the context for itself and keeps it."""
        packed, rows = Packed.of(function, context), [dumps(task, "a task") for task in tasks]
        self.sent.append(len(rows))
        for at, row in enumerate(rows):
            cache = self._caches[at % self.count]
            if not cache.has(packed.sha256):
                cache.put(packed.sha256, packed.data)
            yield cache.answer(packed.sha256, row).result()
            if progress is not None:
                progress(at + 1, len(rows))


def without_processes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have ``--jobs N`` take these workers; gives a list that gets the number of tasks of each call."""
    sent: list[int] = []
    monkeypatch.setattr(PackedWorkers, "sent", sent, raising=False)
    monkeypatch.setattr(local_workers, "LocalWorkers", PackedWorkers)
    for name in [PATH, *(name for name in os.environ if name.startswith(VARIABLES))]:
        monkeypatch.setenv(name, os.environ.get(name, ""))  # a context brings its own, which are taken back with this
    return sent

"""Work on several processes or machines: the same function on many tasks, with results that depend on neither number nor place.

`open_workers` gives the workers: this process, N processes of this machine, or those of a Dask cluster. Each is one thread, and
has what this process has: search paths of plugins, ``QDQTOOL_…`` variables, the same versions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import onnx_ir as ir
from qdq_passes.errors import UsageError

from qdqtool.io.files.progress import Progress, Warn
from qdqtool.workers.shared_model import SharedModel, share_in_memory

C = TypeVar("C")
T = TypeVar("T")
R = TypeVar("R")


class Workers(Protocol):
    """Where tasks are done."""

    @property
    def count(self) -> int:
        """How many work at a time; of a cluster those that it has now."""

    def map(
        self, function: Callable[[C, T], R], context: C, tasks: Iterable[T], *, progress: Progress | None = None
    ) -> Iterator[R]:
        """``function(context, task)`` of each task, in the order of ``tasks``.

        Whoever stops reading early ends what still runs.

        Args:
            function: of a module, so that it can be pickled by its name; must not depend on what it was called with before.
            context: what is the same for all: sent once to each worker, which keeps it as one object for as long as tasks of the
                same context come (a ``functools.cached_property`` of it is a place for a session). Models: see `share`.
            tasks: pickled one by one, read as they are needed (a few ahead of the results).
            progress: called with (tasks done, their number or None).

        Raises:
            QdqError: what the function raised, of the first task in their order that raised.
            SetupError: a task ended its worker several times (out of memory?).
        """

    def share(self, model: ir.Model | str | os.PathLike[str]) -> SharedModel:
        """``model`` (a file, or in memory; not changed), to be part of a context: its weights go to each worker once, through a
        file where the worker sees it."""

    def sees(self, path: str) -> bool:
        """Whether all workers have the file or folder at the absolute ``path``."""


class InProcess:
    """Workers of one: this process."""

    count: int = 1

    def map(
        self, function: Callable[[C, T], R], context: C, tasks: Iterable[T], *, progress: Progress | None = None
    ) -> Iterator[R]:
        """See `Workers.map`."""
        from qdqtool.workers.task_row import length

        total = length(tasks)
        for done, task in enumerate(tasks, 1):
            result = function(context, task)
            if progress is not None:
                progress(done, total)
            yield result

    def share(self, model: ir.Model | str | os.PathLike[str]) -> SharedModel:
        """See `Workers.share`; a model in memory stays there."""
        return share_in_memory(model)

    def sees(self, path: str) -> bool:
        """See `Workers.sees`."""
        return os.path.exists(path)


@contextmanager
def open_workers(jobs: int = 1, cluster: str | None = None, *, warn: Warn | None = None) -> Iterator[Workers]:
    """Workers, which end with the block.

    Args:
        jobs: 1: this process; more: so many processes of this machine, started when there is work for them.
        cluster: address of a Dask scheduler (``tcp://host:8786``) or its ``--scheduler-file``; then ``jobs`` must be 1.
        warn: told what may make results differ from those of this machine.

    Raises:
        UsageError: no number of jobs, or both are given.
        SetupError: the package for clusters is missing, nobody answers at the address, or the workers there are of other
            versions than this process.
    """
    if jobs < 1:
        raise UsageError(f"{jobs} jobs", hint="--jobs takes a number from 1")
    if cluster is not None and jobs > 1:
        raise UsageError(
            "--jobs and --cluster together", hint="--jobs counts processes of this machine; a cluster has its own"
        )
    if cluster is not None:
        from qdqtool.workers.dask_workers import open_cluster

        with open_cluster(cluster, warn=warn) as remote:
            yield remote
    elif jobs == 1:
        yield InProcess()
    else:
        from qdqtool.workers.local_workers import LocalWorkers

        with LocalWorkers(jobs) as local:
            yield local

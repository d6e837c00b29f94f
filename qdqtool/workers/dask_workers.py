"""Workers of a Dask cluster: the one module that imports `distributed`, and only where an address is given.

The scheduler gives a task whose worker died to another; its nanny starts the worker anew. A context is scattered to all workers,
and once more when all that had it are gone."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import onnx_ir as ir
from qdq_passes.errors import ModelError, SetupError

from qdqtool.io.files.artifacts import read_document
from qdqtool.io.files.progress import Progress, Warn
from qdqtool.workers.machine import Machine, refuse_others
from qdqtool.workers.shared_model import SharedFolder, SharedModel
from qdqtool.workers.task_row import ATTEMPTS, Row, Task
from qdqtool.workers.worker_tasks import Answer, ContextCache, Packed

C = TypeVar("C")
T = TypeVar("T")
R = TypeVar("R")

#: Seconds to wait: for the scheduler and a first worker; for a worker to be started anew; between looks at whether there is one.
PATIENCE, RESTART, GLANCE = 10, 60, 2
#: Tasks per worker: begun before the first one without a result, and under way.
AHEAD, BEGUN = 8, 2


@contextmanager
def open_cluster(address: str, *, warn: Warn | None = None, patience: float = PATIENCE) -> Iterator[DaskWorkers]:
    """The workers of the cluster at ``address``.

    Args:
        address: of the scheduler, or the file that it wrote with ``--scheduler-file``.
        warn: told what may make results differ from those of this machine.
        patience: seconds to wait for an answer.

    Raises:
        SetupError: `distributed` is missing, nobody answers, there is no worker, or workers are of other versions.
    """
    try:
        import distributed
    except ImportError as error:
        hint = "pip install qdqtool[cluster]"
        raise SetupError(f"--cluster needs the package distributed: {error}", hint=hint) from error
    where = _address_in(address) if os.path.isfile(address) else address
    try:
        with ThreadPoolExecutor(1) as apart:  # in a notebook this thread has a loop that runs
            apart.submit(asyncio.run, _reach(where, patience)).result()
    except Exception as error:  # what another server says is taken for lengths and types: it ends in errors of any kind
        raise SetupError(
            f"no Dask scheduler answers: {' '.join(str(error).split()) or 'something else does, or nothing'}",
            where=f"--cluster {address}",
            hint="start one with `dask scheduler`, and `dask worker ADDRESS --nthreads 1` on each machine",
        ) from error
    workers = DaskWorkers(distributed.Client(where, timeout=patience, set_as_default=False), address)
    try:
        workers.check(patience, warn)
        yield workers
    finally:
        workers.close()


def _address_in(file: str) -> str:
    """The address in the file that a scheduler wrote.

    Raises:
        ModelError: there is none.
    """
    found = read_document(file)
    if not isinstance(found, dict) or "address" not in found:
        raise ModelError("is no scheduler file", where=file, hint="`dask scheduler --scheduler-file` writes one")
    return str(found["address"])


async def _reach(address: str, patience: float) -> None:
    """Connect once: a client that cannot lingers on."""
    import distributed

    options = distributed.Security().get_connection_args("client")
    connecting = distributed.comm.connect(address, timeout=patience, **options)
    # its own limit does not hold where another server answers
    comm = await asyncio.wait_for(connecting, patience + GLANCE)
    await comm.close()


class DaskWorkers:
    """Workers of a cluster; made by `open_cluster`.

    Args:
        client: of `distributed`.
        address: as the user wrote it.
    """

    def __init__(self, client: Any, address: str) -> None:
        self._client, self._address = client, address
        self._folder = SharedFolder()

    @property
    def count(self) -> int:
        """Processes of the cluster now, at least 1."""
        return max(1, len(self._client.nthreads()))

    def check(self, patience: float, warn: Warn | None) -> None:
        """Wait for a worker, and refuse workers that would compute something else.

        Raises:
            SetupError: there is none, or one is of other versions.
        """
        import distributed

        try:
            self._client.wait_for_workers(1, timeout=patience)
        except (TimeoutError, distributed.TimeoutError) as error:
            raise SetupError(
                f"the cluster has no worker, {patience:.0f} s on", where=f"--cluster {self._address}",
                hint="start some with `dask worker ADDRESS --nthreads 1`",
            ) from error  # fmt: skip
        try:
            machines: dict[str, Machine] = self._client.run(Machine.here)
        except Exception as error:
            raise SetupError(
                f"the workers cannot run qdqtool: {type(error).__name__}: {' '.join(str(error).split())}",
                where=f"--cluster {self._address}", hint="install the same qdqtool there",
            ) from error  # fmt: skip
        refuse_others(machines, warn)
        threads = max(self._client.nthreads().values(), default=1)
        if threads > 1 and warn is not None:
            warn(f"workers have {threads} threads and use one; start them with --nthreads 1 --nworkers {threads}")

    def share(self, model: ir.Model | str | os.PathLike[str]) -> SharedModel:
        """See `Workers.share`: by path where every worker sees the file (one machine, a shared file system), else its bytes."""
        return self._folder.add(model, is_seen=self.sees)

    def sees(self, path: str) -> bool:
        """Whether every worker has the file ``path``, of the same size and date."""
        return all(seen == signature(path) for seen in self._client.run(signature, path).values())

    def map(
        self, function: Callable[[C, T], R], context: C, tasks: Iterable[T], *, progress: Progress | None = None
    ) -> Iterator[R]:
        """See `Workers.map`."""
        packed, row = Packed.of(function, context), Row(tasks)
        busy: dict[Any, Task] = {}
        ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        here, there = Machine.here(), self._scatter(packed)
        try:
            while True:
                while task := self._next(row, busy):
                    task.attempts += 1
                    future = self._client.submit(work, there, packed.sha256, here, task.data, pure=False)
                    busy[future] = task
                    future.add_done_callback(ended.put)
                if not busy:
                    break
                future = self._ended(ended)
                task = busy.pop(future)
                answer, how = _answer(future)
                if answer is None:
                    row.again(task, how)
                    if there.status != "finished":  # all that held the context are gone
                        there = self._scatter(packed)
                    continue
                row.finish(task, answer)
                if progress is not None and answer.done:
                    progress(row.done, row.total)
                yield from row.ready()
        finally:
            with suppress(OSError, RuntimeError):
                self._client.cancel(list(busy))

    def _next(self, row: Row, busy: Mapping[Any, Task]) -> Task | None:
        """The task to begin now, if one is to begin: one that was lost is begun again alone, so that the guilty one shows."""
        if any(task.attempts > 1 for task in busy.values()):
            return None
        if row.has_again:
            return None if busy else row.take(1)
        count = self.count
        return row.take(count * AHEAD) if len(busy) < count * BEGUN else None

    def close(self) -> None:
        """Let the workers go, without what they were sent."""
        with suppress(Exception):
            self._client.run(_forget)
        self._client.close(timeout=2)
        self._folder.remove()

    def _scatter(self, packed: Packed) -> Any:
        for _ in range(ATTEMPTS):  # the worker that is waited for may die while it is sent the context
            with suppress(TimeoutError, OSError):
                self._client.wait_for_workers(1, timeout=RESTART)
                return self._client.scatter(packed.data, broadcast=True, hash=False)
        raise self._alone()

    def _ended(self, ended: queue.SimpleQueue[Any]) -> Any:
        """The next future that came to an end.

        Raises:
            SetupError: there are no workers any more.
        """
        since = time.monotonic()
        while True:
            with suppress(queue.Empty):
                return ended.get(timeout=GLANCE)
            if self._client.status == "running" and self._client.nthreads():
                since = time.monotonic()
            elif time.monotonic() - since > RESTART:
                raise self._alone()

    def _alone(self) -> SetupError:
        return SetupError(
            f"the scheduler or all its workers are gone, and did not come back in {RESTART} s",
            where=f"--cluster {self._address}", hint="look at their logs; `dask worker` restarts what dies",
        )  # fmt: skip


def _answer(future: Any) -> tuple[Answer | None, str]:
    """What became of a task; None, and how, where no worker came to its end."""
    import distributed

    if future.status == "finished":
        with suppress(Exception):  # the result was lost on its way: with the worker that held it
            found: Answer = future.result(timeout=PATIENCE)
            return found, ""
        return None, "its result was lost"
    if future.status == "cancelled":
        return None, "what it was sent was lost"
    error = future.exception()
    if error is None:  # its worker went away, another did it again, and it has finished while we asked
        return _answer(future)
    if isinstance(error, distributed.scheduler.KilledWorker):
        return None, "killed"
    raise error


#: What this process holds as a worker of a cluster; its threads take turns.
_CONTEXTS, _TURN = ContextCache(), threading.Lock()


def work(data: bytes, sha256: str, client: Machine, task: bytes) -> Answer:
    """Do a task on a worker of a cluster.

    Raises:
        SetupError: this worker, come later, is of other versions than the client.
    """
    with _TURN:
        if not _CONTEXTS.has(sha256):
            refuse_others({"a worker": Machine.here()}, None, here=client)
            _CONTEXTS.put(sha256, data)
        return _CONTEXTS.answer(sha256, task)


def _forget() -> None:
    with _TURN:
        _CONTEXTS.clear()


def signature(path: str) -> tuple[int, int] | None:
    """Size and date of a file, None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns

"""Serve tasks in a worker, whichever way they came: contexts cached by their hash, tasks, errors that travel.

A worker of this machine reads frames from its standard input until that ends, and writes answers.
Frame: kind (1 byte), hash of the context (64 bytes), number of bytes (8, little endian), bytes. A task is answered by its result
or by the error that it ended in. What a task prints goes to standard error."""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import queue
import struct
import sys
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, BinaryIO

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.registry import search_path
from qdq_passes.errors import SetupError

HEAD = struct.Struct("<c64sQ")
#: Kinds of frames: to the worker, and from it.
CONTEXT, TASK, DONE, FAILED = b"C", b"T", b"D", b"F"
Frame = tuple[bytes, str, bytes]
#: Contexts that a worker keeps: the one in use, and the one before.
KEPT = 2
#: Prefix of the environment variables that workers get: search path of plugins, library of the simulated NPU.
VARIABLES, PATH = "QDQTOOL_", "QDQTOOL_PATH"
#: Threads of what computes outside of onnxruntime: one for each worker, so that sums never depend on how many cores there are.
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")

Opened = tuple[Callable[[Any, Any], Any], Any]


@dataclass(frozen=True)
class Environment:
    """What a worker must have of the process that it works for.

    Args:
        variables: environment variables by name; all that begin with `VARIABLES`, and the folders searched for plugins in one.
    """

    variables: tuple[tuple[str, str], ...]

    @classmethod
    def here(cls) -> Environment:
        """That of this process; paths are absolute."""
        found = {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}
        found[PATH] = os.pathsep.join(os.path.abspath(path) for path in search_path())
        return cls(tuple(sorted(found.items())))

    def enter(self) -> None:
        """Give this process the variables, and none else of that prefix.

        Raises:
            SetupError: a folder of plugins is not there.
        """
        for name in [name for name in os.environ if name.startswith(VARIABLES)]:
            del os.environ[name]
        os.environ.update(self.variables)
        for path in filter(None, os.environ[PATH].split(os.pathsep)):
            if not os.path.isdir(path):
                raise SetupError(
                    "a worker does not see this folder of plugins", where=path, hint="put it where every machine has it"
                )


@dataclass(frozen=True)
class Packed:
    """A context on its way, with the function that goes with it.

    Args:
        sha256: hash of ``data``.
        data: pickled (environment, function, context).
    """

    sha256: str
    data: bytes

    @classmethod
    def of(cls, function: Callable[[Any, Any], Any], context: object) -> Packed:
        """Pack them.

        Raises:
            TypeError: something in them cannot be pickled.
        """
        data = dumps((Environment.here(), function, context), "the context")
        return cls(hashlib.sha256(data).hexdigest(), data)


def dumps(thing: object, what: str) -> bytes:
    """``thing`` pickled.

    Raises:
        TypeError: it cannot be; the message begins with ``what``.
    """
    try:
        return pickle.dumps(thing, protocol=5)
    except Exception as error:
        raise TypeError(f"{what} cannot be sent to a worker: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class Answer:
    """What became of a task.

    Args:
        done: whether it has a result.
        data: pickled: the result, or (error, traceback).
    """

    done: bool
    data: bytes

    def result(self) -> Any:
        """The result.

        Raises:
            Exception: the error that the task ended in.
        """
        found = pickle.loads(self.data)
        if self.done:
            return found
        error, trace = found
        if error.__cause__ is None:
            error.__cause__ = RemoteTraceback(trace)
        raise error


class RemoteTraceback(Exception):
    """The cause of an error that a worker raised: the traceback there."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class ContextCache:
    """The contexts that a worker was sent, the last `KEPT` that were used; unpacked at the first task that needs them."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, bytes | Opened] = OrderedDict()

    def put(self, sha256: str, data: bytes) -> None:
        """Take a context; those but the last `KEPT` that were used are let go."""
        self._held[sha256] = data
        self._held.move_to_end(sha256)
        while len(self._held) > KEPT:
            self._held.popitem(last=False)
        gc.collect()

    def has(self, sha256: str) -> bool:
        """Whether the context is here."""
        return sha256 in self._held

    def clear(self) -> None:
        """Let go of everything."""
        self._held.clear()
        gc.collect()

    def answer(self, sha256: str, task: bytes) -> Answer:
        """What becomes of a pickled task."""
        try:
            function, context = self._opened(sha256)
            return Answer(True, dumps(function(context, pickle.loads(task)), "the result of a task"))
        except Exception as error:  # noqa: BLE001  (it is raised again where the results are read)
            return Answer(False, _failure(error))

    def _opened(self, sha256: str) -> Opened:
        self._held.move_to_end(sha256)
        held = self._held[sha256]
        if isinstance(held, bytes):
            environment, function, context = pickle.loads(held)
            environment.enter()
            held = self._held[sha256] = (function, context)
        return held


def _failure(error: Exception) -> bytes:
    trace = "".join(traceback.format_exception(error))
    try:
        data = pickle.dumps((error, trace))
        pickle.loads(data)
    except Exception:  # noqa: BLE001  (an error of somebody else's that cannot travel goes as its text)
        return pickle.dumps((RuntimeError(f"{type(error).__name__}: {error}"), trace))
    return data


def write_frame(stream: BinaryIO, kind: bytes, sha256: str, data: bytes) -> None:
    """Write a frame.

    Raises:
        OSError: whoever read is gone.
    """
    stream.write(HEAD.pack(kind, sha256.encode(), len(data)))
    stream.write(data)
    stream.flush()


def read_frame(stream: BinaryIO) -> Frame:
    """Read a frame.

    Raises:
        EOFError: the other side is gone.
    """
    kind, sha256, size = HEAD.unpack(_exactly(stream, HEAD.size))
    return kind, sha256.decode(), _exactly(stream, size)


def _exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def serve() -> None:
    """Work until standard input ends; then the process ends at once, whatever it is at."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed must not come between the frames
    frames: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    threading.Thread(target=_read_all, args=(frames,), daemon=True).start()
    from qdqtool.workers.worker_tasks import ContextCache

    cache = ContextCache()
    while True:
        kind, sha256, data = frames.get()
        if kind == CONTEXT:
            cache.put(sha256, data)
            continue
        answer = cache.answer(sha256, data)
        write_frame(answers, DONE if answer.done else FAILED, sha256, answer.data)


def _read_all(frames: queue.SimpleQueue[Frame]) -> None:
    try:
        while True:
            frames.put(read_frame(sys.stdin.buffer))
    except EOFError:
        os._exit(0)

"""A worker as a process of this machine: reads frames from its standard input until that ends, and writes answers.

Frame: kind (1 byte), hash of the context (64 bytes), number of bytes (8, little endian), bytes. A task is answered by its result
or by the error that it ended in. What a task prints goes to standard error."""

from __future__ import annotations

import os
import queue
import struct
import sys
import threading
from typing import BinaryIO

HEAD = struct.Struct("<c64sQ")
#: Kinds of frames: to the worker, and from it.
CONTEXT, TASK, DONE, FAILED = b"C", b"T", b"D", b"F"
Frame = tuple[bytes, str, bytes]


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

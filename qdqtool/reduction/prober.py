"""Runs of models in a process of its own, which is started when it is first needed, and again when it died of a model."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any, Self

from qdqtool.reduction import probe


class Prober:
    """Asks `probe`, one job at a time.

    Args:
        timeout: seconds that a job may take.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def ask(self, what: str, **job: object) -> dict[str, Any]:
        """What came of the job ``what``; where it failed its ``failure``, names and numbers left out, and the ``message``.

        Raises:
            TimeoutError: it takes too long.
        """
        process = self._process or self._start()
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps({"what": what, **job}) + "\n")
            process.stdin.flush()
        try:
            line = self._answers.get(timeout=self._timeout)
        except queue.Empty:
            self.end()
            raise TimeoutError from None
        if line:
            found: dict[str, Any] = json.loads(line)
            return found
        code = process.wait()
        self.end()
        fate = f"onnxruntime dies with {f'signal {-code}' if code < 0 else f'exit status {code}'}"
        return {"failure": fate, "message": fate}

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            end(self._process)
        self._process = None

    def _start(self) -> subprocess.Popen[str]:
        start = f"import sys; sys.path[:] = {sys.path!r}; from {probe.__name__} import serve; serve()"
        process = subprocess.Popen(
            [sys.executable, "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            process_group=0 if os.name == "posix" else None,
        )  # fmt: skip
        self._process, self._answers = process, queue.SimpleQueue()
        threading.Thread(target=_read, args=(process, self._answers), daemon=True).start()
        return process


def end(process: subprocess.Popen[str]) -> None:
    """End ``process`` and what it started, where it still runs."""
    if process.poll() is None:
        if os.name == "posix":
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()
    if process.stdin is not None:
        with suppress(BrokenPipeError):
            process.stdin.close()


def _read(process: subprocess.Popen[str], answers: queue.SimpleQueue[str]) -> None:
    """Pass on what ``process`` says, line by line; nothing where it died."""
    assert process.stdout is not None
    with process.stdout as said:
        for line in said:
            answers.put(line)
    answers.put("")

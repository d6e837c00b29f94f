"""What the tests give workers to do: functions and contexts of a module, so that every process finds them."""

from __future__ import annotations

import functools
import os
import signal
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdq_passes.core.registry import search_path
from qdq_passes.errors import ModelError, QdqError
from qdq_passes.pipeline.text import parse_passes

from qdqtool.workers.shared_model import SharedModel
from tests.cases.waiting import wait_for


def square(factor: int, number: int) -> int:
    time.sleep(0.01 * (number % 3))
    return factor * number * number


def who(context: object, task: object) -> int:
    """The process, after long enough for another to take the next task."""
    time.sleep(0.1)
    return os.getpid()


def meet(folder: str, task: object) -> int:
    """The process, when another one has a task too."""
    (Path(folder) / str(os.getpid())).write_text("")
    wait_for(lambda: len(list(Path(folder).iterdir())) > 1)
    return os.getpid()


def complain(context: object, number: int) -> int:
    """Raises at 3 and at 5; 3 takes longer."""
    if number == 3:
        time.sleep(0.3)
        raise ModelError("is broken", where="node 'n'", hint="mend it")
    if number == 5:
        raise QdqError("came first")
    return number


def misread(context: object, text: str) -> None:
    parse_passes(text)


def divide(context: int, number: int) -> float:
    return context / number


class Odd(Exception):
    """Cannot be made again from what it holds."""

    def __init__(self, number: int, *, of: int) -> None:
        super().__init__(f"{number} of {of}")


def odd(context: object, number: int) -> None:
    raise Odd(number, of=10)


def nothing_to_send(context: object, number: int) -> Any:
    return lambda: number


def talk(context: object, number: int) -> int:
    os.write(1, b"noise between the answers\n")
    print("more of it", flush=True)
    return number


def kill_once(folder: str, number: int) -> int:
    """At 2 the worker dies, the first time; what is done is noted in ``folder``."""
    mark = Path(folder) / "killed"
    if number == 2 and not mark.exists():
        mark.write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
    return number


def kill_always(context: object, number: int) -> int:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def note_and_sleep(folder: str, number: int) -> None:
    (Path(folder) / f"{os.getpid()}.pid").write_text("")
    time.sleep(3600)


@dataclass
class Counting:
    """Notes in ``folder`` how often it arrives, and counts the tasks done with it."""

    folder: str
    done: int = 0

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        if self.folder:
            (Path(self.folder) / f"{os.getpid()}-{uuid.uuid4()}").write_text("")

    @functools.cached_property
    def session(self) -> object:
        return object()


def count(context: Counting, number: int) -> tuple[int, int, int]:
    if context.folder:
        wait_for(lambda: len(list(Path(context.folder).iterdir())) > 1)  # another has come to its first task too
    time.sleep(0.02)
    context.done += 1
    return os.getpid(), context.done, id(context.session)


def surroundings(context: object, name: str) -> tuple[str | None, list[str], dict[str, str | None]]:
    threads = {key: os.environ.get(key) for key in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    return os.environ.get(name), [str(path) for path in search_path()], threads


def names_of(shared: SharedModel, number: int) -> tuple[list[str], bytes, str]:
    model = shared.load()
    weight = model.graph.initializers["w"].const_value
    assert weight is not None
    return [node.name or "" for node in model.graph], weight.tobytes(), shared.path

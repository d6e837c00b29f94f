"""The tasks of one map in their order: not begun, to be repeated, done and waiting for those before them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from qdq_passes.errors import SetupError

from qdqtool.workers.worker_tasks import Answer, dumps

#: Times a task is given to a worker before it is held to blame for their ends.
ATTEMPTS = 3


class Task:
    """One task.

    Args:
        number: its place, from 0.
        data: the task, pickled.
    """

    def __init__(self, number: int, data: bytes) -> None:
        self.number, self.data, self.attempts = number, data, 0


class Row:
    """The tasks of one map.

    Args:
        tasks: read one by one, when they are begun.

    Attributes:
        total: number of tasks, None when only reading tells.
        done: number of tasks that have an answer.
    """

    def __init__(self, tasks: Iterable[Any]) -> None:
        self.total, self.done = length(tasks), 0
        self._tasks = enumerate(tasks)
        self._again: deque[Task] = deque()
        self._answers: dict[int, Answer] = {}
        self._next = self._begun = 0
        self._has_failed = False

    def take(self, ahead: int) -> Task | None:
        """The next task to do; None when there is none now: all are begun, an error came, or ``ahead`` of them wait for one."""
        if self._again:
            return self._again.popleft()
        if self._has_failed or self._begun - self._next >= ahead:
            return None
        for number, task in self._tasks:
            self._begun = number + 1
            return Task(number, dumps(task, f"task {number + 1}"))
        return None

    @property
    def has_again(self) -> bool:
        """Whether a task is to be done once more: it is the next."""
        return bool(self._again)

    def again(self, task: Task, how: str) -> None:
        """Do ``task`` once more: its worker ended.

        Args:
            task: the task.
            how: how the worker ended.

        Raises:
            SetupError: this was the last attempt.
        """
        if task.attempts >= ATTEMPTS:
            of_all = "" if self.total is None else f" of {self.total}"
            raise SetupError(
                f"task {task.number + 1}{of_all} ended its worker {ATTEMPTS} times ({how})",
                hint="out of memory? give fewer --jobs, or machines with more memory",
            )
        self._again.append(task)

    def finish(self, task: Task, answer: Answer) -> None:
        """Note the answer of a task; after an error no further task is begun."""
        self._answers[task.number] = answer
        self._has_failed |= not answer.done
        self.done += answer.done

    def ready(self) -> Iterator[Any]:
        """Results whose turn it is.

        Raises:
            Exception: the error whose turn it is.
        """
        while self._next in self._answers:
            answer = self._answers.pop(self._next)
            self._next += 1
            yield answer.result()


def length(tasks: Iterable[Any]) -> int | None:
    """How many there are, None when only reading tells."""
    try:
        return len(tasks)  # type: ignore[arg-type]
    except TypeError:
        return None

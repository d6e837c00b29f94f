"""Runs a schedule: a worker an engine, each through its tasks in the schedule's order, waiting for what each task needs.

What is computed does not depend on when: a task runs when all it waits for is done, whatever the estimate said."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from qdqtool.llm.plan.schedules import Schedule

#: (begin, end) of a task by ``time.perf_counter``, in seconds.
Wall = tuple[float, float]


def execute(schedule: Schedule, run: Callable[[int], None]) -> list[Wall]:
    """Run the tasks of ``schedule``; the first engine's in the calling thread.

    Args:
        schedule: what to run.
        run: runs the task of a number; called from one thread for each engine, those at the same time.

    Returns:
        When each task ran.

    Raises:
        BaseException: what ``run`` raised first; tasks behind it do not run.
    """
    state = _State(schedule, run)
    first, *others = schedule.orders.values() or [()]
    threads = [threading.Thread(target=state.work, args=(numbers,), daemon=True) for numbers in others]
    started: list[threading.Thread] = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
        state.work(first)
        for thread in started:
            thread.join()
    except BaseException as error:  # noqa: BLE001  (an interrupt: what runs is not broken off, what waits does not begin)
        state.fail(error)
        for thread in started:
            thread.join()
    if state.error is not None:
        raise state.error
    return state.walls


class _State:
    """What the workers share."""

    def __init__(self, schedule: Schedule, run: Callable[[int], None]) -> None:
        self._tasks, self._run = schedule.tasks, run
        self._changed = threading.Condition()
        self._done = [False] * len(schedule.tasks)
        self.walls: list[Wall] = [(0.0, 0.0)] * len(schedule.tasks)
        self.error: BaseException | None = None

    def work(self, numbers: Sequence[int]) -> None:
        try:
            for number in numbers:
                with self._changed:
                    self._changed.wait_for(partial(self._may_go, self._tasks[number].after))
                    if self.error is not None:
                        return
                start = time.perf_counter()
                self._run(number)
                self.walls[number] = (start, time.perf_counter())
                with self._changed:
                    self._done[number] = True
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001  (raised again in the thread that waits for all)
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Begin no more tasks."""
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()

    def _may_go(self, after: Sequence[int]) -> bool:
        return self.error is not None or all(self._done[number] for number in after)

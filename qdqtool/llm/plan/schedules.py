"""Schedules: what each task waits for, and when it begins on its engine, by the estimate.

Sequential, one task begins when the one before it ends. In order, an engine runs its tasks by chunk and stage, and waits where
the next one must wait. Out of order it takes, among the tasks that are ready, the one with the longest way to the end behind it
(list scheduling by critical path), or the one of the earliest chunk: whichever schedule is shorter, and never one that is longer
than in order. One engine runs one task at a time.

Tasks are one stage of one chunk each:

    chunk 0   npu_0 → cpu_1 → npu_1 → cpu_2
                        ↓ cache of layer 0 ↓ cache of layer 1
    chunk 1   npu_0 → cpu_1 → npu_1 → cpu_2

A stage waits for the stages of its chunk that write what it reads, and, where it reads or writes a tensor of the cache, for the
stages of the chunk before it that read or write that tensor: rows are read after they were written, and written after all that
must not see them has read. So every stage reads the numbers that it would read if the chunks ran one after the other."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from typing import Literal

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.llm.run.cache import Key

#: How tasks follow each other, see above. Sequential, a graph is one session; else each stage has its own.
Policy = Literal["sequential", "in-order", "out-of-order"]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Tasks, and when each begins.

    Args:
        tasks: from `tasks_of`.
        starts: microseconds, of each.
        orders: engine → numbers of its tasks, in the order in which it runs them.
    """

    tasks: tuple[Task, ...]
    starts: tuple[float, ...]
    orders: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def us(self) -> float:
        """Microseconds until all are done."""
        return max((start + task.us for start, task in zip(self.starts, self.tasks, strict=True)), default=0.0)

    @property
    def busy(self) -> dict[str, float]:
        """Engine → microseconds in which it runs something."""
        return {engine: sum(self.tasks[n].us for n in numbers) for engine, numbers in self.orders.items()}

    def lasting(self, us: float) -> Schedule:
        """The same one, faster or slower, so that it takes ``us``."""
        factor = us / self.us if self.us else 1.0
        tasks = tuple(replace(task, us=task.us * factor) for task in self.tasks)
        return replace(self, tasks=tasks, starts=tuple(start * factor for start in self.starts))


def scheduled(tasks: Sequence[Task], policy: Policy) -> Schedule:
    """The schedule of ``tasks``."""
    if policy == "sequential":
        return _schedule(
            tasks, [0.0, *itertools.accumulate(task.us for task in tasks)][: len(tasks)], range(len(tasks))
        )
    plain = _in_order(tasks)
    if policy == "in-order":
        return plain
    ranks = _ranks(tasks)
    choices = [
        plain,
        _listed(tasks, lambda task: (-ranks[task.number], task.number)),
        _listed(tasks, lambda task: (task.number,)),
    ]
    return min(choices, key=lambda schedule: schedule.us)


def _in_order(tasks: Sequence[Task]) -> Schedule:
    free: dict[str, float] = {}
    starts: list[float] = []
    for task in tasks:
        ready = max((starts[n] + tasks[n].us for n in task.after), default=0.0)
        starts.append(max(ready, free.get(task.engine, 0.0)))
        free[task.engine] = starts[-1] + task.us
    return _schedule(tasks, starts, range(len(tasks)))


def _listed(tasks: Sequence[Task], priority: Callable[[Task], tuple[float, ...]]) -> Schedule:
    """Each engine takes the ready task of the lowest ``priority`` whenever it has none."""
    waiting = [len(task.after) for task in tasks]
    behind = _behind(tasks)
    starts = [0.0] * len(tasks)
    begun: list[int] = []
    ready: dict[str, list[tuple[tuple[float, ...], int]]] = {task.engine: [] for task in tasks}
    running: list[tuple[float, int]] = []
    idle = set(ready)
    for task in tasks:
        if not task.after:
            heapq.heappush(ready[task.engine], (priority(task), task.number))
    clock = 0.0
    while True:
        for engine in sorted(idle):
            if ready[engine]:
                _, number = heapq.heappop(ready[engine])
                starts[number] = clock
                begun.append(number)
                heapq.heappush(running, (clock + tasks[number].us, number))
                idle.discard(engine)
        if not running:
            return _schedule(tasks, starts, begun)
        clock = running[0][0]
        while running and running[0][0] == clock:
            _, number = heapq.heappop(running)
            idle.add(tasks[number].engine)
            for other in behind[number]:
                waiting[other] -= 1
                if not waiting[other]:
                    heapq.heappush(ready[tasks[other].engine], (priority(tasks[other]), other))


def _schedule(tasks: Sequence[Task], starts: Sequence[float], begun: Iterable[int]) -> Schedule:
    """``begun``: the tasks in the order in which they begin, each after all that it waits for, although some take no time."""
    orders: dict[str, list[int]] = {}
    for number in begun:
        orders.setdefault(tasks[number].engine, []).append(number)
    return Schedule(
        tasks=tuple(tasks),
        starts=tuple(starts),
        orders={engine: tuple(numbers) for engine, numbers in sorted(orders.items())},
    )


def _behind(tasks: Sequence[Task]) -> list[list[int]]:
    """Of each task, those that wait for it."""
    found: list[list[int]] = [[] for _ in tasks]
    for task in tasks:
        for number in task.after:
            found[number].append(task.number)
    return found


def _ranks(tasks: Sequence[Task]) -> list[float]:
    """Of each task, microseconds of the longest way from its beginning to the end."""
    behind = _behind(tasks)
    ranks = [0.0] * len(tasks)
    for task in reversed(tasks):
        ranks[task.number] = task.us + max((ranks[n] for n in behind[task.number]), default=0.0)
    return ranks


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """What orders a stage among others.

    Args:
        name: of the stage.
        engine: what runs it.
        us: microseconds on the target; an estimate.
        reads: names of values that it reads.
        writes: names of values that it writes.
        cache: tensors of the cache that it reads or writes.
    """

    name: str
    engine: str
    us: float
    reads: frozenset[str]
    writes: frozenset[str]
    cache: frozenset[Key]


@dataclass(frozen=True, kw_only=True)
class Task:
    """One stage of one chunk.

    Args:
        number: its place among the tasks: those of a chunk together, in the order of its stages.
        chunk: number of the chunk.
        stage: number of the stage in the graph of its chunk.
        name: of the stage.
        engine: what runs it.
        us: microseconds on the target; an estimate.
        after: numbers of the tasks it waits for, all smaller than its own.
    """

    number: int
    chunk: int
    stage: int
    name: str
    engine: str
    us: float
    after: tuple[int, ...]


def tasks_of(chunks: Sequence[Sequence[StagePlan]]) -> list[Task]:
    """The tasks of ``chunks``, each the stages of its graph in an order in which they can run."""
    tasks: list[Task] = []
    touched: dict[Key, list[int]] = {}
    for chunk, stages in enumerate(chunks):
        written: dict[str, int] = {}
        touching: dict[Key, list[int]] = {}
        for stage, plan in enumerate(stages):
            number = len(tasks)
            after = {written[name] for name in plan.reads if name in written}
            for key in plan.cache:
                after.update(touched.get(key, ()))
                touching.setdefault(key, []).append(number)
            written |= dict.fromkeys(plan.writes, number)
            tasks.append(
                Task(
                    number=number, chunk=chunk, stage=stage, name=plan.name, engine=plan.engine, us=plan.us,
                    after=tuple(sorted(after)),
                )
            )  # fmt: skip
        touched |= touching
    return tasks

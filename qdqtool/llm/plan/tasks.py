"""Tasks: one stage of one chunk each, and what each waits for.

    chunk 0   npu_0 → cpu_1 → npu_1 → cpu_2
                        ↓ cache of layer 0 ↓ cache of layer 1
    chunk 1   npu_0 → cpu_1 → npu_1 → cpu_2

A stage waits for the stages of its chunk that write what it reads, and, where it reads or writes a tensor of the cache, for the
stages of the chunk before it that read or write that tensor: rows are read after they were written, and written after all that
must not see them has read. So every stage reads the numbers that it would read if the chunks ran one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qdqtool.llm.run.cache import Key


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

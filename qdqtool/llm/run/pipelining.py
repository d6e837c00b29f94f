"""Runs of graphs on devices: chunk after chunk, or several chunks in flight, each with memory of its own beside the cache."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qdq_passes.decoder.look.record import Phase

from qdqtool.llm.plan.schedules import Policy, Schedule, StagePlan, scheduled, tasks_of
from qdqtool.llm.run.stages import touched
from qdqtool.llm.run.steps import Opened, Step
from qdqtool.llm.run.timeline import Timeline
from qdqtool.llm.run.workers import Wall, execute

#: Chunks that are scheduled together: more of them need more memory, fewer let engines wait at the end of each batch.
IN_FLIGHT = 16


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """One run of a graph.

    Args:
        tokens: of each row.
        starts: position of the first of each row.
        spans: (position of the first token, of the one behind the last) of each row.
    """

    tokens: Sequence[Sequence[int]]
    starts: Sequence[int]
    spans: Sequence[tuple[int, int]]


class Pipeline:
    """Runs chunks by a schedule.

    Args:
        policy: ``sequential``: a graph is one session, and chunks run one after the other; else see `qdqtool.llm.plan.schedules`.
        timeline: told what ran.
    """

    def __init__(self, policy: Policy, timeline: Timeline) -> None:
        self.policy, self.timeline = policy, timeline
        self._schedules: dict[tuple[str, ...], Schedule] = {}
        self._plans: dict[str, list[StagePlan]] = {}

    def run(self, steps: Sequence[Step], chunks: Sequence[Chunk]) -> None:
        """Run ``chunks``, each on its step, which no other of them has. Of graphs whose cache slides, one at a time."""
        schedule = self._scheduled(steps)
        if self.policy == "sequential":
            begin = time.perf_counter()
            for step, chunk in zip(steps, chunks, strict=True):
                step.run(chunk.tokens, chunk.starts)
            self._note(steps, schedule, (), time.perf_counter() - begin)
            return
        for step, chunk in zip(steps, chunks, strict=True):
            step.begin(chunk.tokens, chunk.starts)

        def run(number: int) -> None:
            task = schedule.tasks[number]
            steps[task.chunk].run_stage(task.stage)

        begin = time.perf_counter()
        walls = execute(schedule, run)
        seconds = time.perf_counter() - begin
        for step, chunk in zip(steps, chunks, strict=True):
            step.end(chunk.tokens, chunk.starts)
        self._note(steps, schedule, walls, seconds)

    def _note(self, steps: Sequence[Step], schedule: Schedule, walls: Sequence[Wall], seconds: float) -> None:
        phase: Phase = "prefill" if any(step.model.phase == "prefill" for step in steps) else "decode"
        self.timeline.add(phase, schedule, runs=len(steps), walls=walls, seconds=seconds)

    def _scheduled(self, steps: Sequence[Step]) -> Schedule:
        names = tuple(step.model.name for step in steps)
        if names not in self._schedules:
            tasks = tasks_of([self._plan(step.opened) for step in steps])
            self._schedules[names] = scheduled(tasks, self.policy)
        return self._schedules[names]

    def _plan(self, opened: Opened) -> list[StagePlan]:
        name = opened.model.name
        if name not in self._plans:
            self._plans[name] = list(_plans(opened))
        return self._plans[name]


def _plans(opened: Opened) -> Iterator[StagePlan]:
    """The stages of a graph; of one session, its pieces one after the other."""
    before: frozenset[str] = frozenset()
    for number, stage in enumerate(opened.stages):
        ends = (*stage.session.input_names, *stage.session.output_names)
        for place, piece in enumerate(stage.pieces):
            is_whole = len(stage.pieces) == 1
            done = frozenset({f"{number}.{place}"})
            yield StagePlan(
                name=piece.name,
                engine=piece.engine,
                us=piece.us,
                reads=frozenset(stage.session.input_names) if is_whole else before | set(stage.session.input_names),
                writes=frozenset(stage.session.output_names) if is_whole else done | set(stage.session.output_names),
                cache=touched(opened.model.decoder, ends),
            )
            before = done

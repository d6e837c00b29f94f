"""Runs of graphs on devices: chunk after chunk, or several chunks in flight, each with memory of its own beside the cache."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.decoder.look.record import Phase

from qdqtool.llm.plan.schedules import Policy, Schedule, StagePlan, scheduled, tasks_of
from qdqtool.llm.run.run_times import RunTime, RunTimes, shared_out
from qdqtool.llm.run.stages import touched
from qdqtool.llm.run.steps import Opened, Step
from qdqtool.llm.run.timeline import KEPT, Timeline
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
        times: what runs take where it is known as a whole; None for the sums of their pieces.
    """

    def __init__(self, policy: Policy, timeline: Timeline, times: RunTimes | None = None) -> None:
        self.policy, self.timeline, self._times = policy, timeline, times
        self._schedules: dict[tuple[tuple[str, RunTime | None], ...], Schedule] = {}
        self._plans: dict[str, list[StagePlan]] = {}

    def run(self, steps: Sequence[Step], chunks: Sequence[Chunk]) -> None:
        """Run ``chunks``, each on its step, which no other of them has. Of graphs whose cache slides, one at a time."""
        times = [self._time(step, chunk) for step, chunk in zip(steps, chunks, strict=True)]
        schedule = self._scheduled(steps, times)
        if self.policy == "sequential":
            begin = time.perf_counter()
            for step, chunk in zip(steps, chunks, strict=True):
                step.run(chunk.tokens, chunk.starts)
            self._note(steps, times, schedule, (), time.perf_counter() - begin)
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
        self._note(steps, times, schedule, walls, seconds)

    def _note(
        self,
        steps: Sequence[Step],
        times: Sequence[RunTime | None],
        schedule: Schedule,
        walls: Sequence[Wall],
        seconds: float,
    ) -> None:
        phase: Phase = "prefill" if any(step.model.phase == "prefill" for step in steps) else "decode"
        known = [found for found in times if found is not None]
        total = RunTime.sum(known) if len(known) == len(times) else None
        self.timeline.add(phase, schedule, runs=len(steps), walls=walls, seconds=seconds, time=total)

    def _time(self, step: Step, chunk: Chunk) -> RunTime | None:
        """What the run takes; of several rows, that of the most tokens."""
        if self._times is None:
            return None
        return self._times.of(step.model, *max(chunk.spans, key=lambda span: span[1]))

    def _scheduled(self, steps: Sequence[Step], times: Sequence[RunTime | None]) -> Schedule:
        """The schedule of runs; where all their times are known it takes these together: what a runtime overlaps is in them."""
        key = tuple((step.model.name, found) for step, found in zip(steps, times, strict=True))
        if key not in self._schedules:
            plans = [
                self._plan(step.opened) if found is None else shared_out(self._plan(step.opened), found.us)
                for step, found in zip(steps, times, strict=True)
            ]
            made = scheduled(tasks_of(plans), self.policy)
            if len(self._schedules) > KEPT:
                self._schedules.clear()
            known = [found.us for found in times if found is not None]
            self._schedules[key] = made.lasting(sum(known)) if len(known) == len(times) else made
        return self._schedules[key]

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

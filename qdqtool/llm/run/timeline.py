"""What ran on which engine, phase by phase: by the estimate of the target, and as it was on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.decoder.look.record import Phase

from qdqtool.llm.plan.schedules import Schedule, scheduled
from qdqtool.llm.run.run_times import RunTime
from qdqtool.llm.run.workers import Wall

#: Tasks that are kept for a trace; sums go on behind.
KEPT = 50_000


@dataclass(frozen=True, eq=False, kw_only=True)
class Batch:
    """Tasks that were scheduled together.

    Args:
        phase: of their graphs.
        schedule: by the estimate.
        walls: when each ran on this machine; empty where that is not known.
        begin_us: when the first begins, by the estimate, counted from the first of all.
        time: of all of them on a chip; None where the pieces' estimates tell alone.
    """

    phase: Phase
    schedule: Schedule
    walls: tuple[Wall, ...]
    begin_us: float
    time: RunTime | None = None


@dataclass(frozen=True, kw_only=True)
class PhaseTimes:
    """One phase, summed up. Times are estimates for the target but for ``wall_s``.

    Args:
        phase: which.
        runs: chunks, or tokens.
        us: from beginning to end, by the schedule that was followed.
        in_order_us: had every engine worked in order; None of a sequential schedule, whose stages are not known apart.
        out_of_order_us: had it taken what was ready; likewise.
        busy_us: engine → how long it works.
        tasks: engine → how many tasks.
        wall_s: seconds on this machine, which say nothing about the target.
        time: ``us`` with the interval of the chip's profile; None without a chip.
    """

    phase: Phase
    runs: int
    us: float
    in_order_us: float | None
    out_of_order_us: float | None
    busy_us: Mapping[str, float]
    tasks: Mapping[str, int]
    wall_s: float
    time: RunTime | None = None

    @property
    def utilisation(self) -> dict[str, float]:
        """Engine → share of the time in which it works, 0..1."""
        return {engine: busy / self.us if self.us else 0.0 for engine, busy in self.busy_us.items()}

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "phase": self.phase,
            "runs": self.runs,
            "estimated_us": self.us,
            "in_order_us": self.in_order_us,
            "out_of_order_us": self.out_of_order_us,
            "engines": {
                engine: {"busy_us": busy, "utilisation": self.utilisation[engine], "tasks": self.tasks[engine]}
                for engine, busy in self.busy_us.items()
            },
            "wall_s": self.wall_s,
            **({} if self.time is None else {"low_us": self.time.low, "high_us": self.time.high}),
        }


class Timeline:
    """Collects what ran. Sums are of everything, tasks of the first `KEPT`.

    Args:
        schedule: name of the schedule that is followed.
        chip: what is said of the chip whose times the schedule takes; None where it is estimated by the target's numbers.
    """

    def __init__(self, schedule: str, chip: Mapping[str, Any] | None = None) -> None:
        self.schedule, self.chip = schedule, chip
        self.batches: list[Batch] = []
        self._kept = 0
        self._clock = 0.0
        self._sums: dict[Phase, PhaseTimes] = {}
        self._compared: dict[int, tuple[Schedule, float, float]] = {}
        self._assumptions: dict[str, Mapping[str, Any]] = {}

    def assume(self, figures: Iterable[Mapping[str, Any]]) -> None:
        """Note the numbers that microseconds are made of, JSON objects with a ``key``; each is listed once."""
        self._assumptions |= {figure["key"]: figure for figure in figures}

    def clear(self) -> None:
        """Forget all."""
        self.batches, self._kept, self._clock = [], 0, 0.0
        self._sums.clear()

    def add(
        self,
        phase: Phase,
        schedule: Schedule,
        *,
        runs: int,
        walls: Sequence[Wall],
        seconds: float,
        time: RunTime | None = None,
    ) -> None:
        """Note a batch of ``runs`` chunks that has run, in ``seconds`` of this machine, and on a chip in ``time``."""
        in_order, out_of_order = self._both(schedule)
        before = self._sums.get(phase)
        busy, tasks = dict(before.busy_us if before else {}), dict(before.tasks if before else {})
        for engine, numbers in schedule.orders.items():
            busy[engine] = busy.get(engine, 0.0) + schedule.busy[engine]
            tasks[engine] = tasks.get(engine, 0) + len(numbers)
        self._sums[phase] = PhaseTimes(
            phase=phase,
            runs=(before.runs if before else 0) + runs,
            us=(before.us if before else 0.0) + schedule.us,
            in_order_us=_sum(before.in_order_us if before else 0.0, in_order),
            out_of_order_us=_sum(before.out_of_order_us if before else 0.0, out_of_order),
            busy_us=busy,
            tasks=tasks,
            wall_s=(before.wall_s if before else 0.0) + seconds,
            time=time if before is None else RunTime.both(before.time, time),
        )
        if self._kept < KEPT:
            self.batches.append(
                Batch(phase=phase, schedule=schedule, walls=tuple(walls), begin_us=self._clock, time=time)
            )
            self._kept += len(schedule.tasks)
        self._clock += schedule.us

    @property
    def assumptions(self) -> list[Mapping[str, Any]]:
        """The numbers that the estimate is made of, with source and confidence."""
        return list(self._assumptions.values())

    def phases(self) -> list[PhaseTimes]:
        """What ran, prefill first."""
        return [self._sums[phase] for phase in ("prefill", "decode") if phase in self._sums]

    def to_json(self) -> dict[str, Any]:
        """JSON-ready. ``estimate`` says that it is one."""
        return {
            "estimate": f"not a measurement: {self._source}; wall_s is this machine's",
            "schedule": self.schedule,
            "phases": [phase.to_json() for phase in self.phases()],
            "assumptions": self.assumptions,
            **({} if self.chip is None else {"chip": dict(self.chip)}),
        }

    @property
    def _source(self) -> str:
        if self.chip is None:
            return "computed from the target's numbers"
        return (
            f"times by the profile of {self.chip['chip']} with {self.chip['stack']}, shared out by the target's numbers"
        )

    def _both(self, schedule: Schedule) -> tuple[float | None, float | None]:
        """Makespans in order and out of order of the tasks of ``schedule``; remembered, as those of a token recur."""
        if self.schedule == "sequential":
            return None, None
        known = self._compared.get(id(schedule))
        if known is None or known[0] is not schedule:
            both = [scheduled(schedule.tasks, policy).us for policy in ("in-order", "out-of-order")]
            known = (schedule, both[0], both[1])
            if len(self._compared) > KEPT:
                self._compared.clear()
            self._compared[id(schedule)] = known
        return known[1], known[2]


def _sum(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


def _place(found: Timeline, target: str) -> str:
    """What the times are of."""
    return (
        target if found.chip is None else f"{found.chip['chip']} with {found.chip['stack']}, {found.chip['precision']}"
    )


def trace(found: Timeline, target: str) -> dict[str, Any]:
    """The timeline in Chrome's trace format ("Trace Event Format" of the Chromium project), for ``chrome://tracing`` and
    https://ui.perfetto.dev: one process for the estimate, one for this machine, a row an engine in each; times in µs."""
    engines = sorted({task.engine for batch in found.batches for task in batch.schedule.tasks})
    names = {
        1: f"ESTIMATE for {_place(found, target)}, not a measurement",
        2: "this machine, simulating: says nothing about the target",
    }
    events: list[dict[str, Any]] = []
    for process, name in names.items():
        events.append({"name": "process_name", "ph": "M", "pid": process, "tid": 0, "args": {"name": name}})
        for row, engine in enumerate(engines):
            label = f"estimate: {engine}" if process == 1 else f"simulation of {engine}"
            events.append({"name": "thread_name", "ph": "M", "pid": process, "tid": row, "args": {"name": label}})
    walls = [begin for batch in found.batches for begin, _ in batch.walls]
    zero = min(walls, default=0.0)
    for batch in found.batches:
        ends = {} if batch.time is None else {"low": batch.time.low, "high": batch.time.high}
        share = 0.0 if batch.time is None or not batch.time.us else 1 / batch.time.us
        for task, start in zip(batch.schedule.tasks, batch.schedule.starts, strict=True):
            told = {"phase": batch.phase, "chunk": task.chunk, "stage": task.stage}
            row = engines.index(task.engine)
            name = f"{batch.phase} chunk {task.chunk}: {task.name}"
            event = {"name": name, "cat": batch.phase, "ph": "X", "tid": row}
            times = {"ts": batch.begin_us + start, "dur": task.us}
            interval = {f"{end}_us": us * share * task.us for end, us in ends.items()}
            events.append({**event, "pid": 1, **times, "args": {"estimate": True, **told, **interval}})
            if batch.walls:
                begin, end = batch.walls[task.number]
                times = {"ts": 1e6 * (begin - zero), "dur": 1e6 * (end - begin)}
                events.append({**event, "pid": 2, **times, "args": {"estimate": False, **told}})
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "what": names[1],
            "schedule": found.schedule,
            "phases": [p.to_json() for p in found.phases()],
            "assumptions": found.assumptions,
            **({} if found.chip is None else {"chip": dict(found.chip)}),
        },
    }

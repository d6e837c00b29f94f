"""Tasks of chunks, schedules by the estimate, workers that follow them: dependencies, makespans, order, failures."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from qdqtool.llm.plan.schedules import Schedule, StagePlan, Task, scheduled, tasks_of
from qdqtool.llm.run.run_times import RunTime, shared_out
from qdqtool.llm.run.timeline import Timeline, trace
from qdqtool.llm.run.workers import execute
from tests.cases.waiting import PATIENCE

#: One layer: a projection on the NPU, attention on the CPU, a projection on the NPU; the cache belongs to attention.
NPU_US, CPU_US = 4.0, 3.0


def stage(name: str, engine: str, us: float, reads: str, writes: str, cache: bool = False) -> StagePlan:
    keys = frozenset({(0, "key")} if cache else ())
    return StagePlan(
        name=name, engine=engine, us=us, reads=frozenset(reads.split()), writes=frozenset(writes.split()), cache=keys
    )


LAYER = (
    stage("norm", "CPU", 1.0, "ids", "x"),
    stage("qkv", "NPU", NPU_US, "x", "q k"),
    stage("attend", "CPU", CPU_US, "q k past", "y present", cache=True),
    stage("out", "NPU", NPU_US, "y x", "logits"),
)


def random_tasks(seed: int) -> list[Task]:
    """Stages of three engines that read what some before them write, and touch one of two caches, in several chunks."""
    random = np.random.default_rng(seed)
    graph = []
    for number in range(int(random.integers(1, 9))):
        read = {f"v{n}" for n in range(number) if random.random() < 0.4}
        keys = {(layer, "key") for layer in range(2) if random.random() < 0.3}
        engine = ("CPU", "NPU", "DSP")[random.integers(3)]
        us = float(random.integers(0, 6))  # stages that take no time, and many that end together
        plan = StagePlan(
            name=f"s{number}", engine=engine, us=us, reads=frozenset(read), writes=frozenset({f"v{number}"}),
            cache=frozenset(keys),
        )  # fmt: skip
        graph.append(plan)
    return tasks_of([graph] * int(random.integers(1, 6)))


def assert_feasible(schedule: Schedule) -> None:
    tasks, starts = schedule.tasks, schedule.starts
    for task in tasks:
        assert all(n < task.number for n in task.after)
        assert all(starts[n] + tasks[n].us <= starts[task.number] for n in task.after)
    assert sorted(n for numbers in schedule.orders.values() for n in numbers) == list(range(len(tasks)))
    for engine, numbers in schedule.orders.items():
        ends = [starts[n] + tasks[n].us for n in numbers]
        assert all(tasks[n].engine == engine for n in numbers)
        assert all(end <= starts[n] for end, n in zip(ends, numbers[1:], strict=False))


def test_a_stage_waits_for_its_values_and_for_the_cache_of_the_chunk_before() -> None:
    after = {(t.chunk, t.name): {(u.chunk, u.name) for u in TWO if u.number in t.after} for t in TWO}
    assert after[0, "norm"] == after[1, "norm"] == set()
    assert after[1, "qkv"] == {(1, "norm")}
    assert after[0, "attend"] == {(0, "qkv")}
    assert after[1, "attend"] == {(1, "qkv"), (0, "attend")}
    assert after[1, "out"] == {(1, "norm"), (1, "attend")}


TWO = tasks_of([LAYER, LAYER])


def test_rows_are_written_after_all_that_must_not_see_them_has_read() -> None:
    """A later stage of a chunk reads the cache: the write of the next chunk waits for it."""
    write = stage("write", "NPU", 1.0, "x past", "present", cache=True)
    read = stage("read", "CPU", 1.0, "present", "y", cache=True)
    tasks = tasks_of([[write, read]] * 2)
    assert tasks[2].after == (0, 1)
    assert tasks[3].after == (0, 1, 2)


def test_the_npu_does_not_idle_out_of_order() -> None:
    chunks = 6
    tasks = tasks_of([LAYER] * chunks)
    one = 1 + 2 * NPU_US + CPU_US
    assert scheduled(tasks, "sequential").us == chunks * one
    out = scheduled(tasks, "out-of-order")
    assert scheduled(tasks, "in-order").us > out.us
    assert out.us == 1 + chunks * 2 * NPU_US, "after the first norm the NPU works without a pause"
    assert out.busy == {"CPU": chunks * (1 + CPU_US), "NPU": chunks * 2 * NPU_US}


@pytest.mark.parametrize("seed", range(60))
def test_schedules_are_feasible_and_out_of_order_is_never_longer(seed: int) -> None:
    tasks = random_tasks(seed)
    found = {policy: scheduled(tasks, policy) for policy in ("sequential", "in-order", "out-of-order")}  # type: ignore[arg-type]
    for schedule in found.values():
        assert_feasible(schedule)
    assert found["out-of-order"].us <= found["in-order"].us <= found["sequential"].us == sum(t.us for t in tasks)
    busiest = max(found["in-order"].busy.values())
    assert found["out-of-order"].us >= busiest


@pytest.mark.parametrize("seed", range(20))
def test_a_schedule_that_lasts_as_long_as_is_told_has_the_same_order(seed: int) -> None:
    found = scheduled(random_tasks(seed), "out-of-order")
    slower = found.lasting(4 * found.us)  # a power of two: nothing is rounded
    assert slower.us == 4 * found.us
    assert slower.orders == found.orders
    assert_feasible(slower)


def test_a_known_time_is_shared_out_in_proportion() -> None:
    assert [plan.us for plan in shared_out(LAYER, 24.0)] == [2.0, 8.0, 6.0, 8.0]
    assert [plan.us for plan in shared_out([replace(plan, us=0.0) for plan in LAYER], 8.0)] == [2.0] * 4
    one, other = RunTime(us=2.0, low=1.0, high=4.0), RunTime(us=3.0, low=2.0, high=5.0)
    assert RunTime.both(one, other) == RunTime(us=5.0, low=3.0, high=9.0)
    assert RunTime.both(one, None) is None


@pytest.mark.parametrize("seed", range(20))
def test_workers_run_each_task_once_after_what_it_waits_for(seed: int) -> None:
    schedule = scheduled(random_tasks(seed), "out-of-order")
    done: list[int] = []
    lock, random = threading.Lock(), np.random.default_rng(seed)
    pauses = random.random(len(schedule.tasks)) * 1e-3

    def run(number: int) -> None:
        with lock:
            assert set(schedule.tasks[number].after) <= set(done)
        time.sleep(pauses[number])  # times other than the estimate has
        with lock:
            done.append(number)

    walls = execute(schedule, run)
    assert sorted(done) == list(range(len(schedule.tasks)))
    for task in schedule.tasks:
        begin, end = walls[task.number]
        assert begin <= end
        assert all(walls[n][1] <= begin for n in task.after)


def test_engines_work_at_the_same_time() -> None:
    """Each of two tasks goes on only when the other runs."""
    meeting = threading.Barrier(2, timeout=PATIENCE)
    plans = [stage("a", "CPU", 1.0, "", "u"), stage("b", "NPU", 1.0, "", "v")]

    def run(number: int) -> None:
        meeting.wait()

    execute(scheduled(tasks_of([plans]), "in-order"), run)


@pytest.mark.parametrize("failing", ["CPU", "NPU"])
def test_a_failure_ends_all_engines(failing: str) -> None:
    schedule = scheduled(tasks_of([LAYER] * 3), "out-of-order")
    ran: list[int] = []

    def run(number: int) -> None:
        task = schedule.tasks[number]
        if task.engine == failing and task.chunk == 1:
            raise ValueError(task.name)
        ran.append(number)

    with pytest.raises(ValueError, match=r"norm|qkv"):
        execute(schedule, run)
    assert len(ran) < len(schedule.tasks)


def test_a_worker_that_cannot_begin_leaves_no_other_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [stage(name, name, 1.0, f"v{n}", f"v{n + 1}") for n, name in enumerate("abc")]
    schedule = scheduled(tasks_of([plans]), "in-order")
    started: list[threading.Thread] = []
    before, begin = threading.active_count(), threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="new thread"):
        execute(schedule, lambda number: None)
    assert threading.active_count() == before


def test_no_tasks() -> None:
    assert execute(scheduled([], "out-of-order"), lambda number: None) == []


def test_a_timeline_sums_up_and_a_trace_has_a_row_an_engine() -> None:
    timeline = Timeline("out-of-order")
    schedule = scheduled(TWO, "out-of-order")
    walls = execute(schedule, lambda number: None)
    timeline.add("prefill", schedule, runs=2, walls=walls, seconds=0.5)
    timeline.add("decode", scheduled(tasks_of([LAYER]), "out-of-order"), runs=1, walls=(), seconds=0.1)
    prefill, decode = timeline.phases()
    assert (prefill.phase, prefill.runs, prefill.wall_s) == ("prefill", 2, 0.5)
    assert prefill.us == prefill.out_of_order_us == schedule.us
    assert prefill.in_order_us == scheduled(TWO, "in-order").us
    assert prefill.utilisation["NPU"] == 4 * NPU_US / schedule.us
    assert decode.us == 1 + 2 * NPU_US + CPU_US
    found = trace(timeline, "chip")
    events = [event for event in found["traceEvents"] if event["ph"] == "X"]
    estimated = [event for event in events if event["pid"] == 1]
    assert len(estimated) == 12
    assert len(events) == 12 + 8
    assert all(event["args"]["estimate"] for event in estimated)
    assert {event["tid"] for event in estimated} == {0, 1}
    assert min(e["ts"] for e in estimated if e["cat"] == "decode") == schedule.us, "decode begins where prefill ends"
    assert "ESTIMATE for chip" in found["otherData"]["what"]


def test_a_sequential_timeline_knows_no_other_order() -> None:
    timeline = Timeline("sequential")
    timeline.add("prefill", scheduled(TWO, "sequential"), runs=2, walls=(), seconds=0.1)
    (phase,) = timeline.phases()
    assert phase.in_order_us is None
    assert phase.out_of_order_us is None
    assert phase.us == sum(task.us for task in TWO)

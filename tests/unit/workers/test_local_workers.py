"""Workers of this machine: order, errors, killed processes, interrupts; what a worker has of its caller."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qdq_passes.core import registry
from qdq_passes.errors import ModelError, SetupError, UsageError
from qdq_passes.pipeline.text import PipelineSyntaxError

from qdqtool.io.models.load import load
from qdqtool.workers.cluster import Workers, open_workers
from qdqtool.workers.shared_model import SharedModel
from qdqtool.workers.worker_tasks import KEPT, ContextCache, Packed
from tests.cases import worker_functions as does
from tests.cases.cli_helpers import environment, write
from tests.cases.waiting import PATIENCE, wait_for
from tests.golden_messages.refusal import refusal


@pytest.fixture(scope="module")
def two() -> Iterator[Workers]:
    """Two workers that all tests share; killed ones are replaced."""
    with open_workers(2) as workers:
        yield workers


@pytest.fixture(params=[1, 2])
def workers(request: pytest.FixtureRequest, two: Workers) -> Iterator[Workers]:
    """This process alone, and the two workers."""
    with open_workers(1) as one:
        yield {1: one, 2: two}[request.param]


def test_results_come_in_order(workers: Workers, request: pytest.FixtureRequest) -> None:
    told: list[tuple[int, int | None]] = []
    assert workers.count == request.node.callspec.params["workers"]
    found = list(workers.map(does.square, 3, range(20), progress=lambda done, total: told.append((done, total))))
    assert found == [3 * n * n for n in range(20)]
    assert told == [(n, 20) for n in range(1, 21)]


def test_tasks_are_read_as_they_are_needed(two: Workers) -> None:
    read: list[int] = []

    def tasks() -> Iterator[int]:
        for number in range(1000):
            read.append(number)
            yield number

    told: list[int | None] = []
    results = two.map(does.square, 1, tasks(), progress=lambda done, total: told.append(total))
    assert [next(results) for _ in range(3)] == [0, 1, 4]
    assert len(read) < 40
    results.close()  # type: ignore[attr-defined]
    assert set(told) == {None}
    assert list(two.map(does.square, 1, [5])) == [25]
    assert list(two.map(does.square, 1, [])) == []


def test_work_is_spread(two: Workers, tmp_path: Path) -> None:
    assert len(set(two.map(does.meet, str(tmp_path), range(2)))) == 2


def test_the_first_error_in_order_arrives_whole(workers: Workers) -> None:
    results = workers.map(does.complain, None, range(10))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ModelError) as caught:
        next(results)
    assert (caught.value.message, caught.value.where, caught.value.hint) == ("is broken", "node 'n'", "mend it")
    if workers.count == 2:
        assert "worker_functions.py" in str(caught.value.__cause__)


def test_errors_of_every_class_travel(two: Workers) -> None:
    with refusal(PipelineSyntaxError) as caught:
        list(two.map(does.misread, None, ["sort,,"]))
    assert isinstance(caught.value, PipelineSyntaxError)
    assert caught.value.column
    with pytest.raises(ZeroDivisionError):
        list(two.map(does.divide, 1, [0]))
    with pytest.raises(RuntimeError, match="Odd: 3 of 10"):
        list(two.map(does.odd, None, [3]))
    with pytest.raises(TypeError, match="the result of a task cannot be sent"):
        list(two.map(does.nothing_to_send, None, [3]))
    with pytest.raises(TypeError, match="the context cannot be sent"):
        list(two.map(does.square, lambda: 1, [3]))  # type: ignore[misc]
    with pytest.raises(TypeError, match="task 2 cannot be sent"):
        list(two.map(does.who, None, [1, lambda: 1]))
    assert list(two.map(does.square, 2, [3])) == [18]


def test_what_a_task_prints_is_no_answer(two: Workers, capfd: pytest.CaptureFixture[str]) -> None:
    assert list(two.map(does.talk, None, range(5))) == list(range(5))
    out, err = capfd.readouterr()
    assert out == ""
    assert err == "" or "noise" in err  # the workers' own, of when they were started


def test_a_killed_worker_is_replaced_and_nothing_is_lost(two: Workers, tmp_path: Path) -> None:
    told: list[int] = []
    found = list(two.map(does.kill_once, str(tmp_path), range(12), progress=lambda done, _: told.append(done)))
    assert found == list(range(12))
    assert told == list(range(1, 13))
    assert int((tmp_path / "killed").read_text()) not in set(two.map(does.who, None, range(6)))


def test_a_task_that_kills_is_named(two: Workers) -> None:
    with refusal(SetupError):
        list(two.map(does.kill_always, None, range(6)))
    assert list(two.map(does.square, 1, [4])) == [16]


def test_a_worker_killed_while_idle_is_replaced(two: Workers) -> None:
    for pid in set(two.map(does.who, None, range(4))):
        os.kill(pid, signal.SIGKILL)
    assert list(two.map(does.square, 1, range(8))) == [n * n for n in range(8)]


def test_a_context_goes_to_each_worker_once(two: Workers, tmp_path: Path) -> None:
    context = does.Counting(str(tmp_path))
    rows = list(two.map(does.count, context, range(10)))
    rows += two.map(does.count, context, range(10))
    pids = {pid for pid, _, _ in rows}
    assert len(list(tmp_path.iterdir())) == len(pids) == 2
    for pid in pids:
        mine = [row for row in rows if row[0] == pid]
        assert [done for _, done, _ in mine] == list(range(1, len(mine) + 1))
        assert len({session for _, _, session in mine}) == 1
    for number in range(KEPT):
        list(two.map(does.square, number, range(8)))
    again = list(two.map(does.count, context, range(10)))
    assert {done for _, done, _ in again if done == 1} == {1}  # was let go of, and came anew
    assert context.done == 0


def test_a_desk_keeps_what_was_used_last() -> None:
    cache, packed = ContextCache(), [Packed.of(does.square, factor) for factor in range(KEPT + 1)]
    assert len({p.sha256 for p in packed}) == KEPT + 1
    for p in packed[:KEPT]:
        cache.put(p.sha256, p.data)
    assert cache.answer(packed[0].sha256, pickle.dumps(2)).result() == 0
    cache.put(packed[-1].sha256, packed[-1].data)
    assert [cache.has(p.sha256) for p in packed] == [True, *[False] * (KEPT - 1), True]
    cache.clear()
    assert not any(cache.has(p.sha256) for p in packed)


def test_a_worker_has_what_its_caller_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    monkeypatch.setattr(registry, "_added", [first])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QDQTOOL_PATH", "second")
    monkeypatch.setenv("QDQTOOL_NPU_LIBRARY", "some.so")
    with open_workers(2) as workers:
        ((library, paths, threads),) = workers.map(does.surroundings, 1, ["QDQTOOL_NPU_LIBRARY"])
        assert (library, paths) == ("some.so", [str(first), str(second)])
        assert set(threads.values()) == {"1"}
        monkeypatch.delenv("QDQTOOL_NPU_LIBRARY")
        ((library, _, _),) = workers.map(does.surroundings, 2, ["QDQTOOL_NPU_LIBRARY"])
        assert library is None
        second.rmdir()
        with refusal(SetupError):
            list(workers.map(does.surroundings, 3, [""]))


MODEL = "g (float[1,300] x) => (float[1,300] y) <float[300,300] w> { a = MatMul(x, w)  y = Relu(a) }"


def small(path: Path) -> Any:
    found = load(write(path / "m.onnx", MODEL.replace("<float[300,300] w>", "<float[1] w = {1}>")))
    import onnx_ir as ir

    weights = np.random.default_rng(0).standard_normal((300, 300)).astype(np.float32)
    found.graph.initializers["w"].const_value = ir.tensor(weights, name="w")
    return found


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_model_is_shared(jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    model = small(tmp_path)
    node = model.graph[0]
    assert "qdqtool.unnamed" in node.meta
    node.name = "renamed"
    with open_workers(jobs) as workers:
        ((names, weights, path),) = workers.map(does.names_of, workers.share(model), [0])
        assert (names[0], weights) == ("renamed", model.graph.initializers["w"].const_value.tobytes())
        assert ("qdqtool-" in path) == (jobs == 2)
        ((_, _, path),) = workers.map(does.names_of, workers.share(tmp_path / "m.onnx"), [0])
        assert path == str(tmp_path / "m.onnx")
        assert workers.sees(path)
        assert not workers.sees(str(tmp_path / "none"))
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]
    assert "qdqtool.unnamed" in node.meta


def test_a_model_travels_as_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", "g (float[1] x) => (float[1] y) <float[1] w = {2}> { y = Mul(x, w) }")
    sent = pickle.dumps(SharedModel(path, {"m.onnx": Path(path).read_bytes()}))
    arrived = pickle.loads(sent)
    assert does.names_of(arrived, 0)[0] == ["Mul_0"]
    folder = Path(arrived.path).parent
    assert folder != tmp_path
    del arrived
    assert not folder.exists()


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_their_caller(by: signal.Signals, tmp_path: Path) -> None:
    script = (
        "import sys; from qdqtool.workers.cluster import open_workers; from tests.cases import worker_functions as does\n"
        "with open_workers(2) as workers: list(workers.map(does.note_and_sleep, sys.argv[1], range(4)))"
    )
    caller = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], env=environment(), stderr=subprocess.PIPE, text=True,
        preexec_fn=hear_interrupts,
    )  # fmt: skip
    wait_for(lambda: len(list(tmp_path.glob("*.pid"))) == 2)
    caller.send_signal(by)
    _, err = caller.communicate(timeout=PATIENCE)
    assert ("KeyboardInterrupt" in err) == (by == signal.SIGINT)
    wait_for(lambda: not any(alive(int(file.stem)) for file in tmp_path.glob("*.pid")))


def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from qdqtool.workers.cluster import open_workers\nfrom tests.cases import worker_functions as does\n"
        "with open_workers(2) as workers:\n    print(list(workers.map(does.square, 1, range(4))))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], env=environment(), capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert (done.stdout, done.stderr) == ("[0, 1, 4, 9]\n", "")


def test_jobs_are_a_number() -> None:
    with refusal(UsageError), open_workers(0):
        pass
    with refusal(UsageError), open_workers(2, "tcp://host:1"):
        pass


def hear_interrupts() -> None:
    """A shell that started these tests in the background has its children ignore interrupts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def alive(pid: int) -> bool:
    """Whether the process runs: one that ended and was not waited for does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

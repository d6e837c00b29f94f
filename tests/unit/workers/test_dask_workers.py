"""Workers of a real Dask cluster of two processes: equal results, killed workers, refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from qdq_passes.errors import ModelError, SetupError

from qdqtool.calibrate.collect import collect
from qdqtool.calibrate.observer import METHODS
from qdqtool.io.feeds.feeds import input_specs, open_feeds
from qdqtool.io.models.load import load
from qdqtool.workers import dask_workers, machine
from qdqtool.workers.cluster import Workers, open_workers
from qdqtool.workers.dask_workers import DaskWorkers, open_cluster
from qdqtool.workers.machine import Machine, refuse_others
from tests.cases import worker_functions as does
from tests.cases.cli_helpers import CALIB, DIGITS, cli, environment
from tests.cases.waiting import PATIENCE
from tests.golden_messages.refusal import refusal, told
from tests.unit.workers.test_local_workers import small

#: Tests that start processes of a cluster, which take 20 CPU seconds; the others are in every run.
on_a_cluster = pytest.mark.extra


@contextmanager
def started(count: int, threads: int = 1) -> Iterator[str]:
    script = str(Path(__file__).parents[2] / "cases" / "cluster_of_two.py")
    with subprocess.Popen(
        [sys.executable, script, str(count), str(threads)], env=environment(),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()
            process.wait(timeout=PATIENCE)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with started(2) as found:
        yield found


@pytest.fixture(scope="module")
def cluster(address: str) -> Iterator[Workers]:
    with open_workers(cluster=address) as workers:
        yield workers


@on_a_cluster
def test_results_come_in_order(cluster: Workers) -> None:
    told: list[tuple[int, int | None]] = []
    assert cluster.count == 2
    found = list(cluster.map(does.square, 3, range(30), progress=lambda done, total: told.append((done, total))))
    assert found == [3 * n * n for n in range(30)]
    assert told == [(n, 30) for n in range(1, 31)]
    assert len(set(cluster.map(does.who, None, iter(range(8))))) == 2


@on_a_cluster
def test_the_first_error_in_order_arrives_whole(cluster: Workers) -> None:
    results = cluster.map(does.complain, None, range(10))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ModelError) as caught:
        next(results)
    assert (caught.value.message, caught.value.where, caught.value.hint) == ("is broken", "node 'n'", "mend it")
    assert list(cluster.map(does.square, 2, [3])) == [18]


@on_a_cluster
def test_a_killed_worker_is_replaced_and_nothing_is_lost(cluster: Workers, tmp_path: Path) -> None:
    told: list[int] = []
    found = list(cluster.map(does.kill_once, str(tmp_path), range(12), progress=lambda done, _: told.append(done)))
    assert found == list(range(12))
    assert told == list(range(1, 13))
    assert (tmp_path / "killed").exists()


@on_a_cluster
def test_a_task_that_kills_is_named(cluster: Workers) -> None:
    with refusal(SetupError):
        list(cluster.map(does.kill_always, None, range(6)))
    assert list(cluster.map(does.square, 1, [4])) == [16]


@on_a_cluster
def test_a_context_goes_to_each_worker_once(cluster: Workers, tmp_path: Path) -> None:
    rows = list(cluster.map(does.count, does.Counting(str(tmp_path)), range(10)))
    for pid in {pid for pid, _, _ in rows}:
        mine = [row for row in rows if row[0] == pid]
        assert sorted(done for _, done, _ in mine) == list(range(1, len(mine) + 1))
        assert len({session for _, _, session in mine}) == 1


@on_a_cluster
@pytest.mark.parametrize("seen", [True, False])
def test_a_model_is_shared(seen: bool, cluster: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not seen:
        monkeypatch.setattr(DaskWorkers, "sees", lambda workers, path: False)
    model = small(tmp_path)
    model.graph[0].name = "renamed"
    shared = cluster.share(model)
    assert (shared.files is None) == seen
    ((names, weights, path),) = cluster.map(does.names_of, shared, [0])
    assert (names[0], weights) == ("renamed", model.graph.initializers["w"].const_value.tobytes())
    assert (path == shared.path) == seen
    ((_, _, path),) = cluster.map(does.names_of, cluster.share(tmp_path / "m.onnx"), [0])
    assert (path == str(tmp_path / "m.onnx")) == seen


@on_a_cluster
@pytest.mark.parametrize("method", METHODS.names())
def test_calibration_is_the_same_byte_for_byte(method: str, cluster: Workers) -> None:
    assert calibrated(method, cluster) == calibrated(method)


@on_a_cluster
def test_data_that_workers_do_not_see_are_sent(cluster: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DaskWorkers, "sees", lambda workers, path: False)
    assert calibrated("mse", cluster) == calibrated("mse")


def calibrated(method: str, workers: Workers | None = None) -> str:
    model = load(DIGITS)
    feeds = open_feeds(CALIB, input_specs(model), samples=24)
    return json.dumps(collect(model, feeds, method, workers=workers).to_json())


@on_a_cluster
def test_the_command(address: str, tmp_path: Path) -> None:
    (tmp_path / "scheduler.json").write_text(json.dumps({"address": address}))
    (tmp_path / "none.json").write_text("{}")
    command = ("quantize", DIGITS, "--data", CALIB, "--samples", "8")
    cli(*command, "-o", tmp_path / "a")
    cli(*command, "-o", tmp_path / "b", "--cluster", tmp_path / "scheduler.json")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    done = cli(*command, "-o", tmp_path / "c", "--cluster", tmp_path / "none.json", code=2)
    told(done.error)
    done = cli(*command, "-o", tmp_path / "c", "--cluster", address, "--jobs", "2", code=2)


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("tcp://127.0.0.1:9", "nonsense", "nothing://127.0.0.1:9"):
        with (
            pytest.raises(SetupError, match=f"--cluster {wrong}: no Dask scheduler answers"),
            open_cluster(wrong, patience=0.3),
        ):
            pass
    monkeypatch.setitem(sys.modules, "distributed", None)
    with refusal(SetupError), open_workers(cluster="tcp://127.0.0.1:9"):
        pass


@on_a_cluster
def test_a_cluster_without_workers() -> None:
    told = pytest.raises(SetupError, match="the cluster has no worker, 10 s on; start some with `dask worker")
    with started(0) as address, told, open_cluster(address, patience=10):
        pass


@on_a_cluster
def test_workers_of_several_threads() -> None:
    told: list[str] = []
    with started(1, 2) as address, open_cluster(address, warn=told.append) as workers:
        rows = list(workers.map(does.count, does.Counting(""), range(6)))
    assert sorted(done for _, done, _ in rows) == list(range(1, 7))  # they take turns
    assert told == ["workers have 2 threads and use one; start them with --nthreads 1 --nworkers 2"]


@on_a_cluster
def test_other_versions_are_refused_and_other_cpus_warned_of(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_version", lambda package: "1.0")
    told = pytest.raises(
        SetupError, match=r"the worker has qdqtool .*, numpy \S+ \(here 1.0\).*: its results would be others"
    )
    with told, open_cluster(address):
        pass
    monkeypatch.undo()
    here = Machine.here()
    missing = replace(here, versions=(*here.versions[:-1], ("ml-dtypes", None)))
    with pytest.raises(SetupError, match="tcp://w: the worker has ml-dtypes missing"):
        refuse_others({"tcp://w": missing}, None)
    warned: list[str] = []
    refuse_others({"a": here, "b": replace(here, cpu="another CPU")}, warned.append)
    assert warned == [
        f"workers run on another CPU, this process on {here.cpu}: results are equal to the last bit on the same kind of CPU only"
    ]


def test_a_worker_that_comes_later_is_looked_at() -> None:
    here = Machine.here()
    other = replace(here, versions=tuple((name, "0") for name, _ in here.versions))
    with pytest.raises(SetupError, match="a worker: the worker has Python"):
        dask_workers.work(b"", "unknown", other, b"")


def test_a_task_that_ends_while_its_worker_is_asked_for_gives_its_answer() -> None:
    """Its worker was killed when it had just told of its end; another does the task again, and finishes it."""

    class Again:
        status = "pending"

        def exception(self) -> None:
            self.status = "finished"

        def result(self, timeout: float) -> str:
            assert self.status == "finished"
            return "answer"

    assert dask_workers._answer(Again()) == ("answer", "")

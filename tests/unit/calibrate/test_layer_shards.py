"""Statistics by several workers are those of one process, byte for byte; products do not depend on the number of cores."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.numerics import one_thread as module
from qdq_passes.numerics.one_thread import one_thread

from qdqtool.calibrate import layer_sums
from qdqtool.calibrate.layer_sums import collect_statistics, divided, layers_together, share_statistics
from qdqtool.io.feeds.feeds import input_specs, open_feeds
from qdqtool.io.models.load import load
from qdqtool.workers.cluster import InProcess, Workers, open_workers
from tests.cases.cli_helpers import CALIB, DIGITS, environment

PRODUCT = """
import hashlib, numpy
from qdq_passes.numerics.one_thread import one_thread
x = numpy.random.default_rng(0).standard_normal((49, 4608), numpy.float32)
with one_thread():
    print(hashlib.sha256((x.T @ x).tobytes()).hexdigest())
"""


@pytest.fixture(scope="module")
def two() -> Iterator[Workers]:
    with open_workers(2) as workers:
        yield workers


@pytest.fixture(scope="module")
def digits() -> ir.Model:
    return load(DIGITS)


@pytest.mark.parametrize("data", [CALIB, "random:9:1", "list"])
def test_the_same_bytes(data: str, two: Workers, digits: ir.Model, tmp_path: Path) -> None:
    specs = input_specs(digits)
    feeds = open_feeds(CALIB if data == "list" else data, specs, samples=9)
    given = list(feeds) if data == "list" else feeds
    first = collect_statistics(digits, given, wanted=["magnitudes"])
    alone = collect_statistics(digits, given, before=first, file=tmp_path / "alone.npz")
    told: list[tuple[int, int | None]] = []
    shared = share_statistics(
        digits, given, two, before=first, file=tmp_path / "shared.npz", progress=lambda *step: told.append(step)
    )
    assert (tmp_path / "alone.npz").read_bytes() == (tmp_path / "shared.npz").read_bytes()
    assert share_statistics(digits, given, two, before=first).sha256 == alone.sha256 == shared.sha256
    assert share_statistics(digits, given, InProcess(), before=first).sha256 == alone.sha256
    assert told == [(1, 2), (2, 2)]


def test_what_cannot_be_sent_is_done_here(two: Workers, digits: ir.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    feeds = open_feeds(CALIB, input_specs(digits), samples=3)
    alone = collect_statistics(digits, feeds).sha256
    monkeypatch.setattr(two, "map", None)
    assert share_statistics(digits, iter(list(feeds)), two).sha256 == alone
    monkeypatch.setattr(layer_sums, "SENT", 100)
    assert share_statistics(digits, list(feeds), two).sha256 == alone


def test_layers_are_divided_evenly(digits: ir.Model) -> None:
    groups = layers_together(digits)
    parts = divided(groups, 2)
    assert sorted(name for part in parts for name in part) == sorted(name for _, group in groups for name in group)
    assert divided([(9, ("a", "b")), (5, ("c",)), (4, ("d",)), (0, ("e",))], 2) == [("a", "b", "e"), ("c", "d")]
    assert divided([(1, ("a",))], 4) == [("a",)]


def test_products_do_not_depend_on_the_number_of_cores() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", PRODUCT], env=environment(OPENBLAS_NUM_THREADS=threads), capture_output=True, text=True,
            check=True,
        ).stdout
        for threads in ("1", "2")
    }  # fmt: skip
    assert len(found) == 1


def test_threads_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(module, "_functions", lambda: (lambda: 7, asked.append))
    with one_thread(), one_thread():
        assert asked == [1]
    assert asked == [1, 7]
    monkeypatch.setattr(module, "_functions", lambda: None)
    with one_thread():
        assert np.eye(2) @ np.ones(2) == pytest.approx(1)

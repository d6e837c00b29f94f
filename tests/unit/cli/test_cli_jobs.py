"""Threads and processes, baselines, samples of the numeric check, what a target refuses, and progress."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from qdqtool.cli.commands import ran
from qdqtool.cli.render import Out
from qdqtool.runtime import taps
from qdqtool.verbs.edits.pipelines import Opt
from tests.cases.cli_helpers import CALIB, DIGITS, cli, write
from tests.golden_messages.refusal import told

UNSIGNED = """
description = "takes uint8 only"
version = "1"
[[op]]
types = ["Conv", "Gemm"]
[[op.scheme]]
activations = ["uint8"]   # assumed
weights = ["int8"]
bias = ["int8"]
"""


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("jobs") / "q.onnx"
    cli("quantize", DIGITS, "--data", CALIB, "--samples", "4", "-o", path)
    return str(path)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Threads that the sessions of this process were opened with."""
    found: list[int] = []
    original = taps.open_session

    def spy(*arguments: Any, threads: int = 1, **options: Any) -> Any:
        found.append(threads)
        return original(*arguments, threads=threads, **options)

    monkeypatch.setattr(taps, "open_session", spy)
    return found


@pytest.mark.parametrize("option", ["--threads", "--jobs"])
def test_threads_of_the_sessions(option: str, quantized: str, asked: list[int]) -> None:
    same = ("compare", DIGITS, quantized, "--data", CALIB, "--samples", "3", "--json")
    first, second = (cli(*same, option, "2").out for _ in range(2))
    assert set(asked) == {2}
    assert first == second


@pytest.mark.parametrize("command", ["quantize", "calibrate"])
def test_jobs_are_processes_of_one_thread(command: str, tmp_path: Path, asked: list[int]) -> None:
    same = (command, DIGITS, "--data", CALIB, "--samples", "3")
    cli(*same, "-o", tmp_path / "a")
    here = len(asked)
    cli(*same, "-o", tmp_path / "b", "--jobs", "2")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert set(asked) == {1}
    assert len(asked) - here < here  # the model was run elsewhere
    assert "No such option '--threads'" in cli(*same, "-o", tmp_path / "c", "--threads", "2", code=2).err


@pytest.mark.parametrize("command", ["compare", "calibrate"])
def test_jobs_must_be_a_number(command: str) -> None:
    assert "'--jobs'" in cli(command, DIGITS, DIGITS, "--data", CALIB, "--jobs", "0", code=2).err


def compared(model: str, *more: str | Path, code: int = 0) -> Any:
    return cli("compare", DIGITS, model, "--data", CALIB, "--samples", "4", "--outputs-only", *more, code=code)


def test_a_baseline_holds_the_figures(quantized: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    compared(quantized, "--json-out", report)
    compared(quantized, "--baseline", report)
    compared(DIGITS, "--baseline", report)  # better is well
    stored = json.loads(report.read_text())
    for better in (stored["outputs"]["logits"]["sqnr_db"] + 0.001, None):
        stored["outputs"]["logits"]["sqnr_db"] = better
        report.write_text(json.dumps(stored))
        assert "worse than the baseline: logits, " in compared(quantized, "--baseline", report, code=1).out
    (row,) = json.loads(compared(quantized, "--baseline", report, "--json", code=1).out)["worse"]
    assert (row["output"], row["before"]) == ("logits", None)
    compared(DIGITS, "--baseline", report)


def test_a_baseline_of_other_outputs_or_none(tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    report.write_text('{"outputs": {"other": {"sqnr_db": 3}}}')
    told(compared(DIGITS, "--baseline", report, code=2).error)
    report.write_text('{"outputs": {"logits": {"sqnr_db": 3}, "other": {"sqnr_db": 3}}}')
    told(compared(DIGITS, "--baseline", report, code=2).error)
    for text in ("nonsense", "[]", "{}", '{"outputs": []}', '{"outputs": {"logits": {"sqnr_db": "x"}}}'):
        report.write_text(text)
        told(compared(DIGITS, "--baseline", report, code=2).error)
    told(compared(DIGITS, "--baseline", tmp_path / "no.json", code=2).error)


def test_check_data_takes_the_options_of_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qdqtool.runtime import hooks

    ran: list[float] = []
    original = hooks.open_session

    def spy(model: Any) -> Any:
        session = original(model)
        run = session.run
        session.run = lambda feed: (ran.append(float(feed["input"].sum())), run(feed))[1]
        return session

    monkeypatch.setattr(hooks, "open_session", spy)
    sums = {}
    for options in ((), ("--samples", "2"), ("--seed", "3")):
        ran.clear()
        cli("opt", DIGITS, "-p", "sort", "--check-data", "random:8", *options, "-o", tmp_path / f"{len(sums)}.onnx")
        sums[options] = list(ran)
    assert [len(s) for s in sums.values()] == [4, 2, 4]
    assert sums["--samples", "2"] == sums[()][:2]
    assert sums["--seed", "3"] != sums[()]
    shown = cli("opt", DIGITS, "-p", "sort", "--check-data", CALIB, "--image-size", "no", "-o", tmp_path / "x", code=2)
    told(shown.error)


def test_what_the_target_does_not_take_is_said(tmp_path: Path) -> None:
    (tmp_path / "unsigned.toml").write_text(UNSIGNED)
    command = ("quantize", DIGITS, "--data", CALIB, "--samples", "2", "--target", tmp_path / "unsigned.toml")
    done = cli(*command, "-o", tmp_path / "q.onnx", "--json")
    refusals = done.json["target_refusals"]
    assert {"node": "/head/fc", "reason": "Gemm on unsigned: activation is int8, not uint8"} in refusals
    assert len(refusals) == done.json["quantized_nodes"]
    assert "more: Conv on unsigned: activation is int8, not uint8" in done.err
    fits = (
        "quantize",
        DIGITS,
        "--data",
        CALIB,
        "--samples",
        "2",
        "--target",
        "generic_int8",
        "-o",
        tmp_path / "g.onnx",
    )
    done = cli(*fits, "--json")
    assert done.json["target_refusals"] == []
    assert done.err == ""
    cli("quantize", DIGITS, "--data", CALIB, "--samples", "2", "-o", tmp_path / "n.onnx", "--json")


def test_nodes_are_judged_by_every_operand(tmp_path: Path) -> None:
    (tmp_path / "floats.toml").write_text(UNSIGNED.replace('"uint8"', '"int8"').replace('bias = ["int8"]', ""))
    model = write(tmp_path / "m.onnx", """g (float[1,2] x) => (float[1,2] y) <float[2,2] w = {1, 2, 3, 4}, float[2] b = {1, 2}> {
        [m] y = Gemm(x, w, b) }""")  # fmt: skip
    done = cli(
        "quantize", model, "--data", "random:2", "--target", tmp_path / "floats.toml", "-o", tmp_path / "q", "--json"
    )
    assert done.json["target_refusals"] == [{"node": "m", "reason": "Gemm on floats: takes no quantized bias"}]


class Watched(Out):
    """Remembers what a progress bar would show."""

    shown: list[tuple[str, int, int | None]]

    @contextmanager
    def progress(self, what: str) -> Iterator[Any]:
        self.shown = [(what, 0, None)]
        yield lambda *step: self.shown.append(step)


def test_progress_of_a_pipeline_and_of_saving(tmp_path: Path) -> None:
    out = Watched()
    ran(out, Opt(DIGITS, str(tmp_path / "o.onnx"), text="fold-batch-norm,sort"), "loading")
    assert out.shown == [("loading", 0, None), ("fold-batch-norm", 0, 2), ("sort", 1, 2), ("saving", 2, 2)]

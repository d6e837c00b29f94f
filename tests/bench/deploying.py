"""`deploy` of exports, beside the four commands that it saves: `quantize`, `analyze`, `compare`, and `simulate` of two samples.

As processes, and as functions of one process, where nothing is gained by starting once; all of them run onnxruntime with the threads
that the tool gives it. What runs of an export is run in turn; the bound is of the sums over the exports of a target. Measured is every
tenth export in the order of their names: a transformer, a convolutional network, a detector, of both exporters of torch; all of them take
a quarter of an hour.

    python -m tests.bench.deploying inside MODEL DATA TARGET FOLDER    prints both wall times of the functions"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.bench.measure import PYTHON, QDQTOOL, Result, progress, run

TARGETS = ("vitis_xint8", "qnn_htp")
#: Wall time of `deploy` over that of the four, summed over the exports.
TIMES = 1.5
SAMPLES = 2
#: One export of so many is measured.
EVERY = 10
#: Outputs of random weights may be of any SQNR.
ANY = ("--min-sqnr", "-inf")


def results() -> Iterator[Result]:
    """For each target: the worst export and the sum, as processes and inside of one."""
    from tests.exports import exports

    with tempfile.TemporaryDirectory() as folder:
        for target in TARGETS:
            outside, inside = {}, {}
            for name in exports.names()[::EVERY]:
                progress(f"{name} for {target}")
                model, data = (os.fspath(path) for path in exports.write(name, Path(folder)))
                place = tempfile.mkdtemp(dir=folder)
                outside[name] = _processes(model, data, target, place)
                inside[name] = _functions(model, data, target, tempfile.mkdtemp(dir=folder))
            yield from _told(target, "processes", outside)
            yield from _told(target, "functions", inside)


def _told(target: str, kind: str, times: dict[str, tuple[float, float]]) -> Iterator[Result]:
    sums = tuple(sum(each) for each in zip(*times.values(), strict=True))
    worst = max(times, key=lambda name: times[name][0] / times[name][1])
    rows = {"all": (f"{len(times)} exports", sums, TIMES), "the worst": (worst, times[worst], None)}
    for what, (of, (ours, four), bound) in rows.items():
        detail = f"{of}: {ours:.1f} s against {four:.1f} s of four commands"
        yield Result(f"deploy for {target}, {kind}, {what}", ours / four, "×", bound, detail)


def _processes(model: str, data: str, target: str, folder: str) -> tuple[float, float]:
    """Wall seconds of `deploy` and of the four, from the start of each process."""
    wanted, quantized = ["--target", target, "-q"], f"{folder}/quantized.onnx"
    four: Sequence[Sequence[str]] = (
        ["quantize", model, *wanted, *ANY, "--data", data, "-o", quantized],
        ["analyze", quantized, *wanted],
        ["compare", model, quantized, "--data", data, "-q"],
        ["simulate", quantized, *wanted, "--data", data, "--samples", str(SAMPLES)],
    )
    whole = run([QDQTOOL, "deploy", model, *wanted, *ANY, "--data", data, "-o", f"{folder}/deployed"]).wall
    return whole, sum(run([QDQTOOL, *words]).wall for words in four)


def _functions(model: str, data: str, target: str, folder: str) -> tuple[float, float]:
    """Wall seconds of the functions, in a process of their own."""
    words = [PYTHON, "-m", "tests.bench.deploying", "inside", model, data, target, folder]
    whole, four = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
    return float(whole), float(four)


def _inside(model: str, data: str, target: str, folder: str) -> None:
    import qdqtool

    quantized = f"{folder}/quantized.onnx"
    four: Sequence[Callable[[], object]] = (
        lambda: qdqtool.quantize(model, quantized, target=target, data=data),
        lambda: qdqtool.analyze(quantized, target=target),
        lambda: qdqtool.compare(model, quantized, data=data),
        lambda: qdqtool.simulate(quantized, data, target=target, samples=SAMPLES),
    )
    qdqtool.deploy(model, f"{folder}/warm", target=target, data=data)  # what is imported and compiled once
    print(
        _seconds(lambda: qdqtool.deploy(model, f"{folder}/deployed", target=target, data=data)),
        sum(map(_seconds, four)),
    )


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    _inside(*sys.argv[2:])

"""How CPU time grows between 5,000 and 25,000 of what a file can hold many of: pairs, readers of one value, members of an archive.

The exponent is log(ratio of the seconds) / log(ratio of the sizes), of commands run in this process after one that warms up, the sizes
in turns. What is paid once, whatever the size, makes it smaller, never larger."""

from __future__ import annotations

import gc
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from tests.bench.measure import Result, progress
from tests.cases.small_models import parsed

SIZES = (5_000, 25_000)
#: Runs of each size, of which the shortest counts: as many of both, for the shortest of more runs is shorter.
TIMES = 3
BOUND = 1.1


def results() -> Iterator[Result]:
    """The exponents."""
    from qdqtool import analyze, load, run_pipeline
    from qdqtool.cli.main import COLLECT
    from qdqtool.io.feeds.stored_array import arrays_in

    gc.set_threshold(*COLLECT)  # as commands do

    with tempfile.TemporaryDirectory() as folder:
        cases: dict[str, tuple[Callable[[Path, int], Path], Callable[[Path], object]]] = {
            "qdq remove, pairs": (partial(_chain, own=True), lambda m: run_pipeline(load(m), "remove-qdq")),
            "qdq move, pairs": (_chain, lambda m: run_pipeline(load(m), "move-qdq")),
            "analyze, readers of one value": (_readers, lambda m: analyze(m, target="generic_int8")),
            ".npz, members": (_archive, arrays_in),
        }
        for name, case in cases.items():
            yield _exponent(name, Path(folder), *case)


def _exponent(name: str, folder: Path, make: Callable[[Path, int], Path], run: Callable[[Path], object]) -> Result:
    progress(f"{name}: files of {SIZES[0]:,} and {SIZES[1]:,}")
    files = [make(folder, size) for size in SIZES]
    run(files[0])
    rounds = []
    for turn in range(TIMES):
        progress(f"{name}: run {turn + 1} of {TIMES}")
        rounds.append([_seconds(run, file) for file in files])
    seconds = [min(times) for times in zip(*rounds, strict=True)]
    exponent = math.log(seconds[1] / seconds[0]) / math.log(SIZES[1] / SIZES[0])
    detail = f"{seconds[0]:.2f} s of {SIZES[0]:,}, {seconds[1]:.2f} s of {SIZES[1]:,}"
    return Result(f"growth: {name}", exponent, "", BOUND, detail)


def _seconds(run: Callable[[Path], object], file: Path) -> float:
    gc.collect()  # what the run before left would be collected within this one
    start = time.process_time()
    run(file)
    return time.process_time() - start


def _chain(folder: Path, size: int, *, own: bool = False) -> Path:
    """QDQ pairs and Relus behind each other, of one scale; with ``own`` half of them have their own: such pairs are removed, but
    moved, each would cross all the others."""
    scales = [f"s{i}" if own and i % 2 else "s" for i in range(size)]
    pair = "[q{0}] q{0} = QuantizeLinear (x{0}, {1}, z) [d{0}] d{0} = DequantizeLinear (q{0}, {1}, z)"
    nodes = [f"{pair.format(i, scale)} [r{i}] x{i + 1} = Relu (d{i})" for i, scale in enumerate(scales)]
    return _saved(folder / f"{size}.onnx", f"float[8] x{size}", nodes, sorted({*scales} - {"s"}))


def _readers(folder: Path, size: int) -> Path:
    """Relus that all read the value of one pair."""
    nodes = ["[q] q = QuantizeLinear (x0, s, z) [d] d = DequantizeLinear (q, s, z)"]
    nodes += [f"[r{i}] y{i} = Relu (d)" for i in range(size)]
    return _saved(folder / f"{size}.onnx", ", ".join(f"float[8] y{i}" for i in range(size)), nodes)


def _saved(path: Path, outputs: str, nodes: list[str], own: Iterable[str] = ()) -> Path:
    weights = ", ".join(["float s = {0.5}, int8 z = {0}", *(f"float {scale} = {{0.25}}" for scale in own)])
    onnx.save(parsed(f"g (float[8] x0) => ({outputs}) <{weights}> {{ {' '.join(nodes)} }}"), path)
    return path


def _archive(folder: Path, size: int) -> Path:
    np.savez(folder / f"{size}.npz", **{f"x{i}": np.zeros(4, np.float32) for i in range(size)})
    return folder / f"{size}.npz"

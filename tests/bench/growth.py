"""How CPU time grows between 5,000 and 50,000 of what a file can hold many of: pairs, readers of one value, members of an archive.

The exponent is log(ratio of the seconds) / log(ratio of the sizes), of commands run in this process, the smaller size after a run of
its own to warm up. What is paid once, whatever the size, makes it smaller, never larger."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser

from tests.bench.measure import Result

SIZES = (5_000, 50_000)
BOUND = 1.1
_HEAD = '<ir_version: 10, opset_import: ["" : 21]> g (float[8] x0) => ({outputs}) <float s = {{0.5}}, int8 z = {{0}}{own}> {{'


def results() -> list[Result]:
    """The exponents."""
    import qdqtool
    from qdqtool.io.feeds.stored_array import arrays_in

    with tempfile.TemporaryDirectory() as folder:
        cases: dict[str, tuple[Callable[[Path, int], Path], Callable[[Path], object]]] = {
            "qdq remove, pairs": (_chain_of_own_scales, lambda m: qdqtool.run_pipeline(qdqtool.load(m), "remove-qdq")),
            "qdq move, pairs": (_chain, lambda m: qdqtool.run_pipeline(qdqtool.load(m), "move-qdq")),
            "analyze, readers of one value": (_readers, lambda m: qdqtool.analyze(m, target="generic_int8")),
            ".npz, members": (_archive, arrays_in),
        }
        return [_exponent(name, Path(folder), *case) for name, case in cases.items()]


def _exponent(name: str, folder: Path, make: Callable[[Path, int], Path], run: Callable[[Path], object]) -> Result:
    files = [make(folder, size) for size in SIZES]
    run(files[0])
    seconds = [min(_seconds(run, file) for _ in range(2)) for file in files]
    exponent = math.log(seconds[1] / seconds[0]) / math.log(SIZES[1] / SIZES[0])
    detail = f"{seconds[0]:.2f} s of {SIZES[0]:,}, {seconds[1]:.2f} s of {SIZES[1]:,}"
    return Result(f"growth: {name}", exponent, "", BOUND, detail)


def _seconds(run: Callable[[Path], object], file: Path) -> float:
    start = time.process_time()
    run(file)
    return time.process_time() - start


def _chain(folder: Path, size: int, *, own: bool = False) -> Path:
    """QDQ pairs and Relus behind each other, of one scale; with ``own`` half of them have their own."""
    scales = [f"s{i}" if own and i % 2 else "s" for i in range(size)]
    layers = [
        f"[q{i}] q{i} = QuantizeLinear (x{i}, {s}, z) [d{i}] d{i} = DequantizeLinear (q{i}, {s}, z) [r{i}] x{i + 1} = Relu (d{i})"
        for i, s in enumerate(scales)
    ]
    more = "".join(f", float {s} = {{0.25}}" for s in scales if s != "s")
    return _saved(folder / f"chain{size}.onnx", f"float[8] x{size}", layers, more)


def _chain_of_own_scales(folder: Path, size: int) -> Path:
    """Such pairs are removed; moved, each would cross all the others."""
    return _chain(folder, size, own=True)


def _readers(folder: Path, size: int) -> Path:
    """Relus that all read the value of one pair."""
    head = "[q] q = QuantizeLinear (x0, s, z) [d] d = DequantizeLinear (q, s, z)"
    layers = [head, *(f"[r{i}] y{i} = Relu (d)" for i in range(size))]
    return _saved(folder / f"readers{size}.onnx", ", ".join(f"float[8] y{i}" for i in range(size)), layers)


def _saved(path: Path, outputs: str, layers: list[str], own: str = "") -> Path:
    onnx.save(onnx.parser.parse_model("\n".join([_HEAD.format(outputs=outputs, own=own), *layers, "}"])), path)
    return path


def _archive(folder: Path, size: int) -> Path:
    np.savez(folder / f"members{size}.npz", **{f"x{i}": np.zeros(4, np.float32) for i in range(size)})
    return folder / f"members{size}.npz"

"""Splitting a decoder of 0.5 B parameters, 2 GB of weights: CPU time and memory of two prefill graphs and one decode graph."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench.measure import PYTHON, QDQTOOL, Result, progress, run

BUILDER = Path(__file__).parents[2] / "sample_models" / "qwen2_shape.py"
MEGABYTE = 2**20
#: Bytes of the model and of its split, with room to spare.
ROOM = 5 * 2**30
#: CPU seconds, the copy of the weights and their SHA-256 included; megabytes.
SECONDS, PEAK, BESIDE = 30, 300, 10


def results() -> Iterator[Result]:
    """`split` with prefill of 128 and 512 tokens and decode in a context of 4096, in place and sliding: at most 30 CPU seconds,
    300 MB of memory, and 10 MB of graphs beside the weights."""
    with tempfile.TemporaryDirectory() as folder:
        free = shutil.disk_usage(folder).free
        if free < ROOM:
            raise OSError(f"needs {ROOM >> 30} GiB of disk in {folder}, {free / 2**30:.1f} are free")
        source = Path(folder) / "model.onnx"
        progress("building the decoder")
        run([PYTHON, str(BUILDER), str(source)])
        for layout in ("in-place", "slide"):
            yield from _of(source, layout)


def _of(source: Path, layout: str) -> Iterator[Result]:
    progress(f"split, {layout}")
    target = source.with_name(layout)
    sizes = ["--prefill", "128,512", "--decode", "1", "--context", "4096", "--layout", layout]
    measured = run([QDQTOOL, "split", str(source), "-o", str(target), *sizes])
    files = {path: path.stat().st_size for path in target.iterdir()}
    beside = sum(size for path, size in files.items() if path.suffix != ".data")
    weights = sum(files.values()) - beside
    added = weights - source.with_name("model.onnx.data").stat().st_size
    shutil.rmtree(target)
    name = f"split of 0.5 B, {layout}"
    detail = f"{measured.wall:.1f} s, {weights / 1e9:.2f} GB of weights"
    yield Result(f"{name}: CPU", measured.cpu, "s", SECONDS, detail)
    yield Result(f"{name}: memory", measured.peak_rss / MEGABYTE, "MB", PEAK, detail)
    yield Result(f"{name}: beside the weights", (beside + max(added, 0)) / 1e6, "MB", BESIDE, f"{len(files)} files")

"""Memory: a 2.4 GB model with external data through `opt`, whose weights are streamed and never held."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench.measure import PYTHON, QDQTOOL, Result, progress, run

GIGABYTES = 2.4
MEGABYTE = 2**20
BUILDER = Path(__file__).parents[2] / "sample_models" / "big_model.py"


def results() -> Iterator[Result]:
    """Peak RSS of `opt -p remove-unused,give-names` (at most 400 MB): into another folder, and beside the model."""
    with tempfile.TemporaryDirectory() as folder:
        free = shutil.disk_usage(folder).free
        if free < 2.2 * GIGABYTES * 2**30:
            raise OSError(f"needs {2.2 * GIGABYTES:.1f} GiB of disk in {folder}, {free / 2**30:.1f} are free")
        source = Path(folder) / "big.onnx"
        progress(f"building {GIGABYTES} GB")
        run([PYTHON, str(BUILDER), str(source), "--gigabytes", str(GIGABYTES)])
        command = [QDQTOOL, "opt", str(source), "-p", "remove-unused,give-names", "-o"]
        for where, target in (
            ("another folder", Path(folder) / "out" / "big.onnx"),
            ("the same folder", Path(folder) / "b.onnx"),
        ):
            progress(f"opt into {where}")
            measured = run([*command, str(target)])
            detail = f"{measured.wall:.1f} s, {measured.cpu:.1f} CPU s"
            yield Result(f"opt of {GIGABYTES} GB into {where}", measured.peak_rss / MEGABYTE, "MB", 400, detail)

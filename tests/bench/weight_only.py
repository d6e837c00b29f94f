"""Memory: 4-bit weights of models with 1 GB and 3 GB of external data, quantized while they are written."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench.measure import PYTHON, QDQTOOL, Result, progress, run

GIGABYTES = (1, 3)
MEGABYTE = 2**20
BUILDER = Path(__file__).parents[2] / "sample_models" / "big_model.py"


def results() -> Iterator[Result]:
    """Peak RSS of `quantize --preset w4-g128` (at most 400 MB), that of 3 GB over that of 1 GB, and CPU seconds over those of a
    command that reads and writes as many bytes."""
    peaks = []
    with tempfile.TemporaryDirectory() as folder:
        needed = 1.6 * max(GIGABYTES) * 2**30
        if shutil.disk_usage(folder).free < needed:
            raise OSError(f"needs {needed / 2**30:.1f} GiB of disk in {folder}")
        for size in GIGABYTES:
            source = Path(folder) / f"{size}.onnx"
            progress(f"building {size} GB")
            run([PYTHON, str(BUILDER), str(source), "--gigabytes", str(size), "--decoder"])
            read = run([PYTHON, "-c", _READ, str(source) + ".data"])
            output = Path(folder) / "out" / "w4.onnx"
            progress(f"quantizing {size} GB")
            measured = run([QDQTOOL, "quantize", str(source), "--preset", "w4-g128", "-o", str(output)])
            peaks.append(measured.peak_rss / MEGABYTE)
            detail = f"{measured.wall:.1f} s, {measured.cpu:.1f} CPU s; reading and hashing alone {read.cpu:.1f} CPU s"
            yield Result(f"quantize w4-g128 of {size} GB", peaks[-1], "MB", 400, detail)
            shutil.rmtree(output.parent)
            source.with_name(source.name + ".data").unlink()
    detail = ", ".join(f"{peak:.0f} MB" for peak in peaks)
    yield Result("quantize w4-g128, 3 GB over 1 GB", peaks[1] / peaks[0], "×", 1.15, detail)


#: The floor: every byte is read and looked at once.
_READ = """
import hashlib, sys
with open(sys.argv[1], "rb") as file:
    print(hashlib.file_digest(file, "sha256").hexdigest())
"""

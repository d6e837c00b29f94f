"""What `simplify` leaves of the exports, beside what onnxslim leaves, which runs in an environment of its own (made in build/ by pip,
once): nodes, and the time of both. A bound of 1 × says: no more nodes than onnxslim. Measured is every third export in the order of their
names; what onnxslim leaves of all of them stands in `tests/unit/clean`."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench.measure import PYTHON, QDQTOOL, Result, progress, run

ROOT = Path(__file__).parents[2]
#: The environment of onnxslim and what it is made of.
SLIM = ROOT / "build" / "onnxslim" / "bin"
REQUIREMENTS = ("onnxslim==0.1.98", "onnx", "onnxruntime")
#: One export of so many is measured.
EVERY = 3


def results() -> Iterator[Result]:
    """One line an export, and one for those together."""
    from tests.exports import exports

    _make_environment()
    sums, seconds = [0, 0, 0], [0.0, 0.0]
    with tempfile.TemporaryDirectory() as folder:
        for name in exports.names()[::EVERY]:
            progress(name)
            model, _ = exports.write(name, Path(folder), 1)
            ours, theirs = Path(folder) / "ours.onnx", Path(folder) / "theirs.onnx"
            mine = run([QDQTOOL, "simplify", os.fspath(model), "-o", os.fspath(ours), "--overwrite", "-q"])
            slim = run([os.fspath(SLIM / "onnxslim"), os.fspath(model), os.fspath(theirs)])
            nodes = [_nodes(path) for path in (model, ours, theirs)]
            sums = [a + b for a, b in zip(sums, nodes, strict=True)]
            seconds = [seconds[0] + mine.wall, seconds[1] + slim.wall]
            yield _result(name, nodes, [mine.wall, slim.wall])
    yield _result("all these", sums, seconds)


def _result(name: str, nodes: list[int], seconds: list[float]) -> Result:
    before, ours, theirs = nodes
    detail = f"{before} nodes → {ours} in {seconds[0]:.1f} s; onnxslim {theirs} in {seconds[1]:.1f} s"
    return Result(f"nodes of {name} over onnxslim's", ours / theirs, "×", 1.0, detail)


def _nodes(path: Path) -> int:
    import onnx

    return len(onnx.load(path, load_external_data=False).graph.node)


def _make_environment() -> None:
    if (SLIM / "onnxslim").exists():
        return
    progress(f"installing {REQUIREMENTS[0]}")
    subprocess.run([PYTHON, "-m", "venv", SLIM.parent], check=True)
    subprocess.run([SLIM / "pip", "install", "--quiet", *REQUIREMENTS], check=True)

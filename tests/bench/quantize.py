"""Quantization end to end, process start to file written, beside plain float inference and onnxruntime's own quantizer.

All figures of one model come from the same rounds, in turn, as medians of CPU seconds (user + system of the process and its
children) and of peak resident memory, on one thread. Processes inherit the peak of the process that starts them, so this one
imports neither numpy nor onnx.

Calibration reads every activation, as MinMax does; the bounds hold what else is done to a share of that and a constant."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from tests.bench.measure import PYTHON, QDQTOOL, Result, Run, in_turn, median, progress, run, shown

SAMPLES = 64
ROUNDS = 3
DIGITS_ROUNDS = 5
MEGABYTE = 2**20
#: What quantizing ResNet-18 may take: so many times the CPU seconds of as many optimized inferences, plus so many seconds.
TIMES, FIXED = 1.8, 2.0
#: Peak memory: of ResNet-18 as a whole; of every method over that of plain float inference.
RESNET18_MEMORY, METHOD_MEMORY = 400, 300
#: CPU seconds that quantizing the digits CNN may take besides imports.
DIGITS_EXTRA = 0.5
#: CPU seconds over those of onnxruntime's MinMax: of the two networks; on any network at most a share more and a constant.
OVER_MINMAX, SHARE, CONSTANT = 1.0, 1.15, 0.6
MODELS = {"resnet18": "ResNet-18", "mobilenetv2": "MobileNetV2"}
#: The method of the preset, which the other figures are of.
PRESETS_OWN = "pow2-minmse"

_MODULES = """
import sys
from qdqtool.cli.main import run
assert run(sys.argv[1:]) == 0
print("modules", *(name for name in sys.modules if name != "__main__"))
"""
_IMPORT = """
import importlib, sys
import qdqtool  # defers sympy, which is in the list
for name in sys.argv[1:]:
    if name not in sys.modules:
        importlib.import_module(name)
more = set(sys.modules) - set(sys.argv)
assert len(more) <= 0.02 * len(sys.argv), more
"""


@dataclass(frozen=True)
class Job:
    """A float model and its samples.

    Args:
        name: what the report calls it.
        model: file of the model.
        data: .npz of the samples.
    """

    name: str
    model: Path
    data: Path

    def ours(self, output: Path, *options: str) -> list[str]:
        """The command that quantizes it with us."""
        given = [str(self.model), "--preset", "xint8", "--data", str(self.data), "--samples", str(SAMPLES)]
        return [QDQTOOL, "quantize", *given, "-o", str(output), "--overwrite", *options]

    def theirs(self, output: Path, method: str = "MinMax") -> list[str]:
        """The command that quantizes it with onnxruntime."""
        given = [str(self.model), str(self.data), str(SAMPLES), method, str(output)]
        return [PYTHON, "-m", "tests.bench.onnxruntime_quantizer", *given]

    def floats(self) -> list[str]:
        """The command that runs it; prints the CPU seconds of the runs alone."""
        return [PYTHON, "-m", "tests.bench.float_runs", str(self.model), str(self.data), str(SAMPLES)]


def results() -> Iterator[Result]:
    """The bounds of the digits CNN, ResNet-18 and MobileNetV2, and the figures of onnxruntime beside them (no bound)."""
    return _results(is_quick=False)


def quick() -> Iterator[Result]:
    """The same networks, beside onnxruntime's MinMax alone."""
    return _results(is_quick=True)


def _results(*, is_quick: bool) -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as folder, as_file(files("qdqtool") / "_demo") as demo:
        out = Path(folder) / "out.onnx"
        yield from _digits(Job("the digits CNN", demo / "digits.onnx", demo / "calib.npz"), out)
        for file, name in MODELS.items():
            progress(f"building {name}")
            run([PYTHON, "-m", "tests.bench.models", file, folder])
            job = Job(name, Path(folder) / f"{file}.onnx", Path(folder) / "calib.npz")
            yield from _beside_minmax(job, out) if is_quick else _network(job, out)


def _digits(job: Job, out: Path) -> Iterator[Result]:
    progress(f"{job.name}, {DIGITS_ROUNDS} rounds")
    listed = run([PYTHON, "-c", _MODULES, *job.ours(out)[1:]]).output.split("modules ", 1)[1].split()
    ours, imports, theirs = in_turn(
        job.ours(out), [PYTHON, "-c", _IMPORT, *listed], job.theirs(out), rounds=DIGITS_ROUNDS
    )
    detail = f"{shown(ours)}; imports alone {imports.cpu:.2f} CPU s ({len(listed)} modules)"
    yield Result(f"xint8 of {job.name} over its imports", ours.cpu - imports.cpu, "s", DIGITS_EXTRA, detail)
    yield _over_share(job, ours, theirs)
    yield Result(f"onnxruntime MinMax of {job.name}", theirs.cpu, "s", None, shown(theirs))


def _beside_minmax(job: Job, out: Path) -> Iterator[Result]:
    """Both quantizers alone; the first round, which compiles what they import, was that of the digits."""
    rounds = []
    for number in range(ROUNDS):
        progress(f"{job.name}, round {number + 1} of {ROUNDS}")
        rounds.append((run(job.ours(out)), run(job.theirs(out))))
    ours, theirs = (median(column) for column in zip(*rounds, strict=True))
    yield _over_minmax(job, ours, theirs)
    yield _over_share(job, ours, theirs)


def _over_minmax(job: Job, ours: Run, theirs: Run) -> Result:
    detail = f"{ours.cpu:.2f} CPU s against {theirs.cpu:.2f}"
    return Result(f"xint8 of {job.name} / onnxruntime MinMax", ours.cpu / theirs.cpu, "×", OVER_MINMAX, detail)


def _over_share(job: Job, ours: Run, theirs: Run) -> Result:
    detail = f"{ours.cpu:.2f} CPU s against {theirs.cpu:.2f}"
    name = f"xint8 of {job.name} over {SHARE} × onnxruntime MinMax"
    return Result(name, ours.cpu - SHARE * theirs.cpu, "s", CONSTANT, detail)


def _network(job: Job, out: Path) -> Iterator[Result]:
    is_first = job.name == MODELS["resnet18"]
    rounds, floors = [], []
    for number in range(ROUNDS):
        progress(f"{job.name}, round {number + 1} of {ROUNDS}")
        ours, floats = run(job.ours(out)), run(job.floats())
        floors.append(float(floats.output))
        rounds.append((ours, floats, run(job.theirs(out))))
    ours, floats, theirs = (median(column) for column in zip(*rounds, strict=True))
    floor = statistics.median(floors)
    detail = f"{shown(ours)}; {SAMPLES} float inferences {floor:.2f} CPU s, {floats.peak_rss / MEGABYTE:.0f} MB"
    room = floats.peak_rss / MEGABYTE + METHOD_MEMORY
    seconds, memory = (TIMES * floor + FIXED, min(room, RESNET18_MEMORY)) if is_first else (None, room)
    yield Result(f"xint8 of {job.name}", ours.cpu, "s", seconds, detail)
    yield Result(f"xint8 of {job.name}, memory", ours.peak_rss / MEGABYTE, "MB", memory, "")
    yield Result(f"onnxruntime MinMax of {job.name}", theirs.cpu, "s", None, shown(theirs))
    yield _over_minmax(job, ours, theirs)
    yield _over_share(job, ours, theirs)
    if is_first:
        progress(f"{job.name}, onnxruntime Percentile")
        percentile = run(job.theirs(out, "Percentile"))
        yield Result(f"onnxruntime Percentile of {job.name}", percentile.cpu, "s", None, shown(percentile))
        return
    for method in _methods():
        progress(f"{job.name}, {method}")
        yield _method(job, out, method, room)


def _methods() -> list[str]:
    """The calibration methods but the preset's own."""
    rows = json.loads(run([QDQTOOL, "list", "methods", "--json"]).output)["methods"]
    return [row["name"] for row in rows if row["name"] != PRESETS_OWN]


def _method(job: Job, out: Path, method: str, room: float) -> Result:
    """The memory that one calibration method takes; measured once, as it hardly varies."""
    ours = run(job.ours(out, "--method", method))
    return Result(f"{method} of {job.name}, memory", ours.peak_rss / MEGABYTE, "MB", room, shown(ours))

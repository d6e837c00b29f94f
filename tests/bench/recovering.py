"""What recovery gains, and in what time: rounding on the ResNet-18 shape, learned and equalization on depthwise layers, smoothing.

Gains are of SQNR on data that was not calibrated on, in dB; a bound of −3 dB on what is lost means a gain of 3 dB at least."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.bench.measure import PYTHON, Result, progress, run

ROOT = Path(__file__).parents[2]
SIDE, SAMPLES = 64, 64
#: Wall seconds that rounding all weights of the ResNet-18 shape may take, statistics included.
ROUNDING_SECONDS = 300
#: CPU seconds of all threads that quantizing `WIDE` may take with learned rounding, calibration included (issue 20).
LEARNING_SECONDS = 120
#: Blocks of a MobileNetV2-like net of 2.1 million weights, as `mobilenet_block` has them: inputs, width, outputs, stride.
WIDE = (
    (32, 96, 24, 2), (24, 144, 24, 1), (24, 144, 32, 1), (32, 192, 32, 1), (32, 192, 64, 2), (64, 384, 64, 1), (64, 384, 64, 1),
    (64, 384, 96, 1), (96, 576, 96, 1), (96, 576, 96, 1), (96, 576, 160, 2), (160, 960, 160, 1), (160, 960, 160, 1),
    (160, 960, 320, 1),
)  # fmt: skip
#: Weights alone in int4, a scale per output channel: what differs is the rounding.
PRESET = """
description = "int4 weights per output channel, float activations"

[calibration]
method = "minmax"

[pipeline]
before = "give-names,convert-opset{version=21},infer-shapes"

[encodings]
activations = "none"
weights = "int4"
bias = "none"
scales = "any"
per_axis = ["Conv", "Gemm"]
"""


def results() -> Iterator[Result]:
    """One process each, so that none has the memory of another."""
    for name in ("rounding", "learning", "equalizing", "smoothing"):
        progress(name)
        lines = run([PYTHON, "-m", "tests.bench.recovering", name]).output.splitlines()
        for line in lines:
            if line.startswith("result|"):
                _, what, value, unit, bound, detail = line.split("|")
                yield Result(what, float(value), unit, float(bound), detail)


def rounding() -> None:
    """int4 weights of the ResNet-18 shape: rounded to the nearest, and with errors that compensate."""
    import onnx

    import qdqtool
    from tests.bench.models import fold, images, resnet18, settle

    with tempfile.TemporaryDirectory() as folder:
        model, preset = Path(folder) / "resnet18.onnx", Path(folder) / "int4.toml"
        onnx.save(fold(settle(resnet18(SIDE))), model)
        preset.write_text(PRESET, encoding="utf-8")
        data, test = {"input": images(SAMPLES, SIDE, seed=1)}, {"input": images(32, SIDE, seed=7)}
        plain = _sqnr(model, qdqtool.quantize(model, preset=str(preset), data=data), test)
        start = time.perf_counter()
        better = _sqnr(model, qdqtool.quantize(model, preset=str(preset), data=data, round_weights=True), test)
        seconds = time.perf_counter() - start
    _tell(
        "learned rounding, ResNet-18 int4, lost to nearest", plain - better, "dB", -3, f"{plain:.1f} → {better:.1f} dB"
    )
    _tell("learned rounding, ResNet-18, wall", seconds, "s", ROUNDING_SECONDS, f"{SAMPLES} samples of {SIDE} by {SIDE}")


def learning() -> None:
    """A net of depthwise layers in XINT8, 2 million weights of seeded numbers."""
    import resource

    import onnx

    import qdqtool

    sys.path.insert(0, str(ROOT / "sample_models"))
    import mobilenet_block

    mobilenet_block.STEM, mobilenet_block.LAST, mobilenet_block.BLOCKS = 32, 1280, WIDE
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "wide.onnx"
        onnx.save(mobilenet_block.to_onnx(mobilenet_block.settle(mobilenet_block.initial_weights())), model)
        data = {"input": mobilenet_block.images(SAMPLES * 2, seed=1)}
        test = {"input": mobilenet_block.images(32, seed=9)}
        plain = _sqnr(model, qdqtool.quantize(model, preset="xint8", data=data), test)
        before = resource.getrusage(resource.RUSAGE_SELF)
        done = qdqtool.quantize(model, preset="xint8", data=data, learn_rounding=True)
        after = resource.getrusage(resource.RUSAGE_SELF)
        better = _sqnr(model, done, test)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    detail = f"{plain:.1f} → {better:.1f} dB"
    _tell("learn-rounding, depthwise net of 2 M weights, xint8, lost to nearest", plain - better, "dB", -1, detail)
    _tell("learn-rounding, depthwise net of 2 M weights, CPU", seconds, "s", LEARNING_SECONDS, f"{SAMPLES * 2} samples")


def equalizing() -> None:
    """mobilenet_block in per-tensor int8."""
    import qdqtool

    sys.path.insert(0, str(ROOT / "sample_models"))
    from mobilenet_block import images  # type: ignore[import-not-found]

    model = ROOT / "sample_models/mobilenet_block.onnx"
    data, test = {"input": images(32, seed=1)}, {"input": images(64, seed=9)}
    for preset in ("a8w8", "xint8"):
        plain, better = (
            _sqnr(model, qdqtool.quantize(model, preset=preset, data=data, equalize=clip), test)
            for clip in (None, "bounds")
        )
        _tell(
            f"equalization, mobilenet_block {preset}, lost to plain",
            plain - better,
            "dB",
            -2,
            f"{plain:.1f} → {better:.1f} dB",
        )


def smoothing() -> None:
    """The trained llama with outliers that inject-outliers made: the share of the lost decibels that is not won back."""
    from qdq_passes.pipeline.pipeline import run_pipeline

    import qdqtool

    samples = ROOT / "sample_models"
    easy, hard = (qdqtool.load(samples / "tiny_llama.onnx") for _ in range(2))
    run_pipeline(hard, "inject-outliers")
    for preset in ("a8w8", "8a8w"):
        found = []
        for model, smooth in ((easy, None), (hard, None), (hard, 0.5)):
            done = qdqtool.quantize(
                model, preset=preset, data=str(samples / "text/train.txt"), tokenizer=samples / "tokenizer.json", samples=4,
                smooth=smooth,
            )  # fmt: skip
            assert done.comparison is not None
            found.append(next(o.agreement.sqnr_db or 0.0 for o in done.comparison.outputs if o.name == "logits"))
        plain, lost, back = found
        left = max(plain - back, 0) / (plain - lost) * 100
        detail = f"{plain:.1f} dB, with outliers {lost:.1f}, smoothed {back:.1f}"
        _tell(f"smoothing, tiny_llama {preset}, dB not won back", left, "%", 10, detail)


def _sqnr(model: Path, done: object, feed: Mapping[str, object]) -> float:
    """SQNR of the outputs of a quantization against the float model in the file, in dB, all outputs together."""
    import numpy as np

    import qdqtool
    from qdqtool.runtime.session import open_session
    from qdqtool.verbs.work.quantizing import Quantized

    assert isinstance(done, Quantized)
    sessions = [open_session(m, threads=2) for m in (qdqtool.load(model), done.model)]
    signal = noise = 0.0
    arrays = {name: np.asarray(array) for name, array in feed.items()}
    for index in range(len(next(iter(arrays.values())))):
        piece = {name: array[index : index + 1] for name, array in arrays.items()}
        wanted, found = (list(session.run(piece).values()) for session in sessions)
        signal += sum(float((w.astype(np.float64) ** 2).sum()) for w in wanted)
        noise += sum(float(((f.astype(np.float64) - w) ** 2).sum()) for w, f in zip(wanted, found, strict=True))
    return float(10 * np.log10(signal / max(noise, 1e-30)))


def _tell(what: str, value: float, unit: str, bound: float, detail: str) -> None:
    print(f"result|{what}|{value:.2f}|{unit}|{bound}|{detail}", flush=True)


if __name__ == "__main__":
    {"rounding": rounding, "learning": learning, "equalizing": equalizing, "smoothing": smoothing}[sys.argv[1]]()

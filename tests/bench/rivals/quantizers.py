"""What other quantizers make of a net: every setting of them that is worth trying, one file each.

    python quantizers.py MODEL CALIBRATION.npz FOLDER [PART-OF-A-NAME…]

Runs outside of the project, in an environment of its own (`README.md`). Nothing here is imported by the product or by its tests.
Calibration is sample by sample; seeds are the tools' own.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from quark.onnx import (
    AdaQuantConfig,
    AdaRoundConfig,
    BiasCorrectionConfig,
    CLEConfig,
    ModelQuantizer,
    SmoothQuantConfig,
)
from quark.onnx.quantization.config.config import QConfig
from quark.onnx.quantization.config.spec import (
    CalibMethod,
    Int8Spec,
    QLayerConfig,
    QuantGranularity,
    UInt8Spec,
    XInt8Spec,
)

torch.set_num_threads(1)
Made = Callable[[Path, Path, Path], None]


class Samples(CalibrationDataReader):
    """The samples of ``input`` in an .npz, one at a time."""

    def __init__(self, data: Path) -> None:
        with np.load(data) as arrays:
            self.samples = arrays["input"]
        self.rewind()

    def rewind(self) -> None:
        self.feeds = iter([{"input": self.samples[at : at + 1]} for at in range(len(self.samples))])

    def reset_iter(self) -> None:
        self.rewind()

    def get_next(self) -> dict[str, Any] | None:
        return next(self.feeds, None)


def ort(method: str, activations: str, per_channel: bool, symmetric: bool, percentile: float | None = None) -> Made:
    """onnxruntime's static quantizer behind its own preprocessing; weights int8."""

    def made(model: Path, data: Path, output: Path) -> None:
        cleaned = output.with_suffix(".pre.onnx")
        quant_pre_process(str(model), str(cleaned), skip_symbolic_shape=True)
        extra: dict[str, Any] = {"ActivationSymmetric": symmetric, "WeightSymmetric": True}
        if percentile is not None:
            extra["CalibPercentile"] = percentile
        quantize_static(
            str(cleaned), str(output), Samples(data), per_channel=per_channel, calibrate_method=CalibrationMethod[method],
            activation_type=QuantType[activations], weight_type=QuantType.QInt8, extra_options=extra,
        )  # fmt: skip
        cleaned.unlink()

    return made


#: As the A8W8 configurations that come with Quark say it.
A8W8 = {"ForceQuantizeNoInputCheck": True, "AlignSlice": False, "FoldRelu": True, "AlignConcat": True}


def quark(activation: Any, weight: Any, algorithms: Callable[[], list[Any]], options: dict[str, Any]) -> Made:
    """Quark's ONNX quantizer."""

    def made(model: Path, data: Path, output: Path) -> None:
        layers = QLayerConfig(activation=activation(), weight=weight())
        config = QConfig(global_config=layers, algo_config=algorithms(), extra_options=dict(options))
        ModelQuantizer(config).quantize_model(str(model), str(output), Samples(data))

    return made


def settings() -> Iterator[tuple[str, str, Made]]:
    """Name, the family it is compared in (`xint8`, `int8`), and what makes the file."""
    recoveries: dict[str, Callable[[], list[Any]]] = {
        "plain": list,
        "cle": lambda: [CLEConfig(cle_steps=1)],
        "cle-all": lambda: [CLEConfig(cle_steps=-1)],
        "adaround": lambda: [AdaRoundConfig(learning_rate=0.1, num_iterations=1000)],
        "adaquant": lambda: [AdaQuantConfig(learning_rate=1e-5, num_iterations=3000)],
        "cle adaround": lambda: [CLEConfig(cle_steps=-1), AdaRoundConfig(learning_rate=0.1, num_iterations=1000)],
        "cle adaquant": lambda: [CLEConfig(cle_steps=-1), AdaQuantConfig(learning_rate=1e-5, num_iterations=3000)],
        "bias": lambda: [BiasCorrectionConfig()],
        "smooth": lambda: [SmoothQuantConfig(alpha=0.5)],
    }
    for name, algorithms in recoveries.items():
        for what, options in (("", {}), ("relu6-as-relu ", {"ReplaceClip6Relu": True})):
            if options and "cle" not in name:
                continue  # equalization stops at ReLU6
            pow2 = {"ForceQuantizeNoInputCheck": True, **options}
            yield f"quark XINT8 {what}{name}", "xint8", quark(XInt8Spec, XInt8Spec, algorithms, pow2)
            yield f"quark A8W8 {what}{name}", "int8", quark(Int8Spec, Int8Spec, algorithms, {**A8W8, **options})
    for method in (CalibMethod.MinMax, CalibMethod.Percentile, CalibMethod.Entropy):
        for granularity in (QuantGranularity.Tensor, QuantGranularity.Channel):
            channels = "per channel" if granularity is QuantGranularity.Channel else "per tensor"

            def activation(method: Any = method) -> Any:
                return UInt8Spec(symmetric=False, calibration_method=method)

            def weight(granularity: Any = granularity) -> Any:
                return Int8Spec(symmetric=True, quant_granularity=granularity)

            for name in ("plain", "cle-all", "adaround"):
                if name == "plain" or (method is CalibMethod.MinMax and granularity is QuantGranularity.Channel):
                    title = f"quark U8S8 {method.name} {channels} {name}"
                    yield (
                        title,
                        "int8",
                        quark(activation, weight, recoveries[name], {"ForceQuantizeNoInputCheck": True}),
                    )
    for method, percentile in (("MinMax", None), ("Entropy", None), ("Percentile", None), ("Percentile", 99.9)):
        for activations, symmetric in (("QUInt8", False), ("QInt8", False), ("QInt8", True)):
            for per_channel in (False, True):
                what = f"{method}{'' if percentile is None else f' {percentile}'}"
                kind = f"{'U8' if activations == 'QUInt8' else 'S8'}S8{' symmetric' if symmetric else ''}"
                title = f"ort {kind} {what} {'per channel' if per_channel else 'per tensor'}"
                yield title, "int8", ort(method, activations, per_channel, symmetric, percentile)


class OneThread(onnxruntime.SessionOptions):
    """Options of a session with one thread, which the quantizers have no option for."""

    def __init__(self) -> None:
        super().__init__()
        self.intra_op_num_threads = 1


def main(model: str, data: str, folder: str, *only: str) -> None:
    """Write `FOLDER/NAME.onnx` for each setting that is not there yet; print what failed."""
    onnxruntime.SessionOptions = OneThread
    source, samples, out = (Path(path).resolve() for path in (model, data, folder))
    out.mkdir(parents=True, exist_ok=True)
    os.chdir(out)  # Quark leaves a table where it runs
    for name, family, made in settings():
        output = out / f"{family}_{name.replace(' ', '_')}.onnx"
        failed = output.with_suffix(".failed")
        if output.exists() or failed.exists() or not (not only or any(part in name for part in only)):
            continue
        start = time.process_time()
        try:
            made(source, samples, output)
        except Exception:  # noqa: BLE001 - whatever a tool raises is its answer
            failed.write_text(traceback.format_exc(), encoding="utf-8")
        print(
            f"RIVAL {name}: {'failed' if failed.exists() else 'made'} in {time.process_time() - start:.1f} CPU s",
            flush=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])

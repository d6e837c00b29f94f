"""What `quantizers.py` made, judged as we are: `python -m tests.bench.rivals.judge FOLDER VERSIONS > tests/data/rivals.json`.

FOLDER holds a folder for each net of `NETS`. Every file runs in onnxruntime without graph optimization, on the same test
samples and with the same metric; the multiply-accumulates outside of 8 bit are counted as ours are."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
from qdq_passes.errors import QdqError

import qdqtool
from qdqtool.search.metrics import open_metric
from qdqtool.search.precision_cost import Prices, cost_of
from qdqtool.search.variants import outputs_of

ROOT = Path(__file__).parents[3]
SAMPLES, DEMO = ROOT / "sample_models", ROOT / "qdqtool" / "_demo"


@dataclass(frozen=True, kw_only=True)
class Net:
    """A net with its data and its metric."""

    model: Path
    calibration: Path
    test: Path
    metric: str = "accuracy"

    def feeds(self) -> list[dict[str, np.ndarray]]:
        """One feed a test sample, what the metric needs besides among its arrays."""
        with np.load(self.test) as arrays:
            held = {name: arrays[name] for name in arrays.files}
        return [{name: array[at : at + 1] for name, array in held.items()} for at in range(len(held["input"]))]

    def judged(self, model: ir.Model) -> tuple[float, float]:
        """Figure, and share of the multiply-accumulates outside of 8 bit."""
        feeds = self.feeds()
        outputs = outputs_of(model, feeds)
        figure = open_metric(self.metric).measure(outputs, feeds, outputs)
        assert figure is not None
        return figure, 1 - cost_of(model, Prices()).share_8_bit


def trained(name: str) -> Net:
    """One of `sample_models/trained`."""
    folder = SAMPLES / "trained"
    return Net(
        model=folder / f"{name}.onnx", calibration=folder / f"{name}_calib.npz", test=folder / f"{name}_test.npz"
    )


NETS: Mapping[str, Net] = {
    "digits": Net(model=DEMO / "digits.onnx", calibration=DEMO / "calib.npz", test=DEMO / "test.npz"),
    "detector": Net(
        model=SAMPLES / "detector.onnx", calibration=SAMPLES / "detector_calib.npz", test=SAMPLES / "detector_test.npz",
        metric=f"{Path(__file__).with_name('metrics.py')}:map50",
    ),
    "vit": Net(model=SAMPLES / "trained" / "vit.onnx", calibration=DEMO / "calib.npz", test=DEMO / "test.npz"),
    "mobilenet": trained("mobilenet"),
    "keywords": trained("keywords"),
}  # fmt: skip


def main(folder: str, versions: str) -> None:
    """Print the figures of all files as JSON, a setting a line."""
    nets = []
    for name, net in NETS.items():
        found: dict[str, dict[str, dict[str, float]]] = {}
        for path in sorted(Path(folder, name).glob("*.onnx")):
            family, setting = path.stem.split("_", 1)
            try:
                figure, outside = net.judged(qdqtool.load(path))
            except QdqError as error:
                print(f"{name} {setting}: {error}", file=sys.stderr)
                continue
            figures = {"figure": round(figure, 6), "outside_8_bit": round(outside, 6)}
            found.setdefault(family, {})[setting.replace("_", " ")] = figures
        failed = sorted(path.stem.split("_", 1)[1].replace("_", " ") for path in Path(folder, name).glob("*.failed"))
        head = {
            "metric": net.metric.rpartition(":")[2],
            "float": round(net.judged(qdqtool.load(net.model))[0], 6),
            "failed": failed,
        }
        families = ",\n".join(
            f"   {json.dumps(family)}: {{\n"
            + ",\n".join(f"    {json.dumps(s)}: {json.dumps(f)}" for s, f in made.items())
            + "}"
            for family, made in found.items()
        )
        nets.append(f"  {json.dumps(name)}: {json.dumps(head)[:-1]},\n{families}}}")
        print(f"{name} judged", file=sys.stderr)
    print(f'{{"versions": {json.dumps(versions)}, "nets": {{\n' + ",\n".join(nets) + "}}")


if __name__ == "__main__":
    main(*sys.argv[1:])

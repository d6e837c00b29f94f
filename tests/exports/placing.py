"""What targets take of the exports, quantized for them with nothing else said."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import qdqtool
from tests.exports.exports import write

#: Targets of the table, in its order.
TARGETS = ("vitis_xint8", "qnn_htp", "apple_ane", "cloud_ai100", "generic_int8")
#: Samples to calibrate on: placement does not hang on them.
SAMPLES = 2


@dataclass(frozen=True)
class Placed:
    """A quantized export on a target.

    Args:
        output: the quantized model.
        data: its samples (.npz).
        share: of the multiply-accumulates on the NPU, 0 to 1.
        left: names of the operators that stay on the CPU; pairs, and what works on shapes, indices and masks alone, are none of them.
    """

    output: Path
    data: Path
    share: float
    left: tuple[str, ...]

    @property
    def cell(self) -> str:
        """As the table of the docs says it."""
        if not self.left:
            return "all"
        return f"{100 * self.share:.0f} %, {len(self.left)} on the CPU"


def placed(name: str, target: str, folder: Path) -> Placed:
    """The export ``name`` quantized for ``target`` in ``folder``, and analyzed."""
    output = folder / f"{name}.{target}.onnx"
    model, data = write(name, folder, SAMPLES)
    qdqtool.quantize(model, data=str(data), target=target, output=output)
    found = qdqtool.analyze(output, target=target, trials=False).to_json()
    left = tuple(node["name"] for node in found["nodes"] if node["device"] == "CPU" and node["kind"] == "compute")
    return Placed(output, data, found["npu_macs_share"] or 0.0, left)

"""What a target takes of the exports when they are quantized for it with nothing else said."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from qdq_passes.errors import QdqError

import qdqtool
from tests.exports.exports import names, write

#: Targets of the table, in its order.
TARGETS = ("vitis_xint8", "qnn_htp", "apple_ane", "cloud_ai100", "generic_int8")
#: Samples to calibrate on: placement does not hang on them.
SAMPLES = 2


@dataclass(frozen=True)
class Placed:
    """A quantized export on a target.

    Args:
        share: of the multiply-accumulates on the NPU, 0 to 1.
        left: the operators that stay on the CPU, each once, sorted; QuantizeLinear and DequantizeLinear are not among them.
    """

    share: float
    left: tuple[str, ...]

    @property
    def cell(self) -> str:
        """As the table of the docs has it: percent, and what stays on the CPU where it is few."""
        return f"{100 * self.share:.0f} %" if self.left else "all"


def placed(name: str, target: str, folder: Path | None = None) -> Placed:
    """The export ``name`` quantized for ``target`` and analyzed; files go into ``folder``."""
    if folder is None:
        with tempfile.TemporaryDirectory() as made:
            return placed(name, target, Path(made))
    output = folder / f"{name}.{target}.onnx"
    model, data = write(name, folder, SAMPLES)
    qdqtool.quantize(model, data=str(data), target=target, output=output, overwrite=True)
    found = qdqtool.analyze(output, target=target).to_json()
    left = {
        node["op"]
        for node in found["nodes"]
        if node["device"] == "CPU" and node["op"] not in ("QuantizeLinear", "DequantizeLinear")
    }
    return Placed(found["npu_macs_share"] or 0.0, tuple(sorted(left)))


def row(name: str) -> list[Placed | None]:
    """The export ``name`` on each of `TARGETS`; None where it is refused."""
    cells: list[Placed | None] = []
    for target in TARGETS:
        try:
            cells.append(placed(name, target))
        except QdqError as error:
            print(f"{name} on {target}: {error.message}")
            cells.append(None)
    return cells


__all__ = ["SAMPLES", "TARGETS", "Placed", "names", "placed", "row"]

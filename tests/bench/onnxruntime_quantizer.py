"""onnxruntime's own static quantizer on one thread: `python -m tests.bench.onnxruntime_quantizer MODEL DATA COUNT METHOD OUTPUT`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantType, quantize_static


class Samples(CalibrationDataReader):  # type: ignore[misc]
    """The first ``count`` samples of an .npz with ``input`` [S, …], one at a time."""

    def __init__(self, data: str, count: int) -> None:
        with np.load(data) as arrays:
            samples = arrays["input"][:count]
        assert len(samples) == count, f"{data} has {len(samples)} samples"
        self._feeds = iter([{"input": samples[index : index + 1]} for index in range(count)])

    def get_next(self) -> dict[str, Any] | None:
        """The next feed; None at the end."""
        return next(self._feeds, None)


class OneThread(onnxruntime.SessionOptions):  # type: ignore[misc]
    """Options of a session with one thread, which the quantizer has no option for."""

    def __init__(self) -> None:
        super().__init__()
        self.intra_op_num_threads = 1


def main(model: str, data: str, count: str, method: str, output: str, activations: str = "QInt8") -> None:
    """Quantize to 8-bit QDQ with calibration ``method``: MinMax, Entropy, Percentile."""
    onnxruntime.SessionOptions = OneThread
    quantize_static(
        model, output, Samples(data, int(count)), calibrate_method=CalibrationMethod[method],
        activation_type=QuantType[activations], weight_type=QuantType.QInt8,
    )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])

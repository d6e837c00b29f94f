"""``TensorQuantOverrides`` of onnxruntime's static quantizer, from the JSON form that `qdqtool encodings` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnxruntime.quantization import QuantType
from qdq_passes.errors import ModelError

#: Keys that the quantizer wants as arrays.
SCALE, ZERO_POINT = "scale", "zero_point"


def tensor_quant_overrides(document: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """What ``quantize_static(…, extra_options={"TensorQuantOverrides": …})`` takes.

    Args:
        document: tensor → objects per channel, as JSON; types as texts (``"QInt8"``).

    Raises:
        ModelError: a type that onnxruntime does not know.
    """
    return {name: [_channel(name, row) for row in rows] for name, rows in document.items()}


def _channel(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: value for key, value in row.items() if key != "qdqtool"}
    if "quant_type" in found:
        found["quant_type"] = _type(name, found["quant_type"])
    if SCALE in found:
        found[SCALE] = np.array(found[SCALE], np.float32)
    if ZERO_POINT in found:
        found[ZERO_POINT] = np.array(found[ZERO_POINT])
    if "convert" in found:
        found["convert"] = _channel(name, found["convert"])
        if "recv_nodes" in found["convert"]:
            found["convert"]["recv_nodes"] = set(found["convert"]["recv_nodes"])
    return found


def _type(name: str, text: str) -> QuantType:
    try:
        return QuantType[str(text)]
    except KeyError:
        known = ", ".join(QuantType.__members__)
        raise ModelError(f"onnxruntime knows no quant_type {text!r}", where=name, hint=f"it knows {known}") from None

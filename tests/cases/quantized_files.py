"""Quantized files of other tools: made by onnxruntime's own quantizer on the demo's net, and the committed samples."""

from __future__ import annotations

import functools
import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from tests.cases.cli_helpers import CALIB, DIGITS, SAMPLES

#: What `quantize_static` is asked for, by the name of the case.
STATIC: dict[str, dict[str, Any]] = {
    "u8s8": {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8},
    "s8s8_per_axis": {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8, "per_channel": True},
    "u8u8": {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QUInt8},
    "u16s8_per_axis": {"activation_type": QuantType.QUInt16, "weight_type": QuantType.QInt8, "per_channel": True},
    "s16s16": {"activation_type": QuantType.QInt16, "weight_type": QuantType.QInt16},
    "u16int4": {"activation_type": QuantType.QUInt16, "weight_type": QuantType.QInt4, "per_channel": True},
    "contrib_ops": {
        "activation_type": QuantType.QUInt16, "weight_type": QuantType.QInt8, "extra_options": {"UseQDQContribOps": True},
    },
    "pair_on_weights": {
        "activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8, "per_channel": True,
        "extra_options": {"AddQDQPairToWeight": True},
    },
    "dedicated": {
        "activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "extra_options": {"DedicatedQDQPair": True},
    },
    "qoperator": {
        "activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "quant_format": QuantFormat.QOperator,
    },
}  # fmt: skip
DYNAMIC = "dynamic"
QUARK = "quark_layout"
CASES = (*STATIC, DYNAMIC, QUARK)
#: Cases that the quantizer of older onnxruntimes cannot make.
NEWEST = {"u16int4"}


#: onnxruntime's quantizer would rather have its own pre-processing, and says so on the root logger.
logging.getLogger().addFilter(lambda record: "pre-processing" not in record.getMessage())


def marked(cases: Sequence[str]) -> list[Any]:
    """``cases`` as parameters; with the mark for those that need the newest onnxruntime."""
    return [pytest.param(case, marks=[pytest.mark.newest] if case in NEWEST else []) for case in cases]


class _Samples(CalibrationDataReader):  # type: ignore[misc]
    """The first calibration samples of the demo, one at a time."""

    def __init__(self) -> None:
        with np.load(CALIB) as data:
            self.feeds: Iterator[dict[str, Any]] = iter([{"input": image[None]} for image in data["input"][:8]])

    def get_next(self) -> dict[str, Any] | None:
        return next(self.feeds, None)


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="quantized-files-")


@functools.cache
def quantized_file(case: str) -> Path:
    """The file of ``case``, made once per process."""
    if case == QUARK:
        return SAMPLES / "quark_layout.onnx"
    path = Path(_folder().name) / f"{case}.onnx"
    if case == DYNAMIC:
        quantize_dynamic(DIGITS, path, weight_type=QuantType.QInt8)
    else:
        quantize_static(DIGITS, path, _Samples(), **{"calibrate_method": CalibrationMethod.MinMax, **STATIC[case]})
    return path


def feeds_of(path: Path) -> dict[str, Any]:
    """Two seeded samples for the one input of the file."""
    value = onnx.load(path).graph.input[0]
    shape = [d.dim_value or 2 for d in value.type.tensor_type.shape.dim]
    return {value.name: np.random.default_rng(5).normal(0, 1, shape).astype(np.float32)}


def counts(path: Path) -> dict[str, int]:
    """How often each operator occurs, with its domain."""
    found: dict[str, int] = {}
    for node in onnx.load(path).graph.node:
        key = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        found[key] = found.get(key, 0) + 1
    return found


def with_pairs_bypassed(path: Path, *, keep_weights: bool = False) -> onnx.ModelProto:
    """The model whose activations are not rounded, by the plainest surgery on protobufs: who reads a DequantizeLinear behind a
    QuantizeLinear reads what the QuantizeLinear reads. Stored integers stay behind their DequantizeLinear, and with
    ``keep_weights`` float weights behind their pair."""
    model = onnx.load(path)
    constants = {tensor.name for tensor in model.graph.initializer} if keep_weights else set()
    makers = {name: node for node in model.graph.node for name in node.output}
    source = {}
    for node in model.graph.node:
        maker = makers.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        if maker is not None and maker.op_type == "QuantizeLinear" and maker.input[0] not in constants:
            source[node.output[0]] = maker.input[0]
    ends = {value.name for value in model.graph.output}
    kept = []
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            while name in source:
                name = source[name]
            node.input[index] = name
        if node.output[0] in source and node.output[0] in ends:
            kept.append(onnx.helper.make_node("Identity", [source[node.output[0]]], list(node.output)))
        elif node.output[0] not in source:
            kept.append(node)
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model

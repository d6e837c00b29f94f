"""Quantized files of other tools: made by onnxruntime's own quantizer on the demo's net, and the committed samples."""

from __future__ import annotations

import functools
import logging
import tempfile
from collections.abc import Iterable, Sequence
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
from tests.cases.small_models import Array, parsed

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


class Samples(CalibrationDataReader):  # type: ignore[misc]
    """``feeds``, one at a time, as onnxruntime's quantizer reads them."""

    def __init__(self, feeds: Iterable[dict[str, Any]]) -> None:
        self.feeds = iter(feeds)

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
        with np.load(CALIB) as data:
            samples = Samples({"input": image[None]} for image in data["input"][:8])
        quantize_static(DIGITS, path, samples, **{"calibrate_method": CalibrationMethod.MinMax, **STATIC[case]})
    return path


#: A net that touches every operator onnxruntime's QOperator format knows; ``%d`` is the opset.
NET = """<ir_version: 8, opset_import: ["" : %d]>
g (float[1,3,8,8] x) => (float[1,3] y, int64[1,1,1,1] best) {
  [conv] c = Conv<pads: ints = [1,1,1,1]>(x, w, b)  [relu] r = Relu(c)
  [maxpool] m = MaxPool<kernel_shape: ints = [2,2], strides: ints = [2,2]>(r)
  [leaky] l = LeakyRelu<alpha: float = 0.1>(m)  [sigmoid] s = Sigmoid(l)  [add] a = Add(l, s)  [mul] u = Mul(a, s)
  [concat] d = Concat<axis: int = 1>(u, l, w2)  [pool] p = AveragePool<kernel_shape: ints = [2,2], strides: ints = [2,2]>(d)
  [resize] z = Resize<mode: string = "nearest">(p, "", twice)  [trans] t = Transpose<perm: ints = [0,2,3,1]>(z)
  [pad] q = Pad(t, pads)  [argmax] e = ArgMax<axis: int = 1>(p)  [highest] best = ReduceMax(e)
  [split] s1, s2 = Split<axis: int = 3>(q, sizes)  [join] j = Concat<axis: int = 3>(s1, s2)
  [back] t2 = Transpose<perm: ints = [0,3,1,2]>(j)  [gap] g1 = GlobalAveragePool(t2)  [flatten] f = Flatten(g1)
  [gemm] g2 = Gemm<transB: int = 1>(f, gw, gb)  [mm] m1 = MatMul(g2, mw)  [softmax] y0 = Softmax<axis: int = -1>(m1)
  [where] y1 = Where(cond, y0, m1)  [reshape] y2 = Reshape(y1, shape)  [unsqueeze] y3 = Unsqueeze(y2, zero)
  [squeeze] y4 = Squeeze(y3, zero)  [gather] y = Gather<axis: int = 1>(y4, picks)
}"""

#: A net with what onnxruntime's dynamic quantization knows.
DYNAMIC_NET = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x, int64[2] ids, float[1,2,5,5] im, float[4,2,3] seq)
  => (float[2,4] y, float[1,3,3,3] z, float[4,1,2,5] h, float[2,2] k) {
  [emb] e = Gather(table, ids)  [add] a = Add(x, e)  [mm] m = MatMul(a, dw)  [bias] y = Add(m, db)
  [trans] t = Transpose<perm: ints = [1,0]>(y)  [square] k = MatMul(m, t)
  [conv] z = Conv(im, cw, cb)  [lstm] h, hn, cn = LSTM<hidden_size: int = 5>(seq, lw, lr, lb)
}"""


def net(text: str, seed: int = 0) -> onnx.ModelProto:
    """The model of a text, with the weights it reads, seeded, and all shapes inferred."""
    random = np.random.default_rng(seed)

    def floats(*shape: int) -> Array:
        return random.normal(0, 0.5, shape).astype(np.float32)

    weights: dict[str, Array] = {
        "w": floats(4, 3, 3, 3), "b": floats(4), "w2": floats(1, 2, 4, 4), "twice": np.array([1, 1, 2, 2], np.float32),
        "pads": np.array([0, 1, 0, 0, 0, 0, 1, 0]), "sizes": np.array([6, 4]), "gw": floats(6, 10), "gb": floats(6),
        "mw": floats(6, 5), "cond": np.array([[True, False, True, True, False]]), "shape": np.array([1, 5]),
        "zero": np.array([0]), "picks": np.array([0, 2, 4]), "table": floats(7, 3), "dw": floats(3, 4), "db": floats(4),
        "cw": floats(3, 2, 3, 3), "cb": floats(3), "lw": floats(1, 20, 3), "lr": floats(1, 20, 5), "lb": floats(1, 40),
    }  # fmt: skip
    read = {name for node in parsed(text).graph.node for name in node.input}
    return onnx.shape_inference.infer_shapes(parsed(text, {n: a for n, a in weights.items() if n in read}))


def quantized_static(path: Path, text: str = NET % 17, **options: Any) -> onnx.ModelProto:
    """The net of ``text`` in onnxruntime's QOperator format (or another ``quant_format``)."""
    chosen: dict[str, Any] = {
        "activation_type": QuantType.QUInt8,
        "weight_type": QuantType.QInt8,
        "quant_format": QuantFormat.QOperator,
    }
    chosen |= options
    random = np.random.default_rng(1)
    feeds = [{"x": random.normal(0, 1, (1, 3, 8, 8)).astype(np.float32)} for _ in range(4)]
    extra = {"ForceQuantizeNoInputCheck": True} | chosen.pop("extra_options", {})
    quantize_static(net(text), path, Samples(feeds), extra_options=extra, **chosen)
    return onnx.load(path)


def quantized_dynamic(path: Path, **options: Any) -> onnx.ModelProto:
    """`DYNAMIC_NET` after onnxruntime's dynamic quantization."""
    quantize_dynamic(net(DYNAMIC_NET), path, **options)
    return onnx.load(path)

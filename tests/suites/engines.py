"""Runs a serialized model: onnxruntime without graph optimization and with one thread, or onnx's reference evaluator.

Nothing of qdqtool is used here: the suite would not see a fault that its own oracle shares."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

Outputs = dict[str, Any]
Engine = Callable[[bytes, Mapping[str, Any]], Outputs]

#: Types that onnxruntime has and numpy has not: their bytes are copied in and out.
_RAW = {
    "tensor(bfloat16)": np.dtype(ml_dtypes.bfloat16),
    "tensor(float8e4m3fn)": np.dtype(ml_dtypes.float8_e4m3fn),
    "tensor(float8e4m3fnuz)": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "tensor(float8e5m2)": np.dtype(ml_dtypes.float8_e5m2),
    "tensor(float8e5m2fnuz)": np.dtype(ml_dtypes.float8_e5m2fnuz),
}
_ONNX_TYPE = {dtype: onnx.helper.np_dtype_to_tensor_dtype(dtype) for dtype in _RAW.values()}


def run_onnxruntime(model: bytes, feed: Mapping[str, Any]) -> Outputs:
    """Outputs by name in onnxruntime; raises what onnxruntime raises."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    onnxruntime.set_seed(1)  # Bernoulli, RandomNormal… without a seed attribute
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    types = {value.name: value.type for value in session.get_outputs()}
    if not any(t in _RAW for t in (*types.values(), *(value.type for value in session.get_inputs()))):
        return dict(zip(types, session.run(None, dict(feed)), strict=True))
    values = session.run_with_ort_values(list(types), {name: _to_ort_value(value) for name, value in feed.items()})
    return {name: _from_ort_value(value, types[name]) for name, value in zip(types, values, strict=True)}


def run_reference(model: bytes, feed: Mapping[str, Any]) -> Outputs:
    """Outputs by name in onnx.reference; raises what it raises."""
    evaluator = ReferenceEvaluator(onnx.ModelProto.FromString(model))
    seeded = functools.partial(
        np.random.RandomState, seed=1
    )  # random operators without a seed take one from the system
    with (
        np.errstate(all="ignore"),
        mock.patch.object(np.random, "RandomState", seeded),
    ):  # cases compute log(0) on purpose
        return dict(zip(evaluator.output_names, evaluator.run(None, dict(feed)), strict=True))


#: The engine for what onnxruntime has no kernel for.
REFERENCE = "onnx.reference"
ENGINES: dict[str, Engine] = {"onnxruntime": run_onnxruntime, REFERENCE: run_reference}


def _to_ort_value(value: Any) -> Any:
    make = onnxruntime.OrtValue
    if not isinstance(value, np.ndarray) or value.dtype not in _ONNX_TYPE:
        return make.ortvalue_from_numpy(np.ascontiguousarray(value))
    bits = np.ascontiguousarray(value).view(f"u{value.dtype.itemsize}")
    return make.ortvalue_from_numpy_with_onnx_type(bits, _ONNX_TYPE[value.dtype])


def _from_ort_value(value: Any, type_text: str) -> Any:
    dtype = _RAW.get(type_text)
    if dtype is None:
        return value.numpy()
    shape = tuple(value.shape())
    size = math.prod(shape) * dtype.itemsize
    return np.frombuffer(bytearray(ctypes.string_at(value.data_ptr(), size) if size else b""), dtype).reshape(shape)

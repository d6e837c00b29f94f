"""Random QDQ models of one normalization: widths, groups, parameters stored as integers or as floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from tests.npu.equality.random_units import Builder, Case

_TYPES: dict[str, Any] = {
    "int8": np.int8, "uint8": np.uint8, "int16": np.int16, "uint16": np.uint16, "int32": np.int32,
}  # fmt: skip


def _pair(b: Builder, value: ir.Value) -> ir.Value:
    """``value`` behind a pair of 8 or 16 bits."""
    name = b.choose("int8", "uint8", "int16", "uint16")
    kind = _TYPES[name]
    info = np.iinfo(kind)
    middle = (int(info.min) + int(info.max) + 1) // 2
    zero = middle if b.rng.random() < 0.4 else int(b.rng.integers(info.min, info.max + 1))
    wide = 256.0 if info.bits == 16 else 1.0
    s = b.constant(np.array(b.scale(-6, -3) / (1.0 if b.rng.random() < 0.2 else wide), np.float32))
    z = b.constant(np.array(zero, kind))
    return b.node("DequantizeLinear", [b.node("QuantizeLinear", [value, s, z]), s, z])


def _parameter(b: Builder, *shape: int, types: tuple[str, ...] = ("int8", "uint8", "int16", "uint16")) -> ir.Value:
    """A float constant, stored integers behind one scale, or a float constant behind a pair."""
    floats = (b.rng.standard_normal(shape) * 0.7 + 0.5).astype(np.float32)
    form = b.choose("float", "integers", "integers", "pair")
    if form == "float":
        return b.constant(floats)
    kind = _TYPES[b.choose(*types)]
    info = np.iinfo(kind)
    zero = 0 if info.bits == 32 or b.rng.random() < 0.5 else int(b.rng.integers(info.min, info.max + 1))
    s = b.constant(np.array(4.0 / 2.0**info.bits * b.rng.uniform(0.5, 1.0), np.float32))
    z = b.constant(np.array(zero, kind))
    if form == "pair" and info.bits < 32:
        return b.node("DequantizeLinear", [b.node("QuantizeLinear", [b.constant(floats), s, z]), s, z])
    data = b.rng.integers(info.min, int(info.max) + 1, shape).astype(kind)
    return b.node("DequantizeLinear", [b.constant(data), s, z] if info.bits < 32 else [b.constant(data), s])


def _data(b: Builder, *shape: int) -> ir.Value:
    """A pair on a graph input, about a mean that is not 0; now and then all of one value."""
    value = b.input(*shape, spread=0.0 if b.rng.random() < 0.1 else b.choose(0.3, 1.0, 4.0))
    b.feeds["x"] = (b.feeds["x"] + np.float32(b.choose(0.0, 0.7, -3.0))).astype(np.float32)
    return _pair(b, value)


def _shift(b: Builder, *shape: int) -> ir.Value:
    return _parameter(b, *shape, types=("int8", "uint8", "int16", "uint16", "int32"))


def layer_norm(b: Builder) -> ir.Model:
    """LayerNormalization over one axis or several, with a shift or without."""
    shape = b.choose((2, 5, 33), (1, 3, 4, 600), (7, 1))
    x = _data(b, *shape)
    axis = b.choose(-1, -1, 1)
    normalized = shape[axis:]
    given = b.choose(normalized, normalized[-1:], (1,))
    inputs = [x, _parameter(b, *given)]
    if b.rng.random() < 0.7:
        inputs.append(_shift(b, *b.choose(normalized, given)))
    attributes = {"axis": axis, "epsilon": b.choose(1e-5, 1e-3, 1e-12)}
    return b.model(_pair(b, b.node("LayerNormalization", inputs, attributes)))


def rms_norm(b: Builder) -> ir.Model:
    """RMSNormalization of opset 23, or the operator that onnxruntime had before."""
    shape = b.choose((2, 5, 48), (3, 1000), (1, 2, 6, 16))
    inputs = [_data(b, *shape), _parameter(b, *b.choose(shape[-1:], (1,)))]
    op = b.choose("RMSNormalization", "SimplifiedLayerNormalization")
    model = b.model(_pair(b, b.node(op, inputs, {"axis": -1, "epsilon": b.choose(1e-5, 1e-6)})))
    if op == "RMSNormalization":
        model.graph.opset_imports[""] = 23
    return model


def instance_norm(b: Builder) -> ir.Model:
    """InstanceNormalization of images and of rows."""
    x = _data(b, *b.choose((2, 3, 5, 7), (1, 3, 30), (1, 3, 24, 24), (1, 3, 96, 96)))
    return b.model(_pair(b, b.node("InstanceNormalization", [x, _parameter(b, 3), _shift(b, 3)], {"epsilon": 1e-4})))


def group_norm(b: Builder) -> ir.Model:
    """GroupNormalization with parameters per channel."""
    x = _data(b, *b.choose((2, 6, 5, 7), (1, 6, 300)))
    attributes = {"num_groups": b.choose(1, 2, 3, 6)}
    return b.model(_pair(b, b.node("GroupNormalization", [x, _parameter(b, 6), _shift(b, 6)], attributes)))


def group_norm_18(b: Builder) -> ir.Model:
    """GroupNormalization with parameters per group, as it was before opset 21; those had no 16 bits."""
    groups = b.choose(1, 2, 3, 6)
    s = b.constant(np.array(b.scale(), np.float32))
    z = b.constant(np.array(3, np.int8))
    x = b.node("DequantizeLinear", [b.node("QuantizeLinear", [b.input(2, 6, 5, 7), s, z]), s, z])
    gain, shift = (b.constant(b.rng.standard_normal(groups).astype(np.float32)) for _ in range(2))
    y = b.node("GroupNormalization", [x, gain, shift], {"num_groups": groups})
    model = b.model(b.node("DequantizeLinear", [b.node("QuantizeLinear", [y, s, z]), s, z]))
    model.graph.opset_imports[""] = 18
    return model


def lp_norm(b: Builder) -> ir.Model:
    """LpNormalization of rows."""
    x = _data(b, *b.choose((2, 5, 33), (4, 600)))
    return b.model(_pair(b, b.node("LpNormalization", [x], {"axis": -1, "p": 2})))


CASES: dict[str, Case] = {
    case.__name__: case for case in (layer_norm, rms_norm, instance_norm, group_norm, group_norm_18, lp_norm)
}

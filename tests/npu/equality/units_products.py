"""Random matrix products and convolutions of every width: 8 and 16 bits, weights of 4 bits, scales per channel and per block."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from tests.npu.equality.random_units import Array, Builder, Case

#: Name → type, least and largest integer.
TYPES: dict[str, tuple[Any, int, int]] = {
    "int4": (ml_dtypes.int4, -8, 7), "uint4": (ml_dtypes.uint4, 0, 15), "int8": (np.int8, -128, 127),
    "uint8": (np.uint8, 0, 255), "int16": (np.int16, -32768, 32767), "uint16": (np.uint16, 0, 65535),
}  # fmt: skip
DATA = ("int8", "uint8", "int16", "uint16")


def _zero_points(b: Builder, dtype: str, *shape: int) -> Array:
    kind, low, high = TYPES[dtype]
    if b.rng.random() < 0.4:
        return np.full(shape, (low + high + 1) // 2).astype(kind)
    return b.rng.integers(low, high + 1, shape).astype(kind)


def pair(b: Builder, value: ir.Value, dtype: str, scale: float) -> ir.Value:
    """``value`` behind a QDQ pair of ``dtype``."""
    s, z = b.constant(np.array(scale, np.float32)), b.constant(_zero_points(b, dtype))
    return b.node("DequantizeLinear", [b.node("QuantizeLinear", [value, s, z]), s, z])


def data(b: Builder, *shape: int, name: str = "x", dtype: str | None = None) -> tuple[ir.Value, float, str]:
    """Data that flow, their scale and type: about the whole range of the type."""
    dtype = dtype or b.choose(*DATA)
    scale = b.scale(-16, -11) if dtype.endswith("16") else b.scale(-7, -4)
    return pair(b, b.input(*shape, name=name), dtype, scale), scale, dtype


def result(b: Builder, value: ir.Value, spread: float) -> ir.Value:
    """``value``, which lies about ``spread`` around 0, stored in some type."""
    dtype = b.choose(*DATA)
    size = spread / (20000.0 if dtype.endswith("16") else 80.0)
    power = 2.0 ** np.round(np.log2(size))
    return pair(b, value, dtype, float(np.float32(power if b.pow2 else power * b.rng.uniform(0.71, 1.4))))


def weight(
    b: Builder, *shape: int, axis: int, dtype: str | None = None, block: int = 0
) -> tuple[ir.Value, Array, float]:
    """A constant weight, its scales, and about how large its numbers are: one scale, one per index of ``axis``, or one per
    ``block`` elements of it."""
    dtype = dtype or b.choose(*TYPES)
    kind, low, high = TYPES[dtype]
    low_power = {4: -4, 8: -8}.get(int(dtype.removeprefix("u").removeprefix("int")), -16)
    per_axis = not block and b.rng.random() < 0.6
    size = (shape[axis],) if per_axis else ()
    if block:
        size = tuple(-(-n // block) if i == axis % len(shape) else n for i, n in enumerate(shape))
    scales = np.array([b.scale(low_power, low_power + 2) for _ in range(int(np.prod(size)))], np.float32).reshape(size)
    zeros = _zero_points(b, dtype, *size)
    attributes = ({"axis": axis} if size else {}) | ({"block_size": block} if block else {})
    integers = b.constant(b.rng.integers(low, high + 1, shape).astype(kind))
    inputs: list[ir.Value | None] = [integers, b.constant(scales)]
    if np.asarray(zeros).astype(np.int64).any() or dtype.startswith("u") or b.rng.random() < 0.5:
        inputs.append(b.constant(zeros))
    return b.node("DequantizeLinear", inputs, attributes), scales, float(scales.mean() * (high - low) / 2)


def bias(b: Builder, channels: int, x_scale: float, scales: Array) -> ir.Value | None:
    """None, a float, int8 with a scale of its own, or int32 in units of the sum, or of half of them."""
    kind = b.choose("none", "float", "int8", "int32", "finer")
    if kind == "none":
        return None
    if kind == "float":
        return b.constant((b.rng.standard_normal(channels) * 0.1).astype(np.float32))
    if kind == "int8" or scales.ndim > 1:
        integers = b.rng.integers(-128, 128, channels).astype(np.int8)
        return b.node("DequantizeLinear", [b.constant(integers), b.constant(np.array(2.0**-9, np.float32))])
    steps = (np.float32(x_scale) * scales * np.float32(0.5 if kind == "finer" else 1)).astype(np.float32)
    integers = b.constant(b.rng.integers(-30000, 30000, channels).astype(np.int32))
    return b.node("DequantizeLinear", [integers, b.constant(steps)], {"axis": 0} if scales.size > 1 else {})


def activated(b: Builder, value: ir.Value, *slopes: str) -> ir.Value:
    """``value`` with an activation behind it, or without."""
    kind = b.choose("none", "none", "Relu", "Clip", *slopes)
    if kind == "Clip":
        return b.node("Clip", [value, b.constant(np.array(-0.5, np.float32)), b.constant(np.array(1.5, np.float32))])
    if kind == "LeakyRelu":
        return b.node(kind, [value], {"alpha": 26 / 256})
    return value if kind == "none" else b.node(kind, [value])


def wide_matmul(b: Builder) -> ir.Model:
    """MatMul of data and a constant weight, of all widths."""
    depth, columns = b.choose(1, 7, 64, 301), b.choose(1, 9, 16, 35)
    x, _, _ = data(b, *b.choose((5, depth), (2, 3, depth), (1, depth), (depth,), (19, depth)))
    w, _, size = weight(b, depth, columns, axis=1)
    return b.model(result(b, activated(b, b.node("MatMul", [x, w]), "LeakyRelu"), size * np.sqrt(depth)))


def wide_matmul_of_data(b: Builder) -> ir.Model:
    """MatMul of two tensors that flow, with batches that broadcast."""
    depth = b.choose(1, 5, 33, 150)
    left, right = b.choose(
        ((4, depth), (depth, 6)), ((2, 3, 5, depth), (2, 3, depth, 17)), ((3, 9, depth), (1, depth, 7)),
        ((1, 2, depth), (4, depth, 16)), ((depth,), (2, depth, 3)),
    )  # fmt: skip
    x, _, _ = data(b, *left)
    z, _, _ = data(b, *right, name="z")
    return b.model(result(b, activated(b, b.node("MatMul", [x, z])), 1.5 * np.sqrt(depth)))


def wide_gemm(b: Builder) -> ir.Model:
    """Gemm, either side transposed, with every kind of bias."""
    turned, flipped = b.choose(0, 0, 1), b.choose(0, 1)
    rows, depth, columns = b.choose(1, 6), b.choose(12, 65), b.choose(3, 16, 20)
    x, s, _ = data(b, *((depth, rows) if turned else (rows, depth)))
    shape = (columns, depth) if flipped else (depth, columns)
    w, scales, size = weight(b, *shape, axis=1 - flipped)
    y = b.node("Gemm", [x, w, bias(b, columns, s, scales)], {"transA": turned, "transB": flipped})
    return b.model(result(b, activated(b, y, "LeakyRelu"), size * np.sqrt(depth)))


def blocked_matmul(b: Builder) -> ir.Model:
    """MatMul and Gemm with a scale per block of the depth; the last block may be shorter, blocks may be odd."""
    block, depth = b.choose((32, 96), (16, 40), (7, 30), (32, 17), (256, 600), (1, 5))
    columns, flipped = b.choose(1, 12, 16, 33), b.choose(0, 1)
    x, s, _ = data(b, *b.choose((5, depth), (1, depth), (21, depth)))
    shape = (columns, depth) if flipped else (depth, columns)
    w, scales, size = weight(b, *shape, axis=flipped, dtype=b.choose("int4", "uint4", "int8", "uint8"), block=block)
    if flipped or b.rng.random() < 0.5:
        y = b.node("Gemm", [x, w, bias(b, columns, s, scales)], {"transB": flipped})
    else:
        y = b.node("MatMul", [x, w])
    return b.model(result(b, activated(b, y), size * np.sqrt(depth)))


def wide_conv(b: Builder) -> ir.Model:
    """Conv over one or two axes: grouped, depthwise, dilated, strided, padded unevenly."""
    groups, per_group, out = b.choose((1, 3, 5), (2, 4, 3), (6, 1, 1), (1, 20, 17))
    kernel, stride, dilation = b.choose((1, 1), (3, 3), (3, 1)), b.choose(1, 2), b.choose(1, 1, 2)
    pads = [int(p) for p in b.rng.integers(0, 3, 4)]
    x, s, _ = data(b, b.choose(1, 2), groups * per_group, b.choose(7, 9), b.choose(8, 13))
    w, scales, size = weight(b, groups * out, per_group, *kernel, axis=0)
    attributes = {"group": groups, "strides": [stride] * 2, "dilations": [dilation] * 2, "pads": pads}
    y = b.node("Conv", [x, w, bias(b, groups * out, s, scales)], attributes)
    return b.model(result(b, activated(b, y, "LeakyRelu"), size * np.sqrt(per_group * np.prod(kernel))))


def wide_conv_transpose(b: Builder) -> ir.Model:
    """ConvTranspose with groups, strides, pads and output padding."""
    groups, stride = b.choose(1, 2), b.choose(1, 2)
    x, s, _ = data(b, 1, 4 * groups, 5, 6)
    w, scales, size = weight(b, 4 * groups, 3, 3, 2, axis=1)
    scales = np.tile(scales, groups) if scales.size > 1 else scales
    attributes = {"group": groups, "strides": [stride] * 2, "pads": [1, 0, 0, 1], "output_padding": [stride - 1, 0]}
    y = b.node("ConvTranspose", [x, w, bias(b, 3 * groups, s, scales)], attributes)
    return b.model(result(b, y, size * np.sqrt(24)))


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (wide_matmul, wide_matmul_of_data, wide_gemm, blocked_matmul, wide_conv, wide_conv_transpose)
}

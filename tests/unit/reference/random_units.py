"""Random units of every operator that an NPU computes, seeded: shapes, attributes, zero points, granularities, weights, biases, tails.

onnxruntime is exact here. Its float32 holds every whole number of steps below 2^24, and any power of two of them:

    sum       |x − z| ≤ 255 and |w − z| ≤ 255, so n taps make at most n·65025 steps: 18 taps 1.2·10^6 of a Conv, 8 taps 0.6·10^6
    bias      as large as the sum at most; a finer one makes steps 8 (Conv) or 2 (Gemm) times as many: below 2^24
    slope     a power of two behind a Conv; 13/128 or 3/8 behind 8 taps, 13·2·0.6·10^6 < 2^24 steps
    mean      acc / count is rounded once. A tie is a number of float32, hence exact; else it lies at least 1/(16·count) from one, while
              the rounding is below 2^11·2^-25. Counts are at most 81 here, 400 over all axes
    factor    63/64 of a mean whose count is a power of two: exact"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from qdq_passes.numerics.encoding import Encoding, integer_range

from tests.cases.qdq_units import Array, Unit, pow2


def scaled_by(encoding: Encoding, factor: float, random: np.random.Generator) -> Encoding:
    """An encoding like `pow2` with ``factor`` times the scale of ``encoding``."""
    return Encoding.per_tensor(
        pow2(random).dtype, encoding.scale[0] * factor, pow2(random, dtype="int8").zero_point[0] % 128
    )


Random = np.random.Generator


def sizes(random: Random, low: int, high: int, count: int) -> list[int]:
    """``count`` numbers from ``low`` to ``high``."""
    return [int(v) for v in random.integers(low, high + 1, count)]


def integers(random: Random, shape: tuple[int, ...], encoding: Encoding) -> Array:
    """Any integers of the type of ``encoding``."""
    low, high = integer_range(encoding.dtype, symmetric=False)
    return random.integers(low, high + 1, shape)


def along(random: Random, count: int, axis: int) -> Encoding:
    """A weight's encoding: per-tensor, or with ``count`` scales and zero points along ``axis``."""
    if random.integers(2):
        return pow2(random)
    each = [pow2(random, low=-7, high=-3, dtype="int8") for _ in range(count)]
    return Encoding(
        dtype=ir.DataType.INT8,
        scale=tuple(e.scale[0] for e in each),
        zero_point=tuple(e.zero_point[0] for e in each),
        shape=(count,),
        axis=axis,
    )


def weight(unit: Unit, shape: tuple[int, ...], encoding: Encoding) -> str:
    """Stored integers, or floats with a pair."""
    random = unit.random
    return unit.stored(integers(random, shape, encoding), encoding, pair=bool(random.integers(2)))


def bias(unit: Unit, count: int, product: Array, *, finest: int) -> list[str]:
    """No bias, floats, int32 in units of the sum, or int8 with a scale of 2^-``finest`` to 2^4 of the largest ``product``."""
    random, kind = unit.random, unit.random.integers(5)
    steps = np.broadcast_to(product, count)
    if kind == 0:
        return []
    if kind == 1:
        return [unit.constant((random.integers(-500, 500, count) * steps).astype(np.float32))]
    if kind == 2:
        one = product.size == 1
        encoding = Encoding(
            dtype=ir.DataType.INT32,
            scale=tuple(product.tolist()),
            zero_point=(0,) * product.size,
            shape=() if one else (count,),
            axis=None if one else 0,
        )
        return [unit.stored(random.integers(-1000, 1000, count), encoding)]
    finer = 2.0 ** int(random.integers(-finest, 5))
    encoding = Encoding.per_tensor(ir.DataType.INT8, float(steps.max() * finer), int(random.integers(-9, 9)))
    return [weight(unit, (count,), encoding)]


def tail(
    unit: Unit, value: str, output: Encoding, *, slopes: tuple[float, ...] = (), channels: int = 0, rank: int = 0
) -> str:
    """Nothing, a Relu, a Clip to numbers that ``output`` has, a LeakyRelu or PRelu with one of ``slopes``."""
    random, kind = unit.random, unit.random.integers(6)
    if kind == 1:
        return unit.node("Relu", [value])
    if kind == 2:
        bounds = np.sort(random.integers(-100, 100, 2)) * output.scale[0]
        return unit.node("Clip", [value, *(unit.constant(np.float32(b)) for b in bounds)])
    if kind == 3 and slopes:
        return unit.node("LeakyRelu", [value], alpha=float(random.choice(slopes)))
    if kind == 4 and slopes:
        return unit.node("PRelu", [value, unit.constant(np.float32(random.choice(slopes)))])
    if kind == 5 and slopes and channels:
        shape = [channels, *[1] * (rank - 2)]
        return unit.node(
            "PRelu", [value, unit.constant(random.choice(slopes, channels).astype(np.float32).reshape(shape))]
        )
    return value


POWERS, FRACTIONS = (0.25, -0.5, 0.0, 0.125), (13 / 128, 3 / 8, -0.375, 0.0)


def convolution(random: Random) -> Unit:
    """Conv with one or two spatial axes: groups, strides, dilations, padding."""
    unit, x_grid, rank = Unit(random), pow2(random), int(random.integers(1, 3))
    group, inner, per_group = int(random.choice([1, 1, 2, 3])), *sizes(random, 1, 2, 2)
    count, kernel = group * per_group, sizes(random, 1, 3, rank)
    x = unit.activation([*sizes(random, 1, 2, 1), group * inner, *sizes(random, 5, 8, rank)], x_grid)
    w_grid = along(random, count, 0)
    attributes: dict[str, Any] = {"strides": sizes(random, 1, 2, rank), "group": group}
    if random.integers(3) == 0:
        attributes["auto_pad"] = str(random.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    else:
        attributes |= {"pads": sizes(random, 0, 2, 2 * rank), "dilations": sizes(random, 1, 2, rank)}
    w, product = weight(unit, (count, inner, *kernel), w_grid), np.array(w_grid.scale) * x_grid.scale[0]
    value = unit.node("Conv", [x, w, *bias(unit, count, product, finest=3)], **attributes)
    output = scaled_by(x_grid, max(w_grid.scale) * 2.0 ** int(random.integers(3, 9)), random)
    unit.store(tail(unit, value, output, slopes=POWERS, channels=count, rank=rank + 2), output)
    return unit


def transposed_convolution(random: Random) -> Unit:
    """ConvTranspose, with every way to say how large the output is."""
    unit, x_grid, rank = Unit(random), pow2(random), int(random.integers(1, 3))
    group, inner, per_group = int(random.choice([1, 1, 2])), *sizes(random, 1, 2, 2)
    count, kernel, strides = group * per_group, sizes(random, 1, 3, rank), sizes(random, 1, 3, rank)
    dilations, kind, data = sizes(random, 1, 2, rank), random.integers(4), sizes(random, 3, 5, rank)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    x = unit.activation([*sizes(random, 1, 2, 1), group * inner, *data], x_grid)
    w_grid = along(random, per_group, 1)
    attributes: dict[str, Any] = {"strides": strides, "group": group, "dilations": dilations}
    if kind == 0 and all(r >= s for r, s in zip(reach, strides, strict=True)):
        attributes["auto_pad"] = str(random.choice(["SAME_UPPER", "SAME_LOWER"]))
    elif kind == 1:
        attributes["output_padding"] = [min(s - 1, 1) for s in strides]
    elif kind == 2:
        full = [s * (n - 1) + r for s, n, r in zip(strides, data, reach, strict=True)]
        attributes["output_shape"] = [
            int(f - random.integers(0, min(r, f - 1) + 1)) for f, r in zip(full, reach, strict=True)
        ]
    else:
        attributes["pads"] = [int(random.integers(0, r)) for r in reach * 2]
    w = weight(unit, (group * inner, per_group, *kernel), w_grid)
    product = np.array(w_grid.scale) * x_grid.scale[0]
    product = np.tile(product, group) if product.size > 1 else product
    value = unit.node("ConvTranspose", [x, w, *bias(unit, count, product, finest=3)], **attributes)
    output = scaled_by(x_grid, max(w_grid.scale) * 2.0 ** int(random.integers(3, 9)), random)
    unit.store(tail(unit, value, output, slopes=POWERS, channels=count, rank=rank + 2), output)
    return unit


def gemm(random: Random) -> Unit:
    """Gemm, either side transposed."""
    unit, x_grid, (rows, inner, count) = Unit(random), pow2(random), sizes(random, 1, 8, 3)
    flipped, flips = (bool(v) for v in random.integers(0, 2, 2))
    x = unit.activation([inner, rows] if flipped else [rows, inner], x_grid)
    w_grid = along(random, count, 0 if flips else 1)
    w = weight(unit, (count, inner) if flips else (inner, count), w_grid)
    product = np.array(w_grid.scale) * x_grid.scale[0]
    value = unit.node("Gemm", [x, w, *bias(unit, count, product, finest=1)], transA=int(flipped), transB=int(flips))
    output = scaled_by(x_grid, max(w_grid.scale) * 2.0 ** int(random.integers(3, 9)), random)
    unit.store(tail(unit, value, output, slopes=FRACTIONS, channels=count, rank=2), output)
    return unit


def matmul(random: Random) -> Unit:
    """MatMul by a constant, from either side, or of two activations; with leading axes."""
    unit, grid, (rows, inner, count) = Unit(random), pow2(random), sizes(random, 1, 8, 3)
    leading, kind, other = sizes(random, 1, 2, int(random.integers(0, 3))), random.integers(3), pow2(random)
    if kind == 0:
        a, b = unit.activation([*leading, rows, inner], grid), unit.activation([inner, count], other)
    elif kind == 1:
        a, b = weight(unit, (rows, inner), grid), unit.activation([*leading, inner, count], other)
    else:
        other = along(random, count, 1)
        a, b = unit.activation([*leading, rows, inner], grid), weight(unit, (inner, count), other)
    output = scaled_by(grid, max(other.scale) * 2.0 ** int(random.integers(3, 9)), random)
    value = unit.node("MatMul", [a, b])
    unit.store(tail(unit, value, output, slopes=FRACTIONS, channels=count, rank=2), output)
    return unit


def elementwise(random: Random) -> Unit:
    """Add, Sub, Mul: of two activations, or with a constant, broadcast."""
    op_type, unit = str(random.choice(["Add", "Sub", "Mul"])), Unit(random)
    a, b, kind = pow2(random, low=-4), pow2(random, low=-4), random.integers(3)
    shape = [2, 3, *sizes(random, 1, 4, 1), 4]
    values = [unit.activation(shape, a)]
    if kind == 0:
        values.append(weight(unit, (3, 1, 1), b))
    else:
        values.append(unit.activation(shape if kind == 1 else [1, 1, 1, 4], b))
    exponent = int(random.integers(2, 7))
    factor = b.scale[0] * 2.0**exponent if op_type == "Mul" else max(1, b.scale[0] / a.scale[0]) * 2.0 ** (exponent - 3)
    output = scaled_by(a, factor, random)
    value = unit.node(op_type, values if random.integers(2) else values[::-1])
    unit.store(tail(unit, value, output), output)
    return unit


def mean(random: Random) -> Unit:
    """AveragePool, GlobalAveragePool, ReduceMean; with the DPU's factor where the count is a power of two."""
    unit, x_grid, rank = Unit(random), pow2(random), int(random.integers(1, 3))
    x = unit.activation([2, 2, *sizes(random, 4, 9, rank)], x_grid)
    op_type = str(random.choice(["AveragePool", "AveragePool", "GlobalAveragePool", "ReduceMean"]))
    kernel, factored = sizes(random, 1, 3, rank), False
    if op_type == "AveragePool" and random.integers(3) == 0:
        kernel, factored = [int(v) for v in random.choice([1, 2, 4], rank)], True
        value = unit.node(op_type, [x], kernel_shape=kernel, strides=sizes(random, 1, 3, rank))
    elif op_type == "AveragePool":
        value = unit.node(op_type, [x], kernel_shape=kernel, **_window(random, kernel))
    elif op_type == "ReduceMean":
        axes = random.permutation(rank + 2)[: random.integers(0, rank + 3)] - int(random.choice([0, rank + 2]))
        given = [unit.constant(axes.astype(np.int64))] if axes.size else []
        value = unit.node(op_type, [x, *given], keepdims=int(random.integers(2)))
    else:
        value = unit.node(op_type, [x])
    if factored:
        value = unit.node("Mul", [value, unit.constant(np.float32(63 / 64))])
    output = scaled_by(x_grid, 2.0 ** int(random.integers(-3, 1)), random)
    unit.store(tail(unit, value, output), output)
    return unit


def mean_of_padding(random: Random) -> Unit:
    """AveragePool that counts padding, of which onnxruntime 1.23.2 counts too little behind the data."""
    unit, x_grid, rank = Unit(random), pow2(random), int(random.integers(1, 3))
    x, kernel = unit.activation([2, 2, *sizes(random, 4, 9, rank)], x_grid), sizes(random, 1, 3, rank)
    attributes = {"kernel_shape": kernel, "count_include_pad": 1, **_window(random, kernel)}
    unit.store(
        unit.node("AveragePool", [x], **attributes), scaled_by(x_grid, 2.0 ** int(random.integers(-3, 1)), random)
    )
    return unit


def _window(random: Random, kernel: list[int], *, dilated: bool = False) -> dict[str, Any]:
    """Strides and padding of a pool. SAME has strides that leave nothing out: for others onnxruntime pads by less than 0."""
    if random.integers(4) == 0:
        auto = str(random.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
        return {"auto_pad": auto, "strides": [int(random.integers(1, k + 1)) for k in kernel]}
    pads = [int(random.integers(0, k)) for k in kernel * 2]
    found: dict[str, Any] = {
        "strides": sizes(random, 1, 3, len(kernel)),
        "pads": pads,
        "ceil_mode": int(random.integers(2)),
    }
    return found | ({"dilations": [int(random.integers(1, 3)) if k < 3 else 1 for k in kernel]} if dilated else {})


def max_pool(random: Random) -> Unit:
    """MaxPool and GlobalMaxPool, stored with their own encoding or another."""
    unit, x_grid, rank = Unit(random), pow2(random), int(random.integers(1, 3))
    x, kernel = unit.activation([2, 2, *sizes(random, 4, 9, rank)], x_grid), sizes(random, 1, 3, rank)
    if random.integers(4) == 0:
        value = unit.node("GlobalMaxPool", [x])
    else:
        value = unit.node("MaxPool", [x], kernel_shape=kernel, **_window(random, kernel, dilated=True))
    unit.store(value, other_grid(x_grid, random))
    return unit


def other_grid(encoding: Encoding, random: Random) -> Encoding:
    """``encoding``, or one whose scale is ½ to 2 of it."""
    if random.integers(2):
        return encoding
    return scaled_by(dataclasses.replace(encoding), 2.0 ** int(random.integers(-1, 2)), random)


#: Units whose result is a sum; onnxruntime's float is the exact result of all but ``mean``.
SUMS: Mapping[str, Callable[[Random], Unit]] = {
    "Conv": convolution, "ConvTranspose": transposed_convolution, "Gemm": gemm, "MatMul": matmul, "elementwise": elementwise,
}  # fmt: skip
POOLS: Mapping[str, Callable[[Random], Unit]] = {"mean": mean, "max": max_pool}

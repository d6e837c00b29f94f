"""Random QDQ models of one operator: shapes, scales, zero points, granularities and weight styles drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

Array = npt.NDArray[Any]

_TYPES = {"int8": (np.int8, -128, 127), "uint8": (np.uint8, 0, 255), "int32": (np.int32, -(1 << 20), 1 << 20)}


@dataclass
class Builder:
    """A QDQ model under construction.

    Args:
        rng: where everything random comes from.
        pow2: scales are powers of two.
        symmetric: zero points are the middle of their type.
        types: storage types that activations may have.
    """

    rng: np.random.Generator
    pow2: bool = True
    symmetric: bool = False
    types: tuple[str, ...] = ("int8", "uint8")
    nodes: list[ir.Node] = field(default_factory=list)
    inputs: list[ir.Value] = field(default_factory=list)
    initializers: list[ir.Value] = field(default_factory=list)
    feeds: dict[str, Array] = field(default_factory=dict)
    _count: int = 0

    def choose(self, *options: Any) -> Any:
        """One of ``options``."""
        return options[int(self.rng.integers(len(options)))]

    def scale(self, low: int = -7, high: int = -2) -> float:
        """A scale about 2^low to 2^high."""
        power = 2.0 ** int(self.rng.integers(low, high + 1))
        return float(np.float32(power if self.pow2 else power * self.rng.uniform(0.71, 1.4)))

    def zero_point(self, dtype: str) -> int:
        """A zero point of an activation."""
        _, low, high = _TYPES[dtype]
        middle = 0 if dtype == "int8" else 128
        return middle if self.symmetric or self.rng.random() < 0.3 else int(self.rng.integers(low, high + 1))

    def constant(self, data: Array) -> ir.Value:
        """An initializer."""
        self._count += 1
        value = ir.val(f"c{self._count}", const_value=ir.tensor(data, name=f"c{self._count}"))
        self.initializers.append(value)
        return value

    def node(
        self, op_type: str, inputs: list[ir.Value | None], attributes: dict[str, Any] | None = None, outputs: int = 1
    ) -> Any:
        """A node; its output, or the list of them when there are several."""
        self._count += 1
        node = ir.node(op_type, inputs, attributes or {}, num_outputs=outputs, name=f"{op_type}_{self._count}")
        for index, value in enumerate(node.outputs):
            value.name = f"{node.name}_{index}"
        self.nodes.append(node)
        return node.outputs[0] if outputs == 1 else list(node.outputs)

    def quantized(self, value: ir.Value, *, scale: float | None = None, dtype: str | None = None) -> ir.Value:
        """``value`` behind a QDQ pair."""
        dtype = dtype or self.choose(*self.types)
        kind = _TYPES[dtype][0]
        s = self.constant(np.array(self.scale() if scale is None else scale, np.float32))
        z = self.constant(np.array(self.zero_point(dtype), kind))
        return self.node("DequantizeLinear", [self.node("QuantizeLinear", [value, s, z]), s, z])

    def input(self, *shape: int, name: str = "x", spread: float = 1.0, symbolic: str | None = None) -> ir.Value:
        """A float graph input with random data, before its pair."""
        data = (self.rng.standard_normal(shape) * spread).astype(np.float32)
        dims: list[int | str] = list(shape)
        if symbolic is not None:
            dims[0] = symbolic
        value = ir.Value(name=name, shape=ir.Shape(dims), type=ir.TensorType(ir.DataType.FLOAT))
        self.inputs.append(value)
        self.feeds[name] = data
        return value

    def weight(self, *shape: int, axis: int | None = None, spread: float = 0.3) -> tuple[ir.Value, Array]:
        """A quantized weight and its scales; ``axis`` may be taken for scales per channel, stored as integers or as a pair."""
        dtype = self.choose("int8", "int8", "uint8")
        kind, low, high = _TYPES[dtype]
        per_axis = axis is not None and self.rng.random() < 0.5
        count = shape[axis] if per_axis and axis is not None else 1
        scales = np.array([self.scale(-8, -5) for _ in range(count)], np.float32)
        zeros = np.full(count, 0 if dtype == "int8" else 128, kind)
        if not self.symmetric and self.rng.random() < 0.3:
            zeros = self.rng.integers(low // 4, high // 4 + 1, count).astype(kind)
        data = self.rng.integers(low, high + 1, shape).astype(kind)
        attributes = {"axis": axis} if per_axis else {}
        s = self.constant(scales if per_axis else scales.reshape(()))
        z = self.constant(zeros if per_axis else zeros.reshape(()))
        if self.rng.random() < 0.5:
            return self.node("DequantizeLinear", [self.constant(data), s, z], attributes), scales
        floats = (self.rng.standard_normal(shape) * spread).astype(np.float32)
        q = self.node("QuantizeLinear", [self.constant(floats), s, z], attributes)
        return self.node("DequantizeLinear", [q, s, z], attributes), scales

    def bias(self, channels: int, x_scale: float, w_scales: Array) -> ir.Value | None:
        """No bias, one of int32 at s_x·s_w, or one of int8 with a scale of its own."""
        kind = self.choose("none", "int32", "int8")
        if kind == "none":
            return None
        if kind == "int8":
            s = self.constant(np.array(self.scale(-7, -3), np.float32))
            return self.node(
                "DequantizeLinear",
                [
                    self.constant(self.rng.integers(-128, 128, channels).astype(np.int8)),
                    s,
                    self.constant(np.array(0, np.int8)),
                ],
            )
        scales = (np.float32(x_scale) * w_scales).astype(np.float32)
        data = self.rng.integers(-3000, 3000, channels).astype(np.int32)
        if scales.size > 1:
            return self.node("DequantizeLinear", [self.constant(data), self.constant(scales)], {"axis": 0})
        return self.node("DequantizeLinear", [self.constant(data), self.constant(scales.reshape(()))])

    def model(self, *outputs: ir.Value) -> ir.Model:
        """The model, with the types onnx infers."""
        for value in outputs:
            value.type = ir.TensorType(ir.DataType.FLOAT)
        graph = ir.Graph(
            self.inputs,
            list(outputs),
            nodes=self.nodes,
            initializers=self.initializers,
            opset_imports={"": 21},
            name="unit",
        )
        return ir.Model(graph, ir_version=10)


Case = Callable[[Builder], ir.Model]


def _x(b: Builder, *shape: int, name: str = "x", spread: float = 1.0) -> tuple[ir.Value, float]:
    scale = b.scale()
    return b.quantized(b.input(*shape, name=name, spread=spread), scale=scale), scale


def _activated(b: Builder, value: ir.Value, channels: int) -> ir.Value:
    """``value``, perhaps with a fused activation behind it."""
    kind = b.choose("none", "none", "Relu", "Clip", "LeakyRelu", "PRelu")
    if kind == "Relu":
        return b.node("Relu", [value])
    if kind == "Clip":
        return b.node("Clip", [value, b.constant(np.array(0, np.float32)), b.constant(np.array(6, np.float32))])
    if kind == "LeakyRelu":
        return b.node("LeakyRelu", [value], {"alpha": 26 / 256})
    if kind == "PRelu":
        slopes = (b.rng.integers(1, 64, (channels, 1, 1)) / 64).astype(np.float32)
        return b.node("PRelu", [value, b.constant(slopes)])
    return value


def conv(b: Builder) -> ir.Model:
    """Conv: grouped, depthwise, dilated, strided, padded unevenly, with and without a fused activation."""
    groups = b.choose(1, 1, 2, 4)
    per_group, out_per_group = b.choose(1, 2, 3, 8), b.choose(1, 2, 5)
    kernel, stride, dilation = b.choose((1, 1), (3, 3), (3, 1), (5, 2)), b.choose(1, 2), b.choose(1, 1, 2)
    pads = [int(p) for p in b.rng.integers(0, 3, 4)]
    channels = groups * out_per_group
    x, s = _x(b, b.choose(1, 2), groups * per_group, b.choose(9, 12, 17), b.choose(10, 13))
    w, ws = b.weight(channels, per_group, *kernel, axis=0)
    attributes = {
        "group": groups,
        "strides": [stride] * 2,
        "dilations": [dilation] * 2,
        "pads": pads,
        "kernel_shape": list(kernel),
    }
    y = b.node("Conv", [x, w, b.bias(channels, s, ws)], attributes)
    return b.model(b.quantized(_activated(b, y, channels)))


def conv_1d(b: Builder) -> ir.Model:
    """Conv over one axis."""
    x, s = _x(b, 1, 6, 40)
    w, ws = b.weight(7, 6, 3, axis=0)
    y = b.node(
        "Conv", [x, w, b.bias(7, s, ws)], {"strides": [b.choose(1, 2)], "pads": [1, 0], "dilations": [b.choose(1, 2)]}
    )
    return b.model(b.quantized(y))


def conv_transpose(b: Builder) -> ir.Model:
    """ConvTranspose with groups, strides, pads and output padding."""
    groups, stride = b.choose(1, 2), b.choose(1, 2)
    x, s = _x(b, 1, 4 * groups, 5, 6)
    w, ws = b.weight(4 * groups, 3, 3, 2, axis=1 if groups == 1 else None)
    attributes = {"group": groups, "strides": [stride] * 2, "pads": [1, 0, 0, 1], "output_padding": [stride - 1, 0]}
    y = b.node("ConvTranspose", [x, w, b.bias(3 * groups, s, ws)], attributes)
    return b.model(b.quantized(y))


def gemm(b: Builder) -> ir.Model:
    """Gemm with a transposed weight or not."""
    transposed = b.choose(0, 1)
    x, s = _x(b, b.choose(1, 5), 33)
    w, ws = b.weight(*((12, 33) if transposed else (33, 12)), axis=1 - transposed)
    y = b.node("Gemm", [x, w, b.bias(12, s, ws)], {"transB": transposed})
    return b.model(b.quantized(_relu(b, y)))


def _relu(b: Builder, value: ir.Value) -> ir.Value:
    return b.node("Relu", [value]) if b.rng.random() < 0.5 else value


def matmul(b: Builder) -> ir.Model:
    """MatMul with a constant, batched or not, or of two activations."""
    if b.rng.random() < 0.3:
        x, _ = _x(b, 2, 3, 5, 16)
        z, _ = _x(b, 2, 3, 16, 7, name="z")
        return b.model(b.quantized(b.node("MatMul", [x, z])))
    x, _ = _x(b, *b.choose((5, 20), (2, 3, 20), (1, 20)))
    w, _ = b.weight(20, 9, axis=1)
    return b.model(b.quantized(_relu(b, b.node("MatMul", [x, w]))))


def elementwise(b: Builder) -> ir.Model:
    """Add, Sub and Mul of two activations or with a constant, with broadcasting."""
    op = b.choose("Add", "Sub", "Mul")
    x, _ = _x(b, 2, 3, 8, 5)
    if b.rng.random() < 0.4:
        z, _ = b.weight(*b.choose((3, 1, 1), (5,), (1,), (8, 5)))
    else:
        z, _ = _x(b, *b.choose((2, 3, 8, 5), (3, 8, 1), (1, 1, 1, 5)), name="z")
    operands = [x, z] if b.rng.random() < 0.7 else [z, x]
    return b.model(b.quantized(_relu(b, b.node(op, operands))))


FUNCTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Relu", {}), ("LeakyRelu", {"alpha": 0.1}), ("Sigmoid", {}), ("HardSigmoid", {}), ("HardSwish", {}), ("Tanh", {}),
    ("Elu", {}), ("Neg", {}), ("Abs", {}), ("Exp", {}), ("Softplus", {}), ("Erf", {}), ("Gelu", {}), ("Floor", {}),
)  # fmt: skip


def function(b: Builder) -> ir.Model:
    """A function of one value."""
    op, attributes = b.choose(*FUNCTIONS)
    x, _ = _x(b, 2, 3, 4, 5, spread=2.0)
    return b.model(b.quantized(b.node(op, [x], attributes)))


def clip(b: Builder) -> ir.Model:
    """A Clip alone."""
    x, _ = _x(b, 2, 3, 4, 5, spread=4.0)
    bounds = [b.constant(np.array(v, np.float32)) for v in (b.choose(0.0, -1.5), b.choose(6.0, 1.0))]
    return b.model(b.quantized(b.node("Clip", [x, *bounds])))


def prelu(b: Builder) -> ir.Model:
    """PRelu with a slope per channel, quantized."""
    x, _ = _x(b, 1, 6, 5, 4)
    slope, _ = b.weight(*b.choose((6, 1, 1), (1,)))
    return b.model(b.quantized(b.node("PRelu", [x, slope])))


def requantization(b: Builder) -> ir.Model:
    """A pair behind a pair."""
    x, _ = _x(b, 3, 40)
    return b.model(b.quantized(b.node("Relu", [b.quantized(x)])))


def pool(b: Builder) -> ir.Model:
    """Average and maximum, over windows and over everything."""
    x, s = _x(b, 1, 4, 9, 11)
    op = b.choose("AveragePool", "MaxPool", "GlobalAveragePool", "ReduceMean")
    if op == "GlobalAveragePool":
        return b.model(b.quantized(b.node(op, [x])))
    if op == "ReduceMean":
        axes = b.choose([2, 3], [-1], [1], [0, 2])
        y = b.node(op, [x, b.constant(np.array(axes, np.int64))], {"keepdims": b.choose(0, 1)})
        return b.model(b.quantized(y))
    kernel = b.choose(2, 3)
    pads = [int(p) for p in b.rng.integers(0, kernel, 4)]
    attributes: dict[str, Any] = {
        "kernel_shape": [kernel] * 2, "strides": [b.choose(1, 2)] * 2, "pads": pads, "ceil_mode": b.choose(0, 1),
    }  # fmt: skip
    if op == "AveragePool":
        attributes["count_include_pad"] = b.choose(0, 1)
    return b.model(b.quantized(b.node(op, [x], attributes), scale=b.choose(s, b.scale())))


def softmax(b: Builder) -> ir.Model:
    """Softmax along some axis."""
    x, _ = _x(b, 2, 6, 7, spread=3.0)
    return b.model(b.quantized(b.node("Softmax", [x], {"axis": b.choose(-1, 1)}), scale=2.0**-8))


def movement(b: Builder) -> ir.Model:
    """What moves integers, with the same encoding behind it or another."""
    x, s = _x(b, 1, 4, 6, 8)
    ints = lambda *v: b.constant(np.array(v, np.int64))  # noqa: E731
    kind = b.choose(
        "Transpose", "Reshape", "Flatten", "Unsqueeze", "Squeeze", "Slice", "Split", "Concat", "Pad", "Gather", "Resize",
        "DepthToSpace", "SpaceToDepth",
    )  # fmt: skip
    made = {
        "Transpose": lambda: b.node(kind, [x], {"perm": b.choose([0, 2, 3, 1], [3, 1, 0, 2])}),
        "Reshape": lambda: b.node(kind, [x, ints(0, -1, 4)]),
        "Flatten": lambda: b.node(kind, [x], {"axis": 2}),
        "Unsqueeze": lambda: b.node(kind, [x, ints(1)]),
        "Squeeze": lambda: b.node(kind, [x, ints(0)]),
        "Slice": lambda: b.node(kind, [x, ints(1, 7), ints(4, 0), ints(1, 3), ints(1, -2)]),
        "Pad": lambda: b.node(
            kind, [x, ints(0, 0, 1, 2, 0, 1, 0, 1)], {"mode": b.choose("constant", "reflect", "edge")}
        ),
        "Gather": lambda: b.node(kind, [x, ints(3, 0, -1)], {"axis": 1}),
        "Resize": lambda: b.node(
            kind,
            [x, None, b.constant(np.array([1, 1, 2, b.choose(2, 1.5)], np.float32))],
            {
                "mode": "nearest",
                "coordinate_transformation_mode": b.choose("asymmetric", "half_pixel"),
                "nearest_mode": "floor",
            },
        ),
        "DepthToSpace": lambda: b.node(kind, [x], {"blocksize": 2, "mode": b.choose("DCR", "CRD")}),
        "SpaceToDepth": lambda: b.node(kind, [x], {"blocksize": 2}),
    }
    if kind == "Split":
        first, second = b.node(kind, [x, ints(1, 3)], {"axis": 1}, outputs=2)
        return b.model(b.quantized(first, scale=s), b.quantized(second))
    if kind == "Concat":
        z, _ = _x(b, 1, 2, 6, 8, name="z")
        return b.model(b.quantized(b.node(kind, [x, z], {"axis": 1})))
    return b.model(b.quantized(made[kind](), scale=b.choose(s, b.scale())))


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        conv, conv_1d, conv_transpose, gemm, matmul, elementwise, function, clip, prelu, requantization, pool, softmax, movement,
    )
}  # fmt: skip

"""Random models of one operator that an NPU computes in floating point: behind pairs, in floats of 32 and 16 bits, or both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tests.npu.equality.random_units import Builder

Array = npt.NDArray[Any]
Case = Callable[["FloatBuilder"], ir.Model]


class FloatBuilder(Builder):
    """A `Builder` whose data may stay floats, of ``dtype``."""

    dtype: ir.DataType = ir.DataType.FLOAT

    def quantized(self, value: ir.Value, *, scale: float | None = None, dtype: str | None = None) -> ir.Value:
        """``value`` behind a pair of 8 or 16 bits."""
        kind = np.dtype(dtype or self.choose("int8", "uint8", "int16", "uint16"))
        s = self.constant(np.array(self.scale() if scale is None else scale, np.float32))
        limits = np.iinfo(kind)
        z = self.constant(np.array(self.rng.integers(limits.min, limits.max + 1), kind))
        return self.node("DequantizeLinear", [self.node("QuantizeLinear", [value, s, z]), s, z])

    def data(self, *shape: int, name: str = "x", spread: float = 1.0) -> ir.Value:
        """Data that flow: a float input, or integers of 8 or 16 bits behind a pair."""
        value = self.input(*shape, name=name, spread=spread)
        if self.dtype != ir.DataType.FLOAT:
            value.type = ir.TensorType(self.dtype)
            self.feeds[name] = self.feeds[name].astype(self.dtype.numpy())
            return value
        return self.quantized(value) if self.rng.random() < 0.6 else value

    def parameter(self, *shape: int, spread: float = 0.3) -> ir.Value:
        """A constant: a float, or a quantized weight."""
        if self.dtype == ir.DataType.FLOAT and self.rng.random() < 0.5:
            return self.weight(*shape, axis=0)[0]
        return self.number((self.rng.standard_normal(shape) * spread).astype(np.float32))

    def number(self, data: Array) -> ir.Value:
        """A constant in the type of the data."""
        return self.constant(np.asarray(data).astype(self.dtype.numpy()))

    def ints(self, *numbers: int) -> ir.Value:
        """An int64 constant."""
        return self.constant(np.array(numbers, np.int64))

    def done(self, *values: ir.Value) -> ir.Model:
        """The model; outputs may be quantized, or stay floats, and may be read by both."""
        written = []
        for value in values:
            if self.dtype != ir.DataType.FLOAT or self.rng.random() < 0.4:
                written.append(value)
            else:
                written.append(self.quantized(value))
                if self.rng.random() < 0.3:
                    written.append(value)
        made = self.model(*written)
        for value in written:
            value.type = ir.TensorType(self.dtype)
        return made


def matmul(b: FloatBuilder) -> ir.Model:
    """MatMul of two activations, or with a constant; one, two and more dimensions, broadcast."""
    if b.rng.random() < 0.4:
        shapes = b.choose(
            ((2, 3, 5, 16), (2, 3, 16, 7)), ((2, 1, 5, 16), (3, 16, 20)), ((5, 16), (2, 16, 33)), ((16,), (16, 4))
        )
        return b.done(b.node("MatMul", [b.data(*shapes[0]), b.data(*shapes[1], name="z")]))
    x = b.data(*b.choose((5, 20), (2, 3, 20), (1, 20), (2, 2, 37, 20)))
    return b.done(b.node("MatMul", [x, b.parameter(*b.choose((20, 9), (20, 40), (20,)))]))


def gemm(b: FloatBuilder) -> ir.Model:
    """Gemm, transposed on each side or not, with factors and a bias of some shape."""
    first, second = b.choose(0, 1), b.choose(0, 1)
    x = b.data(*((33, 5) if first else (5, 33)))
    w = b.parameter(*((12, 33) if second else (33, 12)))
    bias = b.choose(None, (12,), (1, 12), (5, 1), (5, 12), ())
    inputs = [x, w] if bias is None else [x, w, b.number(b.rng.standard_normal(bias))]
    attributes = {"transA": first, "transB": second, "alpha": b.choose(1.0, 0.3), "beta": b.choose(1.0, 2.5)}
    return b.done(b.node("Relu", [b.node("Gemm", inputs, attributes)]))


def conv(b: FloatBuilder) -> ir.Model:
    """Conv and ConvTranspose over one or two axes: groups, strides, pads, dilations."""
    group, axes = b.choose(1, 2), b.choose(1, 2)
    transposed = b.rng.random() < 0.4
    kernel = [b.choose(1, 3, 2) for _ in range(axes)]
    attributes: dict[str, Any] = {
        "group": group, "kernel_shape": kernel, "strides": [b.choose(1, 2) for _ in kernel],
        "pads": [int(p) for p in b.rng.integers(0, 2, 2 * axes)], "dilations": [b.choose(1, 2) for _ in kernel],
    }  # fmt: skip
    x = b.data(b.choose(1, 2), 4 * group, *(b.choose(7, 10) for _ in kernel))
    if transposed:
        attributes["output_padding"] = [s - 1 for s in attributes["strides"]]
    w = b.parameter(*((4 * group, 3) if transposed else (3 * group, 4)), *kernel)
    bias = [] if b.rng.random() < 0.5 else [b.number(b.rng.standard_normal(3 * group))]
    return b.done(b.node("ConvTranspose" if transposed else "Conv", [x, w, *bias], attributes))


def elementwise(b: FloatBuilder) -> ir.Model:
    """Two tensors, broadcast; Min, Max and Sum of three."""
    op = b.choose("Add", "Sub", "Mul", "Div", "Min", "Max", "Sum", "PRelu")
    x = b.data(2, 3, 8, 5)
    z = (
        b.data(*b.choose((2, 3, 8, 5), (3, 8, 1), (1, 1, 1, 5)), name="z")
        if b.rng.random() < 0.5
        else b.parameter(3, 1, 1)
    )
    more = [b.parameter(5)] if op in ("Min", "Max", "Sum") and b.rng.random() < 0.5 else []
    return b.done(b.node(op, [x, z, *more]))


#: Functions with a formula in every precision.
PLAIN: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Relu", {}), ("LeakyRelu", {"alpha": 0.1}), ("HardSigmoid", {"alpha": 0.17}), ("HardSwish", {}), ("Neg", {}), ("Abs", {}),
    ("Exp", {}), ("Floor", {}), ("Ceil", {}), ("Round", {}), ("Sqrt", {}), ("Reciprocal", {}), ("Softsign", {}), ("Sign", {}),
    ("ThresholdedRelu", {"alpha": 0.4}),
)  # fmt: skip
#: Functions that are tables of the half precisions.
TABLES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Sigmoid", {}), ("Tanh", {}), ("Erf", {}), ("Gelu", {}), ("Elu", {}), ("Softplus", {}), ("Sin", {}), ("Log", {}),
)  # fmt: skip


def plain(b: FloatBuilder) -> ir.Model:
    """A function with a formula."""
    op, attributes = b.choose(*PLAIN)
    return b.done(b.node(op, [b.data(2, 3, 4, 50, spread=3.0)], attributes))


def clip(b: FloatBuilder) -> ir.Model:
    """Clip, with one bound or two."""
    bounds = [b.number(np.array(v)) for v in (b.choose(0.0, -1.5), b.choose(6.0, 1.0))]
    return b.done(b.node("Clip", [b.data(2, 3, 40, spread=4.0), *bounds[: b.choose(1, 2)]]))


def power(b: FloatBuilder) -> ir.Model:
    """Pow by the exponents that have a formula."""
    x = b.node("Abs", [b.data(3, 70)])
    return b.done(b.node("Pow", [x, b.number(np.array(b.choose(2.0, 3.0, 0.5, -0.5)))]))


def table(b: FloatBuilder) -> ir.Model:
    """A function that is a table."""
    op, attributes = b.choose(*TABLES)
    return b.done(b.node(op, [b.data(2, 300, spread=3.0)], attributes))


def reduction(b: FloatBuilder) -> ir.Model:
    """Reductions over some axes, or all."""
    op = b.choose(
        "ReduceSum",
        "ReduceMean",
        "ReduceMax",
        "ReduceMin",
        "ReduceSumSquare",
        "ReduceL1",
        "ReduceL2",
        "GlobalAveragePool",
    )
    x = b.data(2, 3, 6, 7)
    if op == "GlobalAveragePool":
        return b.done(b.node(b.choose(op, "GlobalMaxPool"), [x]))
    axes = b.choose([2, 3], [-1], [1], [0, 2], None)
    return b.done(b.node(op, [x] if axes is None else [x, b.ints(*axes)], {"keepdims": b.choose(0, 1)}))


def pool(b: FloatBuilder) -> ir.Model:
    """AveragePool and MaxPool."""
    kernel = b.choose(2, 3)
    op = b.choose("AveragePool", "MaxPool")
    attributes: dict[str, Any] = {
        "kernel_shape": [kernel] * 2, "strides": [b.choose(1, 2)] * 2, "pads": [int(p) for p in b.rng.integers(0, kernel, 4)],
        "ceil_mode": b.choose(0, 1),
    }  # fmt: skip
    if op == "AveragePool":
        attributes["count_include_pad"] = b.choose(0, 1)
    return b.done(b.node(op, [b.data(1, 4, 9, 11)], attributes))


def softmax(b: FloatBuilder) -> ir.Model:
    """Softmax along some axis."""
    return b.done(b.node("Softmax", [b.data(2, 6, 40, spread=3.0)], {"axis": b.choose(-1, 1)}))


def norm(b: FloatBuilder) -> ir.Model:
    """Normalizations of all kinds."""
    op = b.choose("LayerNormalization", "RMSNormalization", "InstanceNormalization", "GroupNormalization", "BatchNormalization",
                  "LpNormalization")  # fmt: skip
    x = b.data(2, 6, 5, 4)
    if op in ("LayerNormalization", "RMSNormalization"):
        axis = b.choose(-1, 2)
        shape = (4,) if axis == -1 else b.choose((5, 4), (4,))
        scale, bias = b.parameter(*shape), b.parameter(*shape)
        return b.done(b.node(op, [x, scale, bias] if op == "LayerNormalization" else [x, scale], {"axis": axis}))
    if op == "LpNormalization":
        return b.done(b.node(op, [x], {"axis": b.choose(-1, 1), "p": b.choose(1, 2)}))
    parameters = [b.parameter(6), b.parameter(6)]
    if op == "BatchNormalization":
        parameters += [b.number(b.rng.standard_normal(6)), b.number(b.rng.uniform(0.1, 2, 6))]
    return b.done(b.node(op, [x, *parameters], {"num_groups": 3} if op == "GroupNormalization" else {}))


def choice(b: FloatBuilder) -> ir.Model:
    """Where, with a condition that is known, or computed by a comparison."""
    x, z = b.data(2, 3, 40), b.data(3, 40, name="z")
    if b.rng.random() < 0.5:
        condition = b.constant(b.rng.random((2, 1, 40)) < 0.5)
    else:
        condition = b.node(b.choose("Greater", "Less", "LessOrEqual", "GreaterOrEqual", "Equal"), [x, z])
        condition.type = ir.TensorType(ir.DataType.BOOL)
    return b.done(b.node("Where", [condition, x, z]))


def movement(b: FloatBuilder) -> ir.Model:
    """What moves floats."""
    x = b.data(1, 4, 6, 8)
    kind = b.choose(
        "Transpose", "Reshape", "Flatten", "Unsqueeze", "Slice", "Split", "Concat", "Pad", "Gather", "Resize", "DepthToSpace",
        "SpaceToDepth", "Identity", "Expand", "Embedding",
    )  # fmt: skip
    made: dict[str, Callable[[], Any]] = {
        "Transpose": lambda: b.node(kind, [x], {"perm": [0, 2, 3, 1]}),
        "Reshape": lambda: b.node(kind, [x, b.ints(0, -1, 4)]),
        "Flatten": lambda: b.node(kind, [x], {"axis": 2}),
        "Unsqueeze": lambda: b.node(kind, [x, b.ints(1)]),
        "Slice": lambda: b.node(kind, [x, b.ints(1, 7), b.ints(4, 0), b.ints(1, 3), b.ints(1, -2)]),
        "Split": lambda: b.node(kind, [x, b.ints(1, 3)], {"axis": 1}, outputs=2),
        "Concat": lambda: b.node(kind, [x, b.parameter(1, 2, 6, 8), b.node("Relu", [x])], {"axis": 1}),
        "Pad": lambda: b.node(kind, [x, b.ints(0, 0, 1, 2, 0, 1, 0, 1)], {"mode": b.choose("constant", "reflect", "edge")}),
        "Gather": lambda: b.node(kind, [x, b.ints(3, 0, -1)], {"axis": 1}),
        "Resize": lambda: b.node(
            kind, [x, None, b.constant(np.array([1, 1, 2, 1.5], np.float32))],
            {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        ),
        "DepthToSpace": lambda: b.node(kind, [x], {"blocksize": 2, "mode": b.choose("DCR", "CRD")}),
        "SpaceToDepth": lambda: b.node(kind, [x], {"blocksize": 2}),
        "Identity": lambda: b.node(kind, [x]),
        "Expand": lambda: b.node(kind, [x, b.ints(3, 4, 6, 8)]),
        "Embedding": lambda: b.node("Add", [x, b.node("Gather", [b.parameter(20, 8), b.ints(3, 19, 0, 7, 7, 2)])]),
    }  # fmt: skip
    found = made[kind]()
    return b.done(*(found if isinstance(found, list) else [found]))


def rotary(b: FloatBuilder) -> ir.Model:
    """RotaryEmbedding with positions or without, of heads apart or in one axis, interleaved or not, of a part of them."""
    flat, size = b.rng.random() < 0.5, b.choose(8, 12)
    half, attributes = b.choose(4, size // 2), {"interleaved": b.choose(0, 1)}
    if flat:
        attributes["num_heads"] = 3
    if 2 * half < size:
        attributes["rotary_embedding_dim"] = 2 * half
    x = b.data(*((2, 5, 3 * size) if flat else (2, 3, 5, size)))
    if b.rng.random() < 0.5:
        positions = b.constant(b.rng.integers(0, 20, (2, 5)))
        return b.done(
            b.node("RotaryEmbedding", [x, b.parameter(20, half), b.parameter(20, half), positions], attributes)
        )
    return b.done(b.node("RotaryEmbedding", [x, b.parameter(2, 5, half), b.parameter(2, 5, half)], attributes))


def contrib(b: FloatBuilder) -> ir.Model:
    """Operators of com.microsoft."""
    x, skip, parameters = b.data(2, 5, 24), b.data(2, 5, 24, name="z"), [b.parameter(24) for _ in range(3)]
    op = b.choose("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "RotaryEmbedding")
    if op == "RotaryEmbedding":
        positions = b.choose(b.rng.integers(0, 9, (2, 5)), np.array([3], np.int64))
        inputs = [x, b.constant(positions), b.parameter(9, 4), b.parameter(9, 4)]
        made = b.node(op, inputs, {"interleaved": b.choose(0, 1), "num_heads": 3})
    elif op == "SkipLayerNormalization":
        made = b.node(op, [x, skip, *parameters[: b.choose(1, 2, 3)]], {"epsilon": 1e-5})
    else:
        made = b.node(op, [x, skip, *parameters[: b.choose(1, 2)]], {"epsilon": 1e-5})
    b.nodes[-1].domain = "com.microsoft"
    model = b.done(made)
    model.graph.opset_imports["com.microsoft"] = 1
    return model


def resize(b: FloatBuilder) -> ir.Model:
    """Resize that interpolates along one axis or two."""
    attributes = {
        "mode": b.choose("linear", "linear", "cubic"),
        "coordinate_transformation_mode": b.choose("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"),
    }
    scales = b.choose([1, 1, 2, 1.5], [1, 1, 1, 3], [1, 1, 0.5, 0.75])
    return b.done(b.node("Resize", [b.data(1, 3, 6, 8), None, b.constant(np.array(scales, np.float32))], attributes))


def chain(b: FloatBuilder) -> ir.Model:
    """Several operators in a row: floats that stay on the NPU, one of them read twice."""
    x = b.data(2, 5, 24)
    w = b.parameter(24, 24)
    hidden = b.node("MatMul", [x, w])
    found = b.node("Add", [b.node("Mul", [hidden, b.node("Softmax", [hidden])]), x])
    return b.done(b.node("LayerNormalization", [found, b.parameter(24)]), hidden)


#: Name → case.
CASES: dict[str, Case] = {
    "matmul": matmul, "gemm": gemm, "conv": conv, "elementwise": elementwise, "plain": plain, "clip": clip, "power": power,
    "table": table, "reduction": reduction, "pool": pool, "softmax": softmax, "norm": norm, "choice": choice,
    "movement": movement, "rotary": rotary, "contrib": contrib, "resize": resize, "chain": chain,
}  # fmt: skip

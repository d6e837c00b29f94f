"""Random QDQ models of operators on elements in 8 and 16 bits, mixed: sums, products, quotients, extremes, functions, reductions,
softmax, pools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from tests.npu.equality.random_units import FUNCTIONS, Array, Builder

_RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535)}
_NARROW, _WIDE = ("int8", "uint8"), ("int16", "uint16")


@dataclass
class WideBuilder(Builder):
    """A `Builder` whose activations have 8 or 16 bits."""

    types: tuple[str, ...] = ("int8", "uint8", "int16", "uint16")

    def zero_point(self, dtype: str) -> int:
        """A zero point of an activation: the middle, or anywhere."""
        low, high = _RANGES[dtype]
        return (low + high + 1) // 2 if self.rng.random() < 0.4 else int(self.rng.integers(low, high + 1))

    def quantized(self, value: ir.Value, *, scale: float | None = None, dtype: str | None = None) -> ir.Value:
        """``value`` behind a QDQ pair, of a finer scale where it has 16 bits."""
        dtype = dtype or self.choose(*self.types)
        step = (self.scale() if dtype in _NARROW else self.scale(-15, -9)) if scale is None else scale
        s = self.constant(np.array(step, np.float32))
        z = self.constant(np.array(self.zero_point(dtype), dtype))
        return self.node("DequantizeLinear", [self.node("QuantizeLinear", [value, s, z]), s, z])

    def x(self, *shape: int, name: str = "x", spread: float = 1.0, dtype: str | None = None) -> ir.Value:
        """An input behind its pair."""
        return self.quantized(self.input(*shape, name=name, spread=spread), dtype=dtype)

    def stored(self, *shape: int) -> ir.Value:
        """A constant of random integers behind a DequantizeLinear."""
        dtype = self.choose(*self.types)
        low, high = _RANGES[dtype]
        data: Array = self.rng.integers(low, high + 1, shape).astype(dtype)
        s = self.constant(np.array(self.scale() if dtype in _NARROW else self.scale(-15, -9), np.float32))
        return self.node(
            "DequantizeLinear", [self.constant(data), s, self.constant(np.array(self.zero_point(dtype), dtype))]
        )


Case = Callable[[WideBuilder], ir.Model]


def _written(b: WideBuilder, value: ir.Value, *, wide: bool = False, scale: float | None = None) -> ir.Model:
    """The model that stores ``value``, in 16 bits where ``wide``."""
    return b.model(b.quantized(value, dtype=b.choose(*_WIDE) if wide else None, scale=scale))


def _two(b: WideBuilder) -> list[ir.Value]:
    """Two operands to be broadcast, in either order; one of them may be a constant."""
    x = b.x(2, 3, 8, 45)
    if b.rng.random() < 0.4:
        z = b.stored(*b.choose((3, 1, 1), (45,), (1,), (8, 45)))
    else:
        z = b.x(*b.choose((2, 3, 8, 45), (3, 8, 1), (1, 1, 1, 45)), name="z")
    return [x, z] if b.rng.random() < 0.7 else [z, x]


def requantization(b: WideBuilder) -> ir.Model:
    """Pairs behind a pair, one of two in a row of 16 bits; a table before them, so that there is an operator."""
    first, second = b.choose((_NARROW, _WIDE), (_WIDE, _NARROW), (_WIDE, _WIDE))
    x = b.quantized(b.node("Relu", [b.x(3, 700, spread=3.0, dtype="int8")]), dtype=b.choose(*first))
    return b.model(b.quantized(b.quantized(x, dtype=b.choose(*second)), dtype=b.choose(*_WIDE)))


def elementwise(b: WideBuilder) -> ir.Model:
    """Add, Sub and Mul of any widths, with broadcasting, perhaps with a Relu."""
    y = b.node(b.choose("Add", "Sub", "Mul"), _two(b))
    return _written(b, b.node("Relu", [y]) if b.rng.random() < 0.3 else y)


def squares(b: WideBuilder) -> ir.Model:
    """A product whose factors and multiplier leave 62 bits: unsigned operands far from their zero points."""
    x = b.quantized(b.input(4, 600), dtype="uint16", scale=b.scale(-16, -14))
    return _written(b, b.node("Mul", [x, x]), wide=True)


def quotient(b: WideBuilder) -> ir.Model:
    """Div of any widths; zeros occur on both sides."""
    return _written(b, b.node("Div", _two(b)))


def zeros(b: WideBuilder) -> ir.Model:
    """Div of coarse numbers: many 0, by many 0."""
    x, z = (b.quantized(b.input(2, 300, name=name), scale=0.7) for name in ("x", "z"))
    return _written(b, b.node("Div", [x, z]), scale=0.25)


def extreme(b: WideBuilder) -> ir.Model:
    """Min and Max of one tensor to three, in encodings of their own."""
    operands = [*_two(b), b.x(8, 45, name="w")][: b.choose(1, 2, 2, 3, 3)]
    return _written(b, b.node(b.choose("Min", "Max"), operands))


def power(b: WideBuilder) -> ir.Model:
    """Pow by a constant number behind a DequantizeLinear, and its inverse."""
    number, kind = b.choose(4, 1, 6, -1), b.choose("int8", "int16")
    zero = b.constant(np.array(0, kind))
    exponent = b.node(
        "DequantizeLinear", [b.constant(np.array(number, kind)), b.constant(np.array(0.5, np.float32)), zero]
    )
    x = b.x(3, 500)
    return _written(b, b.node("Pow", [exponent, x] if b.rng.random() < 0.3 else [x, exponent]), wide=True)


def clip(b: WideBuilder) -> ir.Model:
    """A Clip alone, and behind a sum."""
    bounds = [b.constant(np.array(v, np.float32)) for v in (b.choose(0.0, -0.5), b.choose(0.75, 1.0))]
    y = b.node("Add", _two(b)) if b.rng.random() < 0.5 else b.x(3, 500)
    return _written(b, b.node("Clip", [y, *bounds]), wide=True)


def function(b: WideBuilder) -> ir.Model:
    """A function of one value, of which it or the result has 16 bits."""
    op, attributes = b.choose(*FUNCTIONS, ("Sqrt", {}), ("Reciprocal", {}), ("Sin", {}), ("Cos", {}), ("Log", {}))
    x = b.x(3, 700, spread=3.0, dtype=b.choose("int8", "uint8", "int16", "uint16", "uint16"))
    return _written(b, b.node(op, [x], attributes), wide=True)


def narrowing(b: WideBuilder) -> ir.Model:
    """A function of a 16-bit value, stored in 8 bits."""
    op, attributes = b.choose(*FUNCTIONS)
    return b.model(b.quantized(b.node(op, [b.x(3, 700, dtype=b.choose(*_WIDE))], attributes), dtype=b.choose(*_NARROW)))


def slopes(b: WideBuilder) -> ir.Model:
    """PRelu with a slope per channel of 8 bits, stored in 16; one slope on 16 bits."""
    per_channel = b.rng.random() < 0.6
    x = b.x(2, 6, 5, 44, dtype=b.choose(*(_NARROW if per_channel else _WIDE)))
    slope, _ = b.weight(*((6, 1, 1) if per_channel else (1,)))
    return _written(b, b.node("PRelu", [x, slope]), wide=True)


def softmax(b: WideBuilder) -> ir.Model:
    """Softmax along some axis, of widths of its own on both sides."""
    scale, dtype = b.choose((-8, b.choose(*_NARROW)), (-16, b.choose(*_WIDE)))
    y = b.node("Softmax", [b.x(2, 6, 70, spread=3.0)], {"axis": b.choose(-1, 1)})
    return b.model(b.quantized(y, dtype=dtype, scale=2.0**scale))


def pool(b: WideBuilder) -> ir.Model:
    """Average and maximum over windows and over everything, in 16 bits or between widths."""
    x = b.x(1, 4, 9, 11)
    op = b.choose("AveragePool", "MaxPool", "MaxPool", "GlobalAveragePool", "GlobalMaxPool")
    kernel = b.choose(2, 3)
    attributes: dict[str, Any] = {
        "kernel_shape": [kernel] * 2, "strides": [b.choose(1, 2)] * 2, "dilations": [b.choose(1, 1, 2)] * 2,
        "pads": [int(p) for p in b.rng.integers(0, kernel, 4)], "ceil_mode": b.choose(0, 1),
    }  # fmt: skip
    if op == "AveragePool":
        attributes |= {"count_include_pad": b.choose(0, 1), "dilations": [1, 1]}
    return _written(b, b.node(op, [x], {} if op.startswith("Global") else attributes))


def lines(b: WideBuilder) -> ir.Model:
    """Pools over one axis."""
    attributes = {"kernel_shape": [3], "strides": [b.choose(1, 2)], "pads": [1, 0]}
    return _written(b, b.node(b.choose("AveragePool", "MaxPool"), [b.x(2, 5, 40)], attributes))


def reduction(b: WideBuilder) -> ir.Model:
    """Means, sums and extremes over any axes."""
    op = b.choose("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")
    axes = b.choose([2, 3], [-1], [1], [0, 2], [0, 1, 2, 3], [1, 3])
    inputs = [b.x(2, 3, 4, 300), b.constant(np.array(axes, np.int64))]
    return _written(
        b, b.node(op, inputs, {"keepdims": b.choose(0, 1)}), scale=b.scale(-10, -2) if b.rng.random() < 0.5 else None
    )


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        requantization, elementwise, squares, quotient, zeros, extreme, power, clip, function, narrowing, slopes, softmax,
        pool, lines, reduction,
    )
}  # fmt: skip

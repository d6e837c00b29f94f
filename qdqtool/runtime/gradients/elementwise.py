"""Gradients of what is computed number by number, and of pairs of quantization.

A pair is passed straight through: rounding counts as the identity where it does not saturate (the straight-through estimator,
arXiv 1308.3432)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.uses import constant_array, dtype_of, float_of, integer_of, label, text_of
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import integer_range

from qdqtool.runtime.gradients.backward import Backward, rule

Given = Sequence[ir.Value | None]
#: dy/dx from x, y and the node.
Slope = Callable[[Backward, ir.Node, ir.Value, ir.Value], ir.Value]


def _first(given: Given) -> ir.Value:
    assert given[0] is not None
    return given[0]


def _input(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    return value


@rule("Identity", "Dropout")
def _identity(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    return given[0]


@rule("Cast", "CastLike")
def _cast(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    if index or b.dtype(node.inputs[0]) != np.float32:
        return None
    return b("Cast", given[0], to=int(ir.DataType.FLOAT))


@rule("Add", "Sum")
def _sum(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    return b.fitted(_first(given), b.shape(node.outputs[0]), b.shape(node.inputs[index]))


@rule("Sub")
def _difference(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    gradient = b("Neg", given[0]) if index else _first(given)
    return b.fitted(gradient, b.shape(node.outputs[0]), b.shape(node.inputs[index]))


@rule("Mul")
def _product(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    return b.fitted(b("Mul", given[0], node.inputs[1 - index]), b.shape(node.outputs[0]), b.shape(node.inputs[index]))


@rule("Div")
def _quotient(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    gradient = b("Div", given[0], node.inputs[1])
    if index:
        gradient = b("Neg", b("Mul", gradient, node.outputs[0]))
    return b.fitted(gradient, b.shape(node.outputs[0]), b.shape(node.inputs[index]))


@rule("Max", "Min")
def _extreme(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    chosen = [b("Cast", b("Equal", value, node.outputs[0]), to=int(ir.DataType.FLOAT)) for value in node.inputs]
    gradient = b("Div", b("Mul", _first(given), chosen[index]), b("Sum", *chosen))  # several may be as large
    return b.fitted(gradient, b.shape(node.outputs[0]), b.shape(node.inputs[index]))


@rule("Where")
def _chosen(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    if index == 0:
        return None
    condition = _input(node, 0) if index == 1 else b("Not", node.inputs[0])
    return b.fitted(b.where(condition, _first(given)), b.shape(node.outputs[0]), b.shape(node.inputs[index]))


@rule("Pow")
def _power(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    exponent = constant_array(node.inputs[1])
    if index or exponent is None:
        raise UnsupportedError("no gradient of an exponent is known", where=label(node))
    lower = b.constant(np.asarray(exponent, np.float32) - 1)
    steep = b(
        "And", b("Equal", node.inputs[0], b.number(0.0)), b.constant(np.asarray(exponent) < 1)
    )  # infinite, or 0 times it
    slope = b("Mul", b("Pow", node.inputs[0], lower), b.constant(np.asarray(exponent, np.float32)))
    slope = b("Where", steep, b.number(0.0), slope)
    return b.fitted(b("Mul", given[0], slope), b.shape(node.outputs[0]), b.shape(node.inputs[0]))


@rule("PRelu")
def _prelu(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    if index:
        return None
    return b("Where", b("Less", node.inputs[0], b.number(0.0)), b("Mul", given[0], node.inputs[1]), given[0])


def _sloped(*operators: str) -> Callable[[Slope], Slope]:
    """Make a function the rule of operators of one operand, of which it gives the slope."""

    def register(slope: Slope) -> Slope:
        @rule(*operators)
        def _rule(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
            return None if index else b("Mul", given[0], slope(b, node, _input(node, 0), node.outputs[0]))

        return slope

    return register


def _indicator(b: Backward, condition: ir.Value, inside: float = 1.0, outside: float = 0.0) -> ir.Value:
    return b("Where", condition, b.number(inside), b.number(outside))


@_sloped("Neg")
def _neg(b: Backward, node: ir.Node, x: ir.Value, y: ir.Value) -> ir.Value:
    return b.number(-1.0)


@_sloped("Abs")
def _abs(b: Backward, node: ir.Node, x: ir.Value, y: ir.Value) -> ir.Value:
    return b("Sign", x)


@_sloped("Sqrt")
def _sqrt(b: Backward, node: ir.Node, x: ir.Value, y: ir.Value) -> ir.Value:
    return b("Where", b("Greater", y, b.number(0.0)), b("Div", b.number(0.5), y), b.number(0.0))


@_sloped("Reciprocal")
def _reciprocal(b: Backward, node: ir.Node, x: ir.Value, y: ir.Value) -> ir.Value:
    return b("Neg", b("Mul", y, y))


@_sloped("Exp")
def _exp(b: Backward, node: ir.Node, x: ir.Value, y: ir.Value) -> ir.Value:
    return y


@_sloped("Log")
def _log(b: Backward, node: ir.Node, x: ir.Value, y: ir.Value) -> ir.Value:
    return b("Reciprocal", x)


@_sloped("Sin")
def _sin(b: Backward, node: ir.Node, x: ir.Value, y: ir.Value) -> ir.Value:
    return b("Cos", x)


@_sloped("Cos")
def _cos(b: Backward, node: ir.Node, x: ir.Value, y: ir.Value) -> ir.Value:
    return b("Neg", b("Sin", x))


@_sloped("Erf")
def _erf(b: Backward, node: ir.Node, x: ir.Value, y: ir.Value) -> ir.Value:
    return b("Mul", b("Exp", b("Neg", b("Mul", x, x))), b.number(2 / math.sqrt(math.pi)))


@_sloped("Sigmoid")
def _sigmoid(b: Backward, node: ir.Node, x: ir.Value, y: ir.Value) -> ir.Value:
    return b("Mul", y, b("Sub", b.number(1.0), y))


@_sloped("Softplus")
def _softplus(b: Backward, node: ir.Node, x: ir.Value, y: ir.Value) -> ir.Value:
    return b("Sigmoid", x)


@_sloped("Tanh")
def _tanh(b: Backward, node: ir.Node, x: ir.Value, y: ir.Value) -> ir.Value:
    return b("Sub", b.number(1.0), b("Mul", y, y))


@_sloped("Relu")
def _relu(b: Backward, node: ir.Node, x: ir.Value, y: ir.Value) -> ir.Value:
    return _indicator(b, b("Greater", x, b.number(0.0)))


@_sloped("LeakyRelu")
def _leaky(b: Backward, node: ir.Node, x: ir.Value, y: ir.Value) -> ir.Value:
    return _indicator(b, b("Greater", x, b.number(0.0)), outside=float_of(node, "alpha", 0.01))


@_sloped("Elu")
def _elu(b: Backward, node: ir.Node, x: ir.Value, y: ir.Value) -> ir.Value:
    below = b("Add", y, b.number(float_of(node, "alpha", 1.0)))
    return b("Where", b("Greater", x, b.number(0.0)), b.number(1.0), below)


@_sloped("Clip")
def _clip(b: Backward, node: ir.Node, x: ir.Value, y: ir.Value) -> ir.Value:
    return _indicator(b, b("Equal", x, y))


@_sloped("HardSigmoid")
def _hard_sigmoid(b: Backward, node: ir.Node, x: ir.Value, y: ir.Value) -> ir.Value:
    inside = b("And", b("Greater", y, b.number(0.0)), b("Less", y, b.number(1.0)))
    return _indicator(b, inside, float_of(node, "alpha", 0.2))


@_sloped("HardSwish")
def _hard_swish(b: Backward, node: ir.Node, x: ir.Value, y: ir.Value) -> ir.Value:
    between = b("Add", b("Mul", x, b.number(1 / 3)), b.number(0.5))
    low = b("Where", b("Less", x, b.number(-3.0)), b.number(0.0), between)
    return b("Where", b("Greater", x, b.number(3.0)), b.number(1.0), low)


@_sloped("Swish")
def _swish(b: Backward, node: ir.Node, x: ir.Value, y: ir.Value) -> ir.Value:
    alpha = b.number(float_of(node, "alpha", 1.0))
    s = b("Sigmoid", b("Mul", alpha, x))
    return b("Add", s, b("Mul", b("Mul", alpha, y), b("Sub", b.number(1.0), s)))


@_sloped("Gelu", "com.microsoft::Gelu")
def _gelu(b: Backward, node: ir.Node, x: ir.Value, y: ir.Value) -> ir.Value:
    square = b("Mul", x, x)
    if text_of(node, "approximate", "none") == "tanh":
        c = math.sqrt(2 / math.pi)
        inner = b("Mul", b("Mul", x, b.number(c)), b("Add", b.number(1.0), b("Mul", square, b.number(0.044715))))
        t = b("Tanh", inner)
        turn = b("Mul", b("Add", b.number(1.0), b("Mul", square, b.number(3 * 0.044715))), b.number(c / 2))
        side = b("Mul", b("Mul", x, turn), b("Sub", b.number(1.0), b("Mul", t, t)))
        return b("Add", b("Mul", b("Add", t, b.number(1.0)), b.number(0.5)), side)
    half = b("Mul", b("Add", b("Erf", b("Mul", x, b.number(math.sqrt(0.5)))), b.number(1.0)), b.number(0.5))
    bell = b("Mul", b("Exp", b("Mul", square, b.number(-0.5))), b.number(1 / math.sqrt(2 * math.pi)))
    return b("Add", half, b("Mul", x, bell))


@rule("DequantizeLinear", "com.microsoft::DequantizeLinear")
def _dequantize(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    if index:
        return None
    scale, _ = _grid(b, node)
    return b("Mul", given[0], b.constant(scale))


@rule("QuantizeLinear", "com.microsoft::QuantizeLinear")
def _quantize(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    if index:
        return None
    scale, zero = _grid(b, node)
    dtype = ir.DataType(integer_of(node, "output_dtype", 0) or ir.DataType.UINT8)
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        dtype = dtype_of(node.inputs[2]) or dtype
    low, high = integer_range(dtype, symmetric=False)
    x, half = node.inputs[0], scale / 2
    inside = b(
        "And",
        b("GreaterOrEqual", x, b.constant((low - zero) * scale - half)),
        b("LessOrEqual", x, b.constant((high - zero) * scale + half)),
    )
    return b.where(inside, b("Div", given[0], b.constant(scale)))


def _grid(b: Backward, node: ir.Node) -> tuple[Array, Array]:
    """Scale and zero point of a node, laid out along its data."""
    scale = constant_array(node.inputs[1])
    if scale is None or integer_of(node, "block_size", 0):
        raise UnsupportedError("the scale is computed, or one of blocks", where=label(node))
    zero = constant_array(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else np.zeros(1)
    if zero is None:
        raise UnsupportedError("the zero point is computed", where=label(node))
    shape = b.shape(node.inputs[0])
    laid = [1] * len(shape)
    if scale.size > 1:
        laid[integer_of(node, "axis", 1) % len(shape)] = -1
    arrays = [
        np.asarray(each, np.float32).reshape(-1 if each.size == 1 and not laid else laid) for each in (scale, zero)
    ]
    return arrays[0], np.broadcast_to(arrays[1], arrays[0].shape)

"""Operators of one value on integers of 8 and 16 bits: 256 or 65536 results in a table, table[q] = Q_y(f(DQ_x(q))).

f is the float32 operator, in onnxruntime's order of operations; what is transcendental is computed in float64 and
rounded to float32 once. Q_y divides in float32, rounds as the target does, adds the zero point and saturates, as QuantizeLinear
does in onnxruntime: an infinity becomes the largest or smallest integer, NaN (of log −1) the smallest; measured, 1.23.2 to
1.31.1."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.numerics.arithmetic import Arithmetic, Rounding
from qdq_passes.numerics.arrays import Reals
from qdq_passes.numerics.dpu import sigmoid
from qdq_passes.numerics.encoding import Encoding, integer_range, is_wide
from qdq_passes.numerics.requantize import Floats, Integers, exact_sum, into_range, round_float, round_quotient

#: What reads a constant input: its array, None where the value is no constant.
Constant = Callable[[ir.Value], npt.NDArray[Any] | None]


@dataclass(frozen=True, eq=False, kw_only=True)
class Function:
    """A float32 operator of one value, its parameters bound.

    Args:
        op_type: ONNX name.
        evaluate: float32 [n] → float32 [n], or [C, n] with a slope per channel.
        input: index of the operator's input that it is a function of.
        axis: axis of the tensor that C runs along, counted from the end (−3 in NCHW); None without channels.
        bounds: (low, high) of a Relu or Clip, infinite where it has none; None of others.
        slope: float32 [C] or [1] of a LeakyRelu or PRelu; None of others.
    """

    op_type: str
    evaluate: Callable[[Floats], Floats]
    input: int = 0
    axis: int | None = None
    bounds: tuple[float, float] | None = None
    slope: Floats | None = None


def function_of(node: ir.Node, constant: Constant) -> Function | str | None:
    """``node`` as a function of one value; in words why its parameters are not known; None where it is no such operator.

    An Add, Sub, Mul, Div or Pow is one where its other input is one float constant. PRelu may have a slope per index of one axis.
    """
    if len(node.outputs) != 1:
        return None
    if node.domain == "com.microsoft" and node.op_type in ("Gelu", "QuickGelu"):
        quick = node.op_type == "QuickGelu"
        evaluate = _swish(np.float32(_float(node, "alpha", 1.702))) if quick else _once(_gelu)
        return Function(op_type=node.op_type, evaluate=evaluate)
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type in _PLAIN:
        bounds = (0.0, math.inf) if node.op_type == "Relu" else None
        return Function(op_type=node.op_type, evaluate=_PLAIN[node.op_type], bounds=bounds)
    if node.op_type in _WITH_NUMBERS:
        defaults, make = _WITH_NUMBERS[node.op_type]
        numbers = [np.float32(_float(node, name, default)) for name, default in defaults.items()]
        slope = np.array(numbers, np.float32) if node.op_type == "LeakyRelu" else None
        return Function(op_type=node.op_type, evaluate=make(*numbers), slope=slope)
    if node.op_type == "Gelu":
        attribute = node.attributes.get("approximate")
        mode = "none" if attribute is None else attribute.as_string()
        return Function(op_type="Gelu", evaluate=_once(_gelu_tanh if mode == "tanh" else _gelu))
    if node.op_type == "Clip":
        return _clip(node, constant)
    if node.op_type == "PRelu":
        return _prelu(node, constant)
    return _with_a_number(node, constant) if node.op_type in _WITH_A_NUMBER else None


def chained(functions: Sequence[Function]) -> Function:
    """One function that applies all of ``functions``, the first first; at most one has a slope per channel."""
    axes = [f.axis for f in functions if f.axis is not None]

    def evaluate(x: Floats) -> Floats:
        for function in functions:
            x = function.evaluate(x)
        return x

    name = "+".join(f.op_type for f in functions)
    return Function(op_type=name, evaluate=evaluate, input=functions[0].input, axis=axes[0] if axes else None)


def table(function: Function | None, source: Encoding, target: Encoding, arithmetic: Arithmetic) -> Integers:
    """Integers of ``target`` for each integer of ``source``, the smallest first: int64 [n], or [C, n] with channels; n is 256 or
    65536.

    A function of 16 bits is computed as ``arithmetic.wide_functions`` says; with q the integers of ``source`` and f the function:

        float32       Q_y(f((q − z_x)·s_x)), as of 8 bits
        float16       Q_y(h(f(h((q − z_x)·s_x)))), h rounds to float16
        interpolated  k_i + round((k_{i+1} − k_i)·r / w), with w = 65536 / segments, q = lowest + i·w + r, 0 ≤ r < w, and k_i the
                      result of float32 at lowest + i·w; k_segments is that of the integer behind the greatest one

    Args:
        function: what is computed; None for a requantization, which is float32 always.
        source: per-tensor encoding of at most 16 bits.
        target: per-tensor encoding of at most 16 bits.
        arithmetic: of the target: its rounding, its functions of 16 bits.
    """
    low, high = integer_range(source.dtype, symmetric=False)
    kind = arithmetic.wide_functions if function is not None and is_wide(source.dtype) else "float32"
    step = (high + 1 - low) // arithmetic.segments if kind == "interpolated" else 1
    real = dequantized(np.arange(low, high + 1 + (step if step > 1 else 0), step), source)
    with np.errstate(all="ignore"):
        real = _as_float16(real) if kind == "float16" else real
        found = real if function is None else function.evaluate(real)
        found = _as_float16(found) if kind == "float16" else found
    results = quantized(found, target, arithmetic.rounding)
    return _interpolated(results, step, arithmetic.rounding) if step > 1 else results


def _as_float16(real: Floats) -> Floats:
    """float32 rounded to float16, ties to even; what that does not hold is infinite."""
    return real.astype(np.float16).astype(np.float32)


def _interpolated(knots: Integers, step: int, rounding: Rounding) -> Integers:
    """Straight lines between knots [..., n + 1] that lie ``step`` apart: int64 [..., n·step]."""
    first, rise = knots[..., :-1, None], np.diff(knots)[..., None]
    found = first + round_quotient(rise * np.arange(step), step, rounding)
    return np.asarray(found.reshape(*knots.shape[:-1], -1))


def dequantized(integers: Integers, encoding: Encoding) -> Floats:
    """(q − z)·s in float32 of a per-tensor encoding of at most 16 bits."""
    centered = (integers.astype(np.int64) - int(encoding.zero_point[0])).astype(np.float32)
    return np.asarray(centered * np.float32(encoding.scale[0]))


def quantized(real: Floats, encoding: Encoding, rounding: Rounding = "half_even") -> Integers:
    """QuantizeLinear of float32 with a per-tensor encoding of at most 16 bits, int64; NaN becomes the smallest integer."""
    low, high = integer_range(encoding.dtype, symmetric=False)
    with np.errstate(all="ignore"):
        quotient = np.asarray(real, np.float32) / np.float32(encoding.scale[0])
    nan = np.isnan(quotient)
    integers = exact_sum(
        round_float(np.where(nan, np.float32(0), quotient), rounding), np.array(int(encoding.zero_point[0]))
    )
    return np.where(nan, low, into_range(integers, low, high, "saturate"))


def slope_axis(shape: Sequence[int]) -> int | None:
    """The axis, counted from the end, that a slope of ``shape`` has entries along; None where it has one, or along several."""
    axes = [axis - len(shape) for axis, size in enumerate(shape) if size != 1]
    return axes[0] if len(axes) == 1 else None


def _float(node: ir.Node, name: str, default: float) -> float:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_float()


def _clip(node: ir.Node, constant: Constant) -> Function | str:
    found: list[np.float32] = []
    for index, name, default in ((1, "min", -math.inf), (2, "max", math.inf)):
        value = node.inputs[index] if index < len(node.inputs) else None
        array = None if value is None else constant(value)
        if value is not None and (array is None or array.size != 1):
            return f"its {name} is computed"
        found.append(np.float32(_float(node, name, default) if array is None else array.item()))
    low, high = found
    bounds = (float(low), float(high))
    return Function(op_type="Clip", evaluate=lambda x: np.minimum(np.maximum(x, low), high), bounds=bounds)


def _prelu(node: ir.Node, constant: Constant) -> Function | str:
    given = None if node.inputs[1] is None else constant(node.inputs[1])
    if given is None:
        return "its slope is computed"
    numbers = given.astype(np.float32)
    axis = slope_axis(numbers.shape)
    if axis is None and numbers.size != 1:
        return f"its slope of shape {list(numbers.shape)} differs along more than one axis"
    flat = numbers.reshape(()) if axis is None else numbers.reshape(-1, 1)
    slope = numbers.reshape(-1)
    return Function(op_type="PRelu", evaluate=lambda x: np.where(x < 0, x * flat, x), axis=axis, slope=slope)


def _with_a_number(node: ir.Node, constant: Constant) -> Function | None:
    combine = _WITH_A_NUMBER[node.op_type]
    arrays = [None if value is None else constant(value) for value in node.inputs]
    numbers = [np.float32(a.item()) if a is not None and a.size == 1 else None for a in arrays]
    if len(numbers) != 2 or (numbers[0] is None) == (numbers[1] is None):
        return None
    first, second = numbers
    if first is None:
        return Function(op_type=node.op_type, evaluate=lambda x: combine(x, second))
    return Function(op_type=node.op_type, evaluate=lambda x: combine(first, x), input=1)


def _once(function: Callable[[Reals], Reals]) -> Callable[[Floats], Floats]:
    """A function of float64 arrays, rounded to float32 once."""
    return lambda x: np.asarray(function(x.astype(np.float64))).astype(np.float32)


def _erf(x: Reals) -> Reals:
    return np.array([math.erf(v) for v in x.ravel().tolist()], np.float64).reshape(x.shape)


def _softplus(x: Reals) -> Reals:
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def _gelu(x: Reals) -> Reals:
    return 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)))


def _gelu_tanh(x: Reals) -> Reals:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def _celu(alpha: np.float32) -> Callable[[Floats], Floats]:
    return _once(lambda x: np.maximum(x, 0.0) + np.minimum(float(alpha) * np.expm1(x / float(alpha)), 0.0))


def _elu(alpha: np.float32) -> Callable[[Floats], Floats]:
    return _once(lambda x: np.where(x < 0, float(alpha) * np.expm1(np.minimum(x, 0.0)), x))


def _selu(alpha: np.float32, gamma: np.float32) -> Callable[[Floats], Floats]:
    return _once(lambda x: float(gamma) * np.where(x < 0, float(alpha) * np.expm1(np.minimum(x, 0.0)), x))


def _swish(alpha: np.float32) -> Callable[[Floats], Floats]:
    return _once(lambda x: x * sigmoid(float(alpha) * x))


def _hard_sigmoid(alpha: np.float32, beta: np.float32) -> Callable[[Floats], Floats]:
    return lambda x: np.maximum(np.minimum(x * alpha + beta, np.float32(1)), np.float32(0))


def _hard_swish(x: Floats) -> Floats:
    return x * _hard_sigmoid(np.float32(1 / 6), np.float32(0.5))(x)


def _leaky_relu(alpha: np.float32) -> Callable[[Floats], Floats]:
    return lambda x: np.where(x < 0, x * alpha, x)


def _thresholded_relu(alpha: np.float32) -> Callable[[Floats], Floats]:
    return lambda x: np.where(x > alpha, x, np.float32(0))


def _shrink(bias: np.float32, lambd: np.float32) -> Callable[[Floats], Floats]:
    return lambda x: np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, np.float32(0)))


def _pow(x: Floats | np.float32, exponent: Floats | np.float32) -> Floats:
    if isinstance(exponent, np.float32) and exponent == 2:
        return np.asarray(x * x)
    if isinstance(exponent, np.float32) and exponent == 3:
        return np.asarray(x * x * x)
    return np.asarray(np.power(x.astype(np.float64), exponent.astype(np.float64)).astype(np.float32))


#: Operators without parameters.
_PLAIN: Mapping[str, Callable[[Floats], Floats]] = {
    "Identity": lambda x: x,
    "Relu": lambda x: np.maximum(x, np.float32(0)),
    "Neg": np.negative,
    "Abs": np.abs,
    "Sign": np.sign,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.rint,
    "Sqrt": np.sqrt,
    "Reciprocal": np.reciprocal,
    "HardSwish": _hard_swish,
    "Softsign": lambda x: x * np.reciprocal(np.float32(1) + np.abs(x)),
    "Sigmoid": _once(sigmoid),
    "Softplus": _once(_softplus),
    "Mish": _once(lambda x: x * np.tanh(_softplus(x))),
    "Erf": _once(_erf),
    **{
        name: _once(function)
        for name, function in {
            "Exp": np.exp, "Log": np.log, "Tanh": np.tanh, "Sin": np.sin, "Cos": np.cos, "Tan": np.tan, "Asin": np.arcsin,
            "Acos": np.arccos, "Atan": np.arctan, "Sinh": np.sinh, "Cosh": np.cosh, "Asinh": np.arcsinh, "Acosh": np.arccosh,
            "Atanh": np.arctanh,
        }.items()
    },
}  # fmt: skip

#: Operators with numbers as attributes: their defaults, and what makes the function of them.
_WITH_NUMBERS: Mapping[str, tuple[Mapping[str, float], Callable[..., Callable[[Floats], Floats]]]] = {
    "LeakyRelu": ({"alpha": 0.01}, _leaky_relu),
    "HardSigmoid": ({"alpha": 0.2, "beta": 0.5}, _hard_sigmoid),
    "Elu": ({"alpha": 1.0}, _elu),
    "Celu": ({"alpha": 1.0}, _celu),
    "Selu": ({"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}, _selu),
    "Swish": ({"alpha": 1.0}, _swish),
    "ThresholdedRelu": ({"alpha": 1.0}, _thresholded_relu),
    "Shrink": ({"bias": 0.0, "lambd": 0.5}, _shrink),
}

#: Operators of two values, one of which is a constant.
_WITH_A_NUMBER: Mapping[str, Callable[[Any, Any], Floats]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": _pow, "Max": np.maximum, "Min": np.minimum,
}  # fmt: skip
#: Operators that are functions of one value whatever they read; those of two are where one of them is one constant number.
FUNCTIONS = (*_PLAIN, *_WITH_NUMBERS, "Clip", "Gelu", "PRelu")

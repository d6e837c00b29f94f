"""What flows between the nodes of a QDQ model that an NPU computes, and how it becomes the integers of the next QuantizeLinear.

Stored     what a DequantizeLinear writes: integers and their encoding
Moved      integers on their way through operators that move, and functions of one value
Sum        an exact sum, in steps of a product of scales
Addends    the two sides of an Add or Sub
Real       float32 numbers of an operator that ends in floating point
Joined     several of these, each brought to the output's encoding and then put together
The last five wait for the encoding that they are stored with: `integers_of` brings them there, in one rounding.

`ReferenceNode` is what an operator sees of its node: inputs as integers or as numbers, constants, the arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.npu.formulas.functions import Function, chained, function_of, quantized, table
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.arrays import Array, Reals
from qdq_passes.numerics.encoding import Encoding, integer_format, integer_range
from qdq_passes.numerics.quantize import dequantize
from qdq_passes.numerics.requantize import (
    UNIT,
    Floats,
    Integers,
    Multiplier,
    addition,
    exact_product,
    exact_sum,
    multiplier_of,
    real_multiplier,
    requantize,
    requantize_float,
    scaled,
)


class NotRepresentable(Exception):
    """What an arithmetic has no integers for, in words; the interpreter adds the node."""


@dataclass(frozen=True, eq=False)
class Stored:
    """Integers (int64, any shape), their encoding, and the float type that they stand for."""

    integers: Integers
    encoding: Encoding
    dtype: Any = np.float32

    def real(self) -> Array:
        """The values, as DequantizeLinear computes them."""
        return dequantize(self.integers, self.encoding, self.dtype)

    def centered(self) -> Integers:
        """Integers minus their zero points, int64."""
        zero = np.array(self.encoding.zero_point, np.int64).reshape(self.encoding.shape)
        return np.asarray(self.integers - self.encoding.granularity.expand(zero, self.integers.shape))

    def moved(self, move: Callable[[Integers], Integers]) -> Stored:
        """The same values in other places."""
        return replace(self, integers=np.asarray(move(self.integers)))


@dataclass(frozen=True, eq=False, kw_only=True)
class Moved:
    """Integers that moved, and what functions are to be applied.

    Args:
        parts: one, or the inputs of a Concat.
        axis: along which parts are joined.
        functions: the first is applied first.
    """

    parts: tuple[Stored, ...]
    axis: int = 0
    functions: tuple[Function, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Sum:
    """An exact sum.

    Args:
        acc: int64, as the accumulator holds it.
        product: float64 [1] or [C], the value of 1 in ``acc``.
        axis: axis of ``acc``, counted from the end, that C runs along.
        divisor: what a mean divides by; None where it is no mean.
        factor: float32 by which a mean is multiplied.
        slope: float64 [1] or [C], factor of sums below 0.
        has_slope: whether it may get a slope: sums of products.
        integral: a softmax, which has no float form.
        clamps: Relu and Clip behind.
        pole: 1 and −1 where a number above or below 0 was divided by zero, else 0; None where nothing was.
    """

    acc: Integers
    product: Reals
    axis: int = -1
    divisor: Integers | None = None
    factor: float | None = None
    slope: Reals | None = None
    has_slope: bool = False
    integral: bool = False
    clamps: tuple[Function, ...] = ()
    pole: Integers | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Addends:
    """a·s_a + b·s_b: integers minus their zero points, int64; the second scale is negative in a Sub."""

    a: Integers
    b: Integers
    a_scale: float
    b_scale: float
    clamps: tuple[Function, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Real:
    """float32 numbers that an operator on integers ends with: a normalization, a sum with a scale per block."""

    numbers: Floats
    clamps: tuple[Function, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Joined:
    """What is put together of integers that have the encoding of the output already.

    Args:
        parts: what is put together.
        join: the integers of the parts → those of the whole.
    """

    parts: tuple[Pending, ...]
    join: Callable[[Sequence[Integers]], Integers]


Pending = Moved | Sum | Addends | Real | Joined
Value = Array | Stored | Pending
#: The classes of what waits.
PENDING = (Moved, Sum, Addends, Real, Joined)


def with_function(value: Stored | Pending, function: Function) -> Pending:
    """``value`` with ``function`` computed on it in the same step.

    Raises:
        NotRepresentable: nothing computes it there.
    """
    if isinstance(value, Stored):
        return Moved(parts=(value,), functions=(function,))
    if isinstance(value, Moved):
        return replace(value, functions=(*value.functions, function))
    if isinstance(value, Joined):
        raise NotRepresentable(f"{function.op_type} cannot be computed in one step with what is before it")
    if function.bounds is not None:
        return replace(value, clamps=(*value.clamps, function))
    if function.slope is None or not isinstance(value, Sum) or not value.has_slope or value.clamps:
        raise NotRepresentable(f"{function.op_type} cannot be computed in one step with what is before it")
    if value.slope is not None or (function.axis is not None and function.axis != value.axis):
        raise NotRepresentable("its slope is not one number per channel")
    return replace(value, slope=function.slope.astype(np.float64), has_slope=False)


def integers_of(value: Stored | Pending, encoding: Encoding, arithmetic: Arithmetic) -> Integers:
    """The integers, int64, that stand for ``value`` in ``encoding``: one QuantizeLinear of the NPU.

    Raises:
        NotRepresentable: the arithmetic has no multiplier for these scales, or the encoding is none an NPU writes.
    """
    if len(encoding.scale) != 1 or integer_format(encoding.dtype)[1] > 16:
        raise NotRepresentable(f"it is stored as {encoding.granularity.kind} {encoding.dtype.name.lower()}")
    if isinstance(value, Stored):
        value = Moved(parts=(value,))
    if isinstance(value, Moved):
        return _moved(value, encoding, arithmetic)
    if isinstance(value, Joined):
        return np.asarray(value.join([integers_of(part, encoding, arithmetic) for part in value.parts]))
    if isinstance(value, Sum) and value.pole is not None:
        return _with_poles(value, encoding, arithmetic)
    low, high = _bounds(value.clamps, encoding)
    zero = int(encoding.zero_point[0])
    if isinstance(value, Real):
        return requantize_float(
            value.numbers, encoding.scale[0], arithmetic, dtype=encoding.dtype, zero_point=zero, low=low, high=high
        )
    if arithmetic.requantize == "float" and not (isinstance(value, Sum) and value.integral):
        real = _float_sum(value) if isinstance(value, Sum) else _float_addends(value)
        return requantize_float(
            real, encoding.scale[0], arithmetic, dtype=encoding.dtype, zero_point=zero, low=low, high=high
        )
    acc, multiplier, negative = _integer_sum(value, encoding.scale[0], arithmetic)
    divisor = value.divisor if isinstance(value, Sum) and value.divisor is not None else 1
    return requantize(
        acc, multiplier, arithmetic, dtype=encoding.dtype, zero_point=zero, divisor=divisor, negative=negative,
        axis=value.axis if isinstance(value, Sum) else None, low=low, high=high,
    )  # fmt: skip


def _with_poles(value: Sum, encoding: Encoding, arithmetic: Arithmetic) -> Integers:
    """What was divided by zero is the greatest integer that clamps and type leave, or the least."""
    found = integers_of(replace(value, pole=None), encoding, arithmetic)
    low, high = _bounds(value.clamps, encoding)
    least, most = integer_range(encoding.dtype, symmetric=False)
    assert value.pole is not None
    at_pole = np.where(value.pole > 0, most if high is None else high, least if low is None else low)
    return np.where(value.pole != 0, at_pole, found)


def _moved(value: Moved, encoding: Encoding, arithmetic: Arithmetic) -> Integers:
    function = chained(value.functions) if value.functions else None
    if function is not None and function.axis is not None and len(value.parts) > 1:
        raise NotRepresentable("a slope per channel cannot be applied to what a Concat joins")
    found = []
    for part in value.parts:
        if len(part.encoding.scale) != 1 or integer_format(part.encoding.dtype)[1] > 16:
            raise NotRepresentable(f"it reads {part.encoding.granularity.kind} {part.encoding.dtype.name.lower()}")
        if function is None and part.encoding == encoding:
            found.append(part.integers)
            continue
        results = table(function, part.encoding, encoding, arithmetic)
        index = part.integers - integer_range(part.encoding.dtype, symmetric=False)[0]
        if function is not None and function.axis is not None:
            if -function.axis > index.ndim:
                raise NotRepresentable("its slope has more dimensions than what it is applied to")
            rows = np.arange(results.shape[0]).reshape(-1, *[1] * (-1 - function.axis))
            found.append(results[rows, index])
        else:
            found.append(results[index])
    return np.concatenate(found, axis=value.axis) if len(found) > 1 else found[0]


def _bounds(clamps: tuple[Function, ...], encoding: Encoding) -> tuple[int | None, int | None]:
    """Least and largest integer that the clamps leave, one after the other, None where there is none; halves of a bound go to the
    even integer."""
    low: int | None = None
    high: int | None = None
    for clamp in clamps:
        assert clamp.bounds is not None
        least, most = (
            None if np.isinf(bound) else int(quantized(np.array(bound, np.float32), encoding)) for bound in clamp.bounds
        )
        low, high = (
            _within(edge, least, most) for edge in (least if low is None else low, most if high is None else high)
        )
    return low, high


def _within(edge: int | None, least: int | None, most: int | None) -> int | None:
    if edge is None:
        return None
    edge = edge if least is None else max(edge, least)
    return edge if most is None else min(edge, most)


def _integer_sum(
    value: Sum | Addends, scale: float, arithmetic: Arithmetic
) -> tuple[Integers, Multiplier, Multiplier | None]:
    """What is multiplied, by what, and by what below 0."""
    if isinstance(value, Addends):
        found = addition(value.a_scale / scale, value.b_scale / scale, arithmetic)
        if isinstance(found, str):
            raise NotRepresentable(found)
        products = (exact_product(v, np.array(m)) for v, m in ((value.a, found.first), (value.b, found.second)))
        return exact_sum(*products), replace(UNIT, shift=np.array([found.shift])), None
    product = value.product * (1.0 if value.factor is None else value.factor)
    multiplier = _multiplier(real_multiplier(product, scale), arithmetic)
    if value.slope is None:
        return value.acc, multiplier, None
    return value.acc, multiplier, _multiplier(real_multiplier(product, scale, slope=value.slope), arithmetic)


def _multiplier(real: Reals, arithmetic: Arithmetic) -> Multiplier:
    found = multiplier_of(real, arithmetic)
    if isinstance(found, str):
        raise NotRepresentable(found)
    return found


def _float_sum(value: Sum) -> Floats:
    real = scaled(value.acc, value.product, axis=value.axis, slope=value.slope)
    if value.divisor is not None:
        real = np.asarray(real / value.divisor.astype(np.float32), np.float32)
    return real if value.factor is None else np.asarray(real * np.float32(value.factor))


def _float_addends(value: Addends) -> Floats:
    return np.asarray(scaled(value.a, value.a_scale) + scaled(value.b, value.b_scale), np.float32)


def stored(value: Value, name: str | None) -> Stored:
    """``value`` as the integers that an NPU reads.

    Raises:
        NotRepresentable: there are none behind it; ``name`` is what the model calls it.
    """
    if isinstance(value, Moved) and len(value.parts) == 1 and not value.functions:
        value = value.parts[0]
    if isinstance(value, Stored):
        if value.dtype != np.float32:
            raise NotRepresentable(f"{name} is {np.dtype(value.dtype)}")
        return value
    raise NotRepresentable(f"an NPU computes on integers, and there are none behind {name}")


@dataclass(frozen=True, eq=False)
class ReferenceNode:
    """A node that the NPU computes, and its inputs.

    Args:
        node: the node.
        opset: of the model.
        arithmetic: of the target.
        value: what a value is.
        constant: the numbers of a constant, None of what is computed.
    """

    node: ir.Node
    opset: int
    arithmetic: Arithmetic
    value: Callable[[ir.Value], Value]
    constant: Callable[[ir.Value], Array | None]

    def has(self, index: int) -> bool:
        """Whether input ``index`` is there."""
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def stored(self, index: int) -> Stored:
        """Input ``index`` as integers behind an encoding.

        Raises:
            NotRepresentable: it is left out, or there are none behind it.
        """
        value = self.node.inputs[index] if index < len(self.node.inputs) else None
        if value is None:
            raise NotRepresentable(f"it has no input {index}")
        return stored(self.value(value), value.name)

    def array(self, index: int) -> Array | None:
        """Input ``index`` as numbers (a shape, indices, a mask, a float); None where it is left out.

        Raises:
            NotRepresentable: it stays on the NPU as integers of no encoding.
        """
        value = self.node.inputs[index] if index < len(self.node.inputs) else None
        if value is None:
            return None
        found = self.value(value)
        if isinstance(found, PENDING):
            raise NotRepresentable(f"{value.name} stays on the NPU as integers of no encoding")
        return found.real() if isinstance(found, Stored) else found

    @property
    def has_a_number(self) -> bool:
        """Whether one of two inputs is one constant float that is not stored as an integer: a function of the other."""
        return len(self.node.inputs) == 2 and any(self.is_number(index) for index in (0, 1))

    def is_number(self, index: int) -> bool:
        """Whether input ``index`` is one constant float that is not stored as an integer."""
        value = self.node.inputs[index]
        found = None if value is None else self.value(value)
        return (
            isinstance(found, np.ndarray) and found.size == 1 and value is not None and self.constant(value) is not None
        )

    def function(self) -> Pending | None:
        """What the function of one value that the operator is makes of it; None where it is none.

        Raises:
            NotRepresentable: its parameters are not known, or nothing computes it in one step with what is before it.
        """
        found = function_of(self.node, self.constant)
        if isinstance(found, str):
            raise NotRepresentable(found)
        if found is None or self.node.op_type == "Identity":
            return None
        source = self.node.inputs[found.input]
        value = None if source is None else self.value(source)
        return with_function(value if isinstance(value, PENDING) else self.stored(found.input), found)

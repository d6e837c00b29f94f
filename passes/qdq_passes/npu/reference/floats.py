"""Operators that an NPU computes in floating point: every input rounded to the precision, every result too.

    DequantizeLinear   the numbers (q − z)·s in float32; who reads them rounds them
    an operator        float32 of rounded inputs, in the order that its function states; its result rounded, then stored
    QuantizeLinear     of such a result: the target's rounding, `floats.quantized_float`

A zero that Relu, Clip, Sign, Min, Max or a maximum writes is positive. What moves elements rounds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.npu.formulas.floats import exponential, rounded
from qdq_passes.npu.formulas.functions import Constant, function_of
from qdq_passes.npu.reference.movement import Moving, is_movement, moved, numbers_of, places_of
from qdq_passes.npu.reference.values import NotRepresentable
from qdq_passes.numerics.arithmetic import Precision
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.requantize import Floats

_FLOATS = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True, eq=False)
class FloatNode:
    """A node that the NPU computes in floating point, and its inputs.

    Args:
        node: the node.
        opset: of the model.
        precision: of the target.
        inputs: numbers as they are stored or dequantized; None where left out.
        constant: the numbers of a constant, None of what is computed.
    """

    node: ir.Node
    opset: int
    precision: Precision
    inputs: tuple[Array | None, ...]
    constant: Constant

    def given(self, index: int) -> Array | None:
        """Input ``index`` as it is: a shape, indices; None where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def number(self, index: int) -> Floats:
        """Input ``index``, rounded to the precision.

        Raises:
            NotRepresentable: it is left out.
        """
        array = self.given(index)
        if array is None:
            raise NotRepresentable(f"it has no input {index}")
        return rounded(array, self.precision)

    @property
    def dtype(self) -> Any:
        """The numpy type of its results: of its first input with floats."""
        first = next((a for a in self.inputs if a is not None and a.dtype.name in _FLOATS), None)
        return np.float32 if first is None else first.dtype

    def rounded(self, x: Array) -> Floats:
        """``x`` rounded to the precision."""
        return rounded(x, self.precision)

    def stored(self, x: Array) -> Floats:
        """``x`` as a tensor of its type holds it: rounded to the precision, then to the type."""
        return np.asarray(self.rounded(x).astype(self.dtype).astype(np.float32))

    def integers(self, name: str, index: int) -> list[int] | None:
        """Integers that are an attribute or input ``index``; None where they are neither."""
        return numbers_of(self.node, name, self.given(index))


FloatHandler = Callable[[FloatNode], Sequence[Array]]


def computed_in_float(node: FloatNode, handlers: Mapping[tuple[str, str], FloatHandler]) -> list[Array]:
    """The outputs of ``node``: floats rounded, in the type of its first input with numbers; others as they come.

    Raises:
        NotRepresentable: it is no operator that an NPU computes in floating point.
    """
    key = (node.node.domain.removeprefix("ai.onnx"), node.node.op_type)
    dtype = node.dtype
    if dtype == np.float64:
        raise NotRepresentable("it computes on double")
    with np.errstate(all="ignore"):
        found = handlers[key](node) if key in handlers else _function_or_movement(node)
        return [node.rounded(a).astype(dtype) if a.dtype == np.float32 else a for a in found]


def _function_or_movement(node: FloatNode) -> list[Array]:
    function = function_of(node.node, node.constant)
    if isinstance(function, str):
        raise NotRepresentable(function)
    if function is not None and node.node.op_type != "Identity":
        x = node.number(function.input)
        if node.node.op_type == "Exp":
            return [exponential(x)]
        value = np.asarray(function.evaluate(x.reshape(1, -1) if function.axis is not None else x), np.float32)
        return [_unsigned_zero(value) if function.bounds is not None else value]
    return moved_floats(node)


def moved_floats(node: FloatNode) -> list[Array]:
    """What an operator that moves elements makes of rounded ones.

    Raises:
        NotRepresentable: it is none.
    """
    if not is_movement(node.node):
        raise NotRepresentable(f"{node.node.op_type} is no operator that an NPU computes in floating point")
    moving = Moving(node=node.node, opset=node.opset, inputs=node.inputs, standing=node.rounded)
    return moved(moving.with_data([node.number(index) for index in places_of(node.node)]))


def _unsigned_zero(x: Floats) -> Floats:
    return np.asarray(x + np.float32(0))


def _binary(combine: Callable[[Floats, Floats], Floats]) -> FloatHandler:
    return lambda node: [np.asarray(combine(node.number(0), node.number(1)), np.float32)]


def _extreme(combine: Any) -> FloatHandler:
    def handler(node: FloatNode) -> list[Array]:
        found = node.number(0)
        for index in range(1, len(node.inputs)):
            found = _unsigned_zero(combine(found, node.number(index)))
        return [found]

    return handler


def _sum(node: FloatNode) -> list[Array]:
    found = node.number(0)
    for index in range(1, len(node.inputs)):
        found = node.stored(found + node.number(index))
    return [found]


def _prelu(node: FloatNode) -> list[Array]:
    x, slope = node.number(0), node.number(1)
    return [np.where(x < 0, x * slope, x).astype(np.float32)]


def _pow(node: FloatNode) -> list[Array]:
    """x², x·x·x, √x and 1/√x; any other exponent as the function of one value that it is."""
    exponent = None if node.node.inputs[1] is None else node.constant(node.node.inputs[1])
    power = None if exponent is None or exponent.size != 1 else float(exponent.item())
    if power not in (2.0, 3.0, 0.5, -0.5):
        return _function_or_movement(node)
    x = node.number(0)
    if power > 0:
        return [np.sqrt(x) if power == 0.5 else x * x if power == 2.0 else x * x * x]
    return [np.float32(1) / np.sqrt(x)]


def _comparison(compare: Any) -> FloatHandler:
    return lambda node: [np.asarray(compare(node.number(0), node.number(1)))]


def _cast(node: FloatNode) -> list[Array]:
    """Numbers of any type to a float type."""
    to = ir.DataType(node.node.attributes.get_int("to", 1))
    if to.numpy().name not in _FLOATS[:3]:
        raise NotRepresentable(f"it casts to {to.name.lower()}")
    return [node.number(0).astype(to.numpy())]


#: Element by element; the rest is in `float_sums`, what moves in `movement`.
ELEMENTWISE: Mapping[tuple[str, str], FloatHandler] = {
    ("", "Add"): _binary(np.add),
    ("", "Sub"): _binary(np.subtract),
    ("", "Mul"): _binary(np.multiply),
    ("", "Div"): _binary(np.divide),
    ("", "Min"): _extreme(np.minimum),
    ("", "Max"): _extreme(np.maximum),
    ("", "Sum"): _sum,
    ("", "PRelu"): _prelu,
    ("", "Pow"): _pow,
    ("", "Equal"): _comparison(np.equal),
    ("", "Greater"): _comparison(np.greater),
    ("", "GreaterOrEqual"): _comparison(np.greater_equal),
    ("", "Less"): _comparison(np.less),
    ("", "LessOrEqual"): _comparison(np.less_equal),
    ("", "IsNaN"): lambda node: [np.isnan(node.number(0))],
    ("", "Cast"): _cast,
}

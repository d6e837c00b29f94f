"""The reference of an NPU: a QDQ model computed in exact integers under an `Arithmetic`, node by node, slowly and plainly.

    QuantizeLinear      of a float: as ONNX says, half to even; behind a node of the NPU: the rounding of that node
    DequantizeLinear    keeps its integers: a node of the NPU reads those, one of the CPU the numbers (q − z)·s
    on the NPU          sums, functions, movement: see `reference_sums`, `functions`, `reference_movement`
    on the CPU          whatever ``fallback`` computes, on floats

It reads the model alone, never the program that an NPU runs, and shares with the lowering to that program nothing but what
numbers mean: `requantize`, `functions`, `resize`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.errors import ModelError, UnsupportedError
from qdq_passes.numerics import reference_sums as sums
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding, is_integer_type
from qdq_passes.numerics.functions import function_of
from qdq_passes.numerics.quantize import dequantize, quantize
from qdq_passes.numerics.reference_movement import moved, numbers_of
from qdq_passes.numerics.reference_values import (
    Addends,
    Array,
    Moved,
    NotRepresentable,
    Pending,
    Stored,
    Sum,
    Value,
    integers_of,
    stored,
    with_function,
)

#: Computes a node of the CPU, to one array per output, from its inputs (None where left out) and then the values that its bodies
#: read from outside, in the order of `captured_values`.
Fallback = Callable[[ir.Node, Sequence[Array | None]], Sequence[Array]]

_QDQ_DOMAINS = ("", "ai.onnx", "com.microsoft")
_PRODUCTS = {
    "Conv": sums.convolution, "ConvTranspose": sums.transposed_convolution, "Gemm": sums.matrix_product,
    "MatMul": sums.matrix_product,
}  # fmt: skip


def run_reference(
    model: ir.Model,
    feeds: Mapping[str, npt.NDArray[Any]],
    arithmetic: Arithmetic,
    *,
    on_npu: Callable[[ir.Node], bool],
    fallback: Fallback,
) -> dict[str, npt.NDArray[Any]]:
    """The outputs of ``model``, by name.

    Args:
        model: QDQ; not changed.
        feeds: by name of the graph input; an initializer of that name is its default.
        arithmetic: of the target.
        on_npu: whether the NPU computes a node: asked of operators and of a QuantizeLinear that reads a DequantizeLinear. What is
            computed in one step (a Conv and its Relu) must have one answer.
        fallback: computes the others.

    Raises:
        UnsupportedError: a node of the NPU reads or writes floats, or is none the NPU computes under this arithmetic.
        ModelError: a value is never there: an input that is not fed, or nodes in a circle.
    """
    run = _Run(model, arithmetic, on_npu, fallback)
    for value in [*model.graph.initializers.values(), *model.graph.inputs]:
        assert value.name is not None
        if value.name in feeds:
            run.values[value] = np.asarray(feeds[value.name])
        elif value.const_value is not None:
            run.values[value] = value.const_value.numpy()
    for node in _in_order(model.graph):
        run.step(node)
    return {value.name or "": run.real(value, "the graph") for value in model.graph.outputs}


def _in_order(graph: ir.Graph) -> list[ir.Node]:
    """The nodes of ``graph``, each behind those whose values it reads; as the file has them otherwise."""
    found: dict[ir.Node, None] = {}
    entered: set[ir.Node] = set()
    for last in graph:
        waiting = [last]
        while waiting:
            node = waiting[-1]
            producers = [v.producer() for v in (*node.inputs, *captured_values(node)) if v is not None]
            missing = [
                p for p in producers if p is not None and p.graph is graph and p not in found and p not in entered
            ]
            if missing and node not in entered:
                waiting += reversed(missing)
            else:
                found[waiting.pop()] = None
            entered.add(node)
    return list(found)


def captured_values(node: ir.Node) -> list[ir.Value]:
    """The values from outside that the bodies of ``node`` read, each once, in the order in which they are read."""
    inner: set[ir.Value] = set()
    read: dict[ir.Value, None] = {}
    for graph in _bodies(node):
        inner.update(graph.inputs, graph.initializers.values())
        for below in graph:
            inner.update(below.outputs)
            read.update(dict.fromkeys(value for value in below.inputs if value is not None))
        read.update(dict.fromkeys(graph.outputs))
    return [value for value in read if value not in inner]


def _bodies(node: ir.Node) -> Iterator[ir.Graph]:
    """The bodies of ``node``, and those of the nodes in them."""
    for attribute in node.attributes.values():
        graphs = [attribute.as_graph()] if attribute.type == ir.AttributeType.GRAPH else []
        if attribute.type == ir.AttributeType.GRAPHS:
            graphs = list(attribute.as_graphs())
        for graph in graphs:
            yield graph
            for below in graph:
                yield from _bodies(below)


class _Run:
    """One run: what every value is so far."""

    def __init__(
        self, model: ir.Model, arithmetic: Arithmetic, on_npu: Callable[[ir.Node], bool], fallback: Fallback
    ) -> None:
        self.values: dict[ir.Value, Value] = {}
        self.opset = model.opset_imports.get("", model.opset_imports.get("ai.onnx", 0))
        self.arithmetic, self.on_npu, self.fallback = arithmetic, on_npu, fallback

    def step(self, node: ir.Node) -> None:
        """Compute ``node``."""
        try:
            outputs = self._outputs(node)
        except NotRepresentable as error:
            raise UnsupportedError(str(error), where=_name(node), hint="let the CPU compute this node") from error
        for value, output in zip(node.outputs, outputs, strict=False):
            self.values[value] = output

    def _outputs(self, node: ir.Node) -> Sequence[Value]:
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            return [_constant(node)]
        if node.op_type == "DequantizeLinear" and node.domain in _QDQ_DOMAINS:
            return [self._dequantize(node)]
        if node.op_type == "QuantizeLinear" and node.domain in _QDQ_DOMAINS:
            return [self._quantize(node)]
        if self.on_npu(node):
            return self._compute(node)
        inputs = [*node.inputs, *captured_values(node)]
        return self.fallback(node, [None if v is None else self.real(v, _name(node)) for v in inputs])

    def real(self, value: ir.Value, reader: str) -> Array:
        """``value`` as numbers, for ``reader``."""
        found = self._value(value)
        if isinstance(found, Stored):
            return found.real()
        if isinstance(found, (Moved, Sum, Addends)):
            raise UnsupportedError(
                f"{value.name} stays on the NPU as integers of no encoding, and {reader} reads it",
                where=_name(value.producer()),
                hint="put a QuantizeLinear and a DequantizeLinear behind it, or let the CPU compute it",
            )
        return found

    def _value(self, value: ir.Value) -> Value:
        if value not in self.values:
            raise ModelError(f"{value.name} is read and never there", hint="feed it")
        return self.values[value]

    def _array(self, node: ir.Node, index: int) -> Array | None:
        value = node.inputs[index] if index < len(node.inputs) else None
        return None if value is None else self.real(value, _name(node))

    def _encoding(self, node: ir.Node, rank: int, default: ir.DataType) -> Encoding:
        scale, zero_point = self._array(node, 1), self._array(node, 2)
        assert scale is not None
        dtype = default if zero_point is None else ir.DataType.from_numpy(zero_point.dtype)
        zeros = np.zeros(scale.size, np.int64) if zero_point is None else zero_point.reshape(-1)
        block = node.attributes.get_int("block_size", 0)
        single = scale.size == 1 and not block
        return Encoding(
            dtype=dtype,
            scale=tuple(float(s) for s in scale.reshape(-1)),
            zero_point=tuple(int(z) if is_integer_type(dtype) else float(z) for z in zeros),
            shape=() if single else scale.shape,
            axis=None if single else node.attributes.get_int("axis", 1) % rank,
            block_size=block,
        )

    def _dequantize(self, node: ir.Node) -> Value:
        integers, scale = self._array(node, 0), self._array(node, 1)
        assert integers is not None
        assert scale is not None
        encoding = self._encoding(node, integers.ndim, ir.DataType.from_numpy(integers.dtype))
        if not is_integer_type(encoding.dtype):
            return dequantize(integers, encoding, scale.dtype)
        return Stored(integers.astype(np.int64), encoding, scale.dtype)

    def _quantize(self, node: ir.Node) -> Value:
        source = node.inputs[0]
        assert source is not None
        value = self._value(source)
        shape = value.shape if isinstance(value, np.ndarray) else ()
        default = ir.DataType(node.attributes.get_int("output_dtype", 0) or ir.DataType.UINT8)
        if isinstance(value, (Moved, Sum, Addends)) or (isinstance(value, Stored) and self.on_npu(node)):
            encoding, scale = self._encoding(node, 1, default), self._array(node, 1)
            if scale is not None and scale.dtype != np.float32:
                raise NotRepresentable(f"it has a scale of {scale.dtype}")
            return integers_of(value, encoding, self.arithmetic).astype(encoding.dtype.numpy())
        real = value.real() if isinstance(value, Stored) else value
        encoding = self._encoding(node, max(len(shape), real.ndim, 1), default)
        return quantize(real, encoding)

    def _compute(self, node: ir.Node) -> Sequence[Value]:
        """``node`` on the NPU."""
        if node.domain not in ("", "ai.onnx"):
            raise NotRepresentable(f"{node.domain}.{node.op_type} is no operator of an NPU")
        values = [None if v is None else self._value(v) for v in node.inputs]
        binary = node.op_type in ("Add", "Sub", "Mul") and not any(self._is_float_number(v) for v in node.inputs)
        if binary:
            a, b = self._stored(node, 0), self._stored(node, 1)
            return [sums.product(a, b, self.arithmetic) if node.op_type == "Mul" else sums.addends(node, a, b)]
        if node.op_type in _PRODUCTS:
            bias = values[2] if len(values) > 2 else None
            if isinstance(bias, (Moved, Sum, Addends)):
                bias = self._stored(node, 2)
            a, b = self._stored(node, 0), self._stored(node, 1)
            return [_PRODUCTS[node.op_type](node, a, b, bias, self.arithmetic)]
        factor = self._factor(node)
        if factor is not None:
            return [factor]
        function = function_of(node, self._constant)
        if isinstance(function, str):
            raise NotRepresentable(function)
        if function is not None and node.op_type != "Identity":
            value = values[function.input]
            if not isinstance(value, (Moved, Sum, Addends)):
                value = self._stored(node, function.input)
            return [with_function(value, function)]
        return self._reduce_or_move(node)

    def _reduce_or_move(self, node: ir.Node) -> Sequence[Pending]:
        if node.op_type == "Concat":
            axis = node.attributes.get_int("axis", 0)
            return [Moved(parts=tuple(self._stored(node, i) for i in range(len(node.inputs))), axis=axis)]
        x, rank = self._stored(node, 0), self._stored(node, 0).integers.ndim
        others = [self._array(node, index) for index in range(1, len(node.inputs))]
        if node.op_type == "AveragePool":
            return [sums.average_pool(node, x, self.arithmetic)]
        if node.op_type == "GlobalAveragePool":
            return [sums.mean(x, range(2, rank), self.arithmetic, keepdims=True)]
        if node.op_type == "ReduceMean":
            axes = numbers_of(node, "axes", others, 0) or []
            if not axes and node.attributes.get_int("noop_with_empty_axes", 0) == 1:
                return [Moved(parts=(x,))]
            keepdims = node.attributes.get_int("keepdims", 1) != 0
            return [sums.mean(x, sorted({a % rank for a in axes}) or range(rank), self.arithmetic, keepdims=keepdims)]
        if node.op_type == "Softmax":
            axis = node.attributes.get_int("axis", -1 if self.opset >= 13 else 1) % rank
            if self.opset < 13 and axis != rank - 1:
                raise NotRepresentable(f"it works along all axes from {axis} on in opset {self.opset}")
            return [sums.softmax(x, axis)]
        found = moved(node, x, others, self.opset)
        if found is None:
            raise NotRepresentable(f"{node.op_type} is no operator of an NPU")
        return [Moved(parts=(part,)) for part in found]

    def _stored(self, node: ir.Node, index: int) -> Stored:
        value = node.inputs[index]
        if value is None:
            raise NotRepresentable(f"it has no input {index}")
        return stored(self._value(value), value.name)

    def _factor(self, node: ir.Node) -> Sum | None:
        """The mean that ``node`` multiplies by a constant number; None where it does not."""
        if node.op_type != "Mul":
            return None
        for value, other in zip(node.inputs, reversed(node.inputs), strict=True):
            source = None if value is None else self._value(value)
            if isinstance(source, Sum) and source.divisor is not None and self._is_float_number(other):
                assert other is not None
                if source.factor is not None or source.clamps or source.integral:
                    raise NotRepresentable("it multiplies other than a mean")
                number = np.float32(self.real(other, _name(node)).item())
                return Sum(acc=source.acc, product=source.product, divisor=source.divisor, factor=float(number))
        return None

    def _is_float_number(self, value: ir.Value | None) -> bool:
        """Whether ``value`` is one constant float that is not stored as an integer."""
        found = None if value is None else self._value(value)
        return (
            isinstance(found, np.ndarray)
            and found.size == 1
            and value is not None
            and self._constant(value) is not None
        )

    def _constant(self, value: ir.Value) -> Array | None:
        """The numbers of a constant, stored so or as integers behind a DequantizeLinear; None where ``value`` is computed."""
        producer = value.producer()
        if producer is None:
            return None if value.is_graph_input() or value.const_value is None else self.real(value, "a constant")
        if producer.op_type in ("QuantizeLinear", "DequantizeLinear"):
            known = all(v is None or self._constant(v) is not None for v in producer.inputs)
            return self.real(value, "a constant") if known else None
        return self.real(value, "a constant") if producer.op_type == "Constant" else None


def _constant(node: ir.Node) -> Array:
    """What a Constant node holds."""
    for name, attribute in node.attributes.items():
        if name == "value":
            return attribute.as_tensor().numpy()
        if name in _CONSTANT_TYPES:
            return np.array(attribute.value, _CONSTANT_TYPES[name])
    raise UnsupportedError("a Constant holds no tensor", where=_name(node), hint="run fold-constants")


_CONSTANT_TYPES: Mapping[str, Any] = {
    "value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64,
    "value_string": np.object_, "value_strings": np.object_,
}  # fmt: skip


def _name(node: ir.Node | None) -> str:
    return "a node" if node is None else node.name or f"{node.op_type} of {node.outputs[0].name}"

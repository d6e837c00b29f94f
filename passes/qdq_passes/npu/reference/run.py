"""The reference of an NPU: a QDQ model computed in exact integers under an `Arithmetic`, node by node, slowly and plainly.

    QuantizeLinear      of a float: as ONNX says, half to even; behind a node of the NPU: the rounding of that node
    DequantizeLinear    keeps its integers: a node of the NPU reads those, one of the CPU the numbers (q − z)·s
    on the NPU          `OPERATORS`, functions of one value, what moves: also bare integers (indices, a cache); what
                        else works on those is computed by ``fallback``
                        in floating point: see `npu.reference.floats`
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
from qdq_passes.npu.formulas.floats import quantized_float
from qdq_passes.npu.reference import reductions, rotary
from qdq_passes.npu.reference import resize as resizing
from qdq_passes.npu.reference.float_sums import HANDLERS, MOVES
from qdq_passes.npu.reference.floats import FloatNode, computed_in_float
from qdq_passes.npu.reference.movement import Moving, is_movement, max_pool, moved, moved_integers
from qdq_passes.npu.reference.products import added, compared, divided, einsum, multiplied, product
from qdq_passes.npu.reference.values import PENDING, NotRepresentable, ReferenceNode, Stored, Value, integers_of
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import Encoding, is_integer_type
from qdq_passes.numerics.quantize import dequantize, quantize

Handler = Callable[[ReferenceNode], Sequence[Value]]

OPERATORS: Mapping[tuple[str, str], Handler] = {
    ("", "LayerNormalization"): reductions.layer_norm,
    ("", "RMSNormalization"): reductions.rms_norm,
    ("", "SimplifiedLayerNormalization"): reductions.rms_norm,
    ("", "InstanceNormalization"): reductions.instance_norm,
    ("", "GroupNormalization"): reductions.group_norm,
    ("", "LpNormalization"): reductions.lp_norm,
    ("", "Conv"): product,
    ("", "ConvTranspose"): product,
    ("", "Gemm"): product,
    ("", "MatMul"): product,
    ("", "Add"): added,
    ("", "Sub"): added,
    ("", "Mul"): multiplied,
    ("", "Div"): divided,
    ("", "Max"): compared,
    ("", "Min"): compared,
    ("", "ReduceMax"): reductions.reduced_extreme,
    ("", "ReduceMin"): reductions.reduced_extreme,
    ("", "ReduceMean"): reductions.reduced_mean,
    ("", "ReduceSum"): reductions.reduced_sum,
    ("", "AveragePool"): reductions.pooled_mean,
    ("", "GlobalAveragePool"): reductions.pooled_mean,
    ("", "MaxPool"): max_pool,
    ("", "GlobalMaxPool"): max_pool,
    ("", "Softmax"): reductions.softmax,
    ("", "Einsum"): einsum,
    ("", "Resize"): resizing.resize,
    ("", "RotaryEmbedding"): rotary.rotary_embedding,
    ("com.microsoft", "RotaryEmbedding"): rotary.contrib_rotary_embedding,
}


#: Computes a node of the CPU, to one array per output, from its inputs (None where left out) and then the values that its bodies
#: read from outside, in the order of `captured_values`.
Fallback = Callable[[ir.Node, Sequence[Array | None]], Sequence[Array]]

_QDQ_DOMAINS = ("", "ai.onnx", "com.microsoft")


def run_reference(
    model: ir.Model,
    feeds: Mapping[str, npt.NDArray[Any]],
    arithmetic: Arithmetic,
    *,
    on_npu: Callable[[ir.Node], bool],
    fallback: Fallback,
    in_float: Callable[[ir.Node], bool] = lambda _: False,
) -> dict[str, npt.NDArray[Any]]:
    """The outputs of ``model``, by name.

    Args:
        model: QDQ; not changed.
        feeds: by name of the graph input; an initializer of that name is its default.
        arithmetic: of the target.
        on_npu: whether the NPU computes a node: asked of operators and of a QuantizeLinear that reads a DequantizeLinear. What is
            computed in one step (a Conv and its Relu) must have one answer.
        fallback: computes the others.
        in_float: which nodes of the NPU it computes in floating point (verdict npu-float): asked of what ``on_npu`` is asked of.
            A QuantizeLinear behind one of them, or which is one itself, rounds as `quantized_float` does.

    Raises:
        UnsupportedError: a node of the NPU reads or writes floats, or is none the NPU computes under this arithmetic.
        ModelError: a value is never there: an input that is not fed, or nodes in a circle.
    """
    run = _Run(model, arithmetic, on_npu, fallback, in_float)
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
        self,
        model: ir.Model,
        arithmetic: Arithmetic,
        on_npu: Callable[[ir.Node], bool],
        fallback: Fallback,
        in_float: Callable[[ir.Node], bool],
    ) -> None:
        self.values: dict[ir.Value, Value] = {}
        self.opset = model.opset_imports.get("", model.opset_imports.get("ai.onnx", 0))
        self.arithmetic, self.on_npu, self.fallback = arithmetic, on_npu, fallback
        self.told_in_float = in_float

    def in_float(self, node: ir.Node) -> bool:
        """Whether the NPU computes ``node`` in floating point."""
        return self.on_npu(node) and self.told_in_float(node)

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
        if self.in_float(node):
            return self._compute_in_float(node)
        inputs = [*node.inputs, *captured_values(node)]
        if self.on_npu(node):
            if not self._is_plain(node):
                return self._compute(node)
            if is_movement(node):
                plain = tuple(None if v is None else self.real(v, _name(node)) for v in inputs)
                return moved(Moving(node=node, opset=self.opset, inputs=plain, standing=lambda number: number))
        return self.fallback(node, [None if v is None else self.real(v, _name(node)) for v in inputs])

    def _is_plain(self, node: ir.Node) -> bool:
        """Whether ``node`` works on shapes, indices, masks or bare integers (a cache) alone: they are the same everywhere."""
        read = [self._value(value) for value in node.inputs if value is not None]
        return bool(read) and all(isinstance(found, np.ndarray) and found.dtype.kind in "iub" for found in read)

    def real(self, value: ir.Value, reader: str) -> Array:
        """``value`` as numbers, for ``reader``."""
        found = self._value(value)
        if isinstance(found, Stored):
            return found.real()
        if isinstance(found, PENDING):
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
        writer = source.producer()
        if (
            writer is not None
            and self.in_float(node if writer.op_type == "DequantizeLinear" else writer)
            and self.on_npu(node)
        ):
            encoding = self._encoding(node, 1, default)
            if len(encoding.scale) != 1:
                raise NotRepresentable(f"it is stored as {encoding.granularity.kind} {encoding.dtype.name.lower()}")
            real = self.real(source, _name(node))
            return quantized_float(real, encoding, self.arithmetic).astype(encoding.dtype.numpy())
        if isinstance(value, PENDING) or (isinstance(value, Stored) and self.on_npu(node)):
            encoding, scale = self._encoding(node, 1, default), self._array(node, 1)
            if scale is not None and scale.dtype != np.float32:
                raise NotRepresentable(f"it has a scale of {scale.dtype}")
            return integers_of(value, encoding, self.arithmetic).astype(encoding.dtype.numpy())
        real = value.real() if isinstance(value, Stored) else value
        encoding = self._encoding(node, max(len(shape), real.ndim, 1), default)
        return quantize(real, encoding)

    def _compute_in_float(self, node: ir.Node) -> Sequence[Value]:
        """``node`` on the NPU, in floating point."""
        inputs = tuple(None if v is None else self.real(v, _name(node)) for v in node.inputs)
        precision = self.arithmetic.float_precision
        return computed_in_float(FloatNode(node, self.opset, precision, inputs, self._constant), {**HANDLERS, **MOVES})

    def _compute(self, node: ir.Node) -> Sequence[Value]:
        """``node`` on the NPU."""
        seen = ReferenceNode(node, self.opset, self.arithmetic, self._value, self._constant)
        handler = OPERATORS.get((node.domain.removeprefix("ai.onnx"), node.op_type))
        if handler is not None:
            return handler(seen)
        function = seen.function()
        if function is None and node.domain not in ("", "ai.onnx"):
            raise NotRepresentable(f"{node.domain}.{node.op_type} is no operator of an NPU")
        return moved_integers(seen) if function is None else [function]

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

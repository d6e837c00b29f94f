"""Surgery on integers that flow between operators: floats for them, and integers for floats again.

A `Floats` of one run of a pass makes one DequantizeLinear for an integer tensor in a graph, or takes the one that is there."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.names import float_name
from qdq_passes.graph.edit import Namer, graph_of, inherit, make_node, new_constant, replace_value
from qdq_passes.graph.operators.qdq_ops import OPSET_OF_AXIS, OPSET_OF_HALF, is_dequantize
from qdq_passes.graph.operators.qoperators import MICROSOFT, Parameters, storage_type
from qdq_passes.graph.uses import constant_array, input_at, is_constant
from qdq_passes.integers.look.integer_flow import QDQ_DOMAINS, same

#: First opset with QuantizeLinear and DequantizeLinear.
OPSET_OF_QDQ = 10
#: First opset with DynamicQuantizeLinear.
OPSET_OF_DYNAMIC = 11


def why_not(value: ir.Value, parameters: Parameters, flow: Mapping[ir.Value, Parameters] | None = None) -> str | None:
    """Why no DequantizeLinear can read the integers ``value`` with ``parameters``, in words; with ``flow``, also when they were
    written with others, which no pair of a QuantizeLinear and a DequantizeLinear says."""
    written = flow.get(value) if flow is not None and value.producer() is not None and not is_constant(value) else None
    if written is not None and not same(written, parameters):
        return f"reads {value.name} with another scale or zero point than it was written with"
    scales = parameters.scales
    points = constant_array(parameters.zero_point)
    if parameters.zero_point is not None and points is None and scales is not None and scales.size > 1:
        return f"the zero point of {value.name} is computed at run time, its scale has {scales.size} entries"
    counts = [1 if array is None else array.size for array in (scales, points)]
    if not parameters.block_size and scales is not None and scales.ndim > 1 and scales.size > 1:
        return f"{value.name} has scales of shape {list(scales.shape)}"
    if 1 not in counts and counts[0] != counts[1]:
        return f"{value.name} has {counts[0]} scales and {counts[1]} zero points"
    if scales is None and counts[1] > 1:
        return f"the scale of {value.name} is computed at run time, it has {counts[1]} zero points"
    return None


@dataclass(eq=False)
class Floats:
    """The floats that stand for integers, in one run of a pass.

    Args:
        model: the model.
        namer: names of this run.
    """

    model: ir.Model
    namer: Namer
    _made: dict[tuple[object, ...], ir.Node] = field(default_factory=dict)

    def of(self, reader: ir.Node, value: ir.Value, parameters: Parameters) -> ir.Value:
        """The floats that the integers ``value`` stand for, to be read by ``reader`` or what takes its place."""
        graph = graph_of(reader)
        key = _key(graph, value, parameters)
        if key not in self._made:
            node = self._there(key, value) or self._dequantizer(reader, value, parameters)
            graph.insert_before(reader, node)
            self._made[key] = node
        return self._made[key].outputs[0]

    def _there(self, key: tuple[object, ...], value: ir.Value) -> ir.Node | None:
        """A DequantizeLinear further behind that does the same, taken out of the graph to be put where it is needed."""
        for node in value.consumers():
            if node.graph is not None and _key_of(node) == key:
                node.graph.remove(node)
                return node
        return None

    def _dequantizer(self, reader: ir.Node, value: ir.Value, parameters: Parameters) -> ir.Node:
        if value.shape is not None and -len(value.shape) <= parameters.axis < 0:
            parameters = dataclasses.replace(parameters, axis=parameters.axis + len(value.shape))
        base = float_name(value.name or "value")
        graph = graph_of(reader)
        scale, zero_point, attributes = self._laid_out(graph, parameters, base, reader)
        inputs = [value, scale] if zero_point is None else [value, scale, zero_point]
        node = make_node(
            "DequantizeLinear", inputs, name=self.namer.fresh(f"{base}_DequantizeLinear"), attributes=attributes,
            output=self.namer.fresh(f"{base}_DequantizeLinear_Output"), like=value, dtype=parameters.float_type,
            domain=self._domain(graph, parameters), stands_for=[reader if is_constant(value) else value.producer() or reader],
        )  # fmt: skip
        node.outputs[0].type = ir.TensorType(parameters.float_type)
        return node

    def dynamic(self, reader: ir.Node, value: ir.Value) -> ir.Value:
        """The floats of ``value`` after a DynamicQuantizeLinear and back, to be read by what takes the place of ``reader``."""
        key = (graph_of(reader), value)
        if key not in self._made:
            nodes = dynamic_pair(value, self.namer, [value.producer() or reader])
            key[0].insert_before(reader, nodes)
            self._made[key] = nodes[-1]
        return self._made[key].outputs[0]

    def meet(self, node: ir.Node) -> None:
        """Take note of a DequantizeLinear of the model: who comes behind it and needs the same reads it."""
        key = _key_of(node)
        if key is not None:
            self._made.setdefault(key, node)

    def quantized(
        self,
        floats: ir.Value,
        old: ir.Value,
        parameters: Parameters,
        stands_for: Sequence[ir.Node],
        *,
        dtype: ir.DataType | None = None,
    ) -> ir.Node:
        """A QuantizeLinear that makes the integers ``old`` from ``floats``, not yet in a graph and not yet read.

        ``dtype`` is their type where neither the zero point nor ``old`` tell it.
        """
        base = float_name(old.name or "value")
        graph = graph_of(stands_for[0])
        scale, zero_point, attributes = self._laid_out(graph, parameters, base, stands_for[0])
        dtype = storage_type(old, parameters) or dtype or ir.DataType.UINT8
        if zero_point is None and dtype != ir.DataType.UINT8:
            zero = np.zeros(parameters.scales.shape if parameters.scales is not None else (), np.int64)
            tensor = ir.tensor(zero.astype(dtype.numpy()), dtype=dtype)
            zero_point = self._constant(graph, f"{base}_zero_point", tensor, stands_for[0])
        inputs = [floats, scale] if zero_point is None else [floats, scale, zero_point]
        return make_node(
            "QuantizeLinear", inputs, name=self.namer.fresh(f"{base}_QuantizeLinear"), attributes=attributes,
            output=self.namer.fresh(f"{base}_QuantizeLinear_Output"), like=old, dtype=dtype,
            domain=self._domain(graph, parameters), stands_for=stands_for,
        )  # fmt: skip

    def requantize(self, value: ir.Value, parameters: Parameters, node: ir.Node, dtype: ir.DataType | None) -> ir.Value:
        """Let ``value``, which ``node`` wrote as integers and now writes as floats, be quantized behind it: whoever read the
        integers reads those of the new QuantizeLinear, which are returned; they have the type ``dtype``, if that is known."""
        value.type = None if dtype is None else ir.TensorType(dtype)
        quantizer = self.quantized(value, value, parameters, [node], dtype=dtype)
        graph_of(node).insert_after(node, quantizer)
        take_place(value, quantizer.outputs[0], self.namer)
        quantizer.replace_input_with(0, value)
        quantizer.outputs[0].shape = value.shape.copy() if value.shape is not None else None
        value.type = ir.TensorType(parameters.float_type)
        self.name_floats(value, quantizer.outputs[0])
        return quantizer.outputs[0]

    def name_floats(self, floats: ir.Value, old: ir.Value) -> None:
        """Give ``floats`` the name of the tensor whose integers are ``old``: ``c`` for ``c_quantized``; the DequantizeLinear that
        has it, unless it writes a graph output, is then called as usual."""
        base = float_name(old.name or "value")
        for dq in old.consumers():
            output = dq.outputs[0]
            if is_dequantize(dq) and output.name == base:
                if output.is_graph_output():
                    floats.name = self.namer.fresh(f"{base}_QuantizeLinear_Input")
                    return
                output.name = self.namer.fresh(f"{base}_DequantizeLinear_Output")
                floats.name = base
                return
        if base != old.name or floats.name != f"{base}_float":
            floats.name = self.namer.fresh(base if base != old.name else f"{base}_float")

    def _domain(self, graph: ir.Graph, parameters: Parameters) -> str:
        """The default domain, or com.microsoft where the opset has no Q and DQ, or none with a scale per axis or for float16."""
        function = next((f for f in self.model.functions.values() if graph in (f.graph, *f.subgraphs())), None)
        imports = self.model.opset_imports if function is None else function.opset_imports
        opset = imports.get("", OPSET_OF_AXIS)
        scales = parameters.scales
        needed = OPSET_OF_AXIS if scales is not None and scales.size > 1 else OPSET_OF_QDQ
        if parameters.float_type != ir.DataType.FLOAT:
            needed = OPSET_OF_HALF
        if opset >= needed:
            return ""
        for known in (self.model.opset_imports, imports):
            known.setdefault(MICROSOFT, 1)
        return MICROSOFT

    def _laid_out(
        self, graph: ir.Graph, parameters: Parameters, base: str, near: ir.Node
    ) -> tuple[ir.Value, ir.Value | None, list[ir.Attr]]:
        """Scale and zero point as Q and DQ take them, of one shape, and the attributes; new constants where they must be."""
        scale, zero_point = parameters.scale, parameters.zero_point
        scales, points = parameters.scales, constant_array(zero_point)
        count = max(1 if array is None else array.size for array in (scales, points))
        if scales is None and isinstance(scale, ir.Value) and scale.shape is not None and scale.shape.is_static():
            count = max(count, int(np.prod(scale.shape.numpy())))
        if scales is not None and not parameters.block_size:
            shape = (count,) if count > 1 else scales.shape if scales.ndim < 2 else ()
            if isinstance(scale, np.ndarray) or scales.shape != shape:
                scale = self._constant(
                    graph, f"{base}_scale", np.broadcast_to(scales.reshape(-1), count).reshape(shape), near
                )
        else:
            shape = scales.shape if scales is not None else ()
            if isinstance(scale, np.ndarray):
                scale = self._constant(graph, f"{base}_scale", scale, near)
        if zero_point is not None and points is not None and points.shape != shape and (count > 1 or points.ndim > 1):
            laid_out = np.broadcast_to(points.reshape(-1), count).reshape(shape)
            tensor = ir.tensor(
                np.ascontiguousarray(laid_out), dtype=zero_point.dtype or ir.DataType.from_numpy(points.dtype)
            )
            zero_point = self._constant(graph, f"{base}_zero_point", tensor, near)
        attributes = [ir.AttrInt64("axis", parameters.axis)] if count > 1 or parameters.block_size else []
        if parameters.block_size:
            attributes.append(ir.AttrInt64("block_size", parameters.block_size))
        return scale, zero_point, attributes

    def _constant(
        self, graph: ir.Graph, name: str, data: npt.NDArray[Any] | ir.TensorProtocol, near: ir.Node
    ) -> ir.Value:
        tensor = ir.tensor(data.copy()) if isinstance(data, np.ndarray) else data
        return new_constant(graph, self.namer, name, tensor, [near])


def dynamic_pair(value: ir.Value, namer: Namer, stands_for: Sequence[ir.Node]) -> list[ir.Node]:
    """A DynamicQuantizeLinear of ``value`` and the DequantizeLinear that takes it back, not yet in a graph."""
    base = value.name or "value"
    names = [
        namer.fresh(f"{base}_{what}")
        for what in ("DynamicQuantizeLinear_Output", "dynamic_scale", "dynamic_zero_point")
    ]
    types = (ir.DataType.UINT8, ir.DataType.FLOAT, ir.DataType.UINT8)
    shapes = (value.shape.copy() if value.shape is not None else None, ir.Shape([]), ir.Shape([]))
    outputs = [ir.Value(name=n, type=ir.TensorType(t), shape=s) for n, t, s in zip(names, types, shapes, strict=True)]
    quantizer = ir.Node(
        "", "DynamicQuantizeLinear", [value], outputs=outputs, name=namer.fresh(f"{base}_DynamicQuantizeLinear")
    )
    inherit(quantizer, stands_for)
    dequantizer = make_node(
        "DequantizeLinear", outputs, name=namer.fresh(f"{base}_DequantizeLinear"), like=value,
        output=namer.fresh(f"{base}_DequantizeLinear_Output"), stands_for=stands_for,
    )  # fmt: skip
    return [quantizer, dequantizer]


def _key_of(node: ir.Node) -> tuple[object, ...] | None:
    """The key of a DequantizeLinear; None for what is none, or asks for a type of its own."""
    value, scale = input_at(node, 0), input_at(node, 1)
    if not is_dequantize(node) or node.domain not in QDQ_DOMAINS or "output_dtype" in node.attributes:
        return None
    if value is None or scale is None:
        return None
    axis, block = (
        node.attributes[k].as_int() if k in node.attributes else d for k, d in (("axis", 1), ("block_size", 0))
    )
    return _key(graph_of(node), value, Parameters(scale, input_at(node, 2), axis, block))


def _key(graph: ir.Graph, value: ir.Value, parameters: Parameters) -> tuple[object, ...]:
    scales = parameters.scales
    is_per_tensor = not parameters.block_size and (scales is None or scales.size == 1)
    scale = parameters.scale.tobytes() if isinstance(parameters.scale, np.ndarray) else parameters.scale
    axis = None if is_per_tensor else parameters.axis
    return graph, value, scale, parameters.zero_point, axis, parameters.block_size


def float_twin(value: ir.Value, namer: Namer) -> ir.Value:
    """A value with the type and shape of ``value``, to be written by a new node."""
    shape = value.shape.copy() if value.shape is not None else None
    return ir.Value(name=namer.fresh(f"{value.name}_float"), type=value.type, shape=shape)


def float_name_of(node: ir.Node, op_type: str, namer: Namer) -> str:
    """Name of the ``op_type`` that takes the place of ``node``: without the ``_quant`` that quantizers append, else its own."""
    name = node.name or ""
    return namer.fresh(name.removesuffix("_quant") or op_type) if not name or name.endswith("_quant") else name


def take_place(old: ir.Value, new: ir.Value, namer: Namer) -> None:
    """Let ``new`` be what ``old`` was: read by its readers, under its name."""
    name, was_output = old.name, old.is_graph_output()
    replace_value(old, new, namer)
    if not was_output and name is not None:
        old.name, new.name = namer.fresh(f"{name}_replaced"), name

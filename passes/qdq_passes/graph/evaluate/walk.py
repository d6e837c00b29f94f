"""Shapes and constants of a graph whose inputs have static shapes, in one walk: node by node, what is constant is computed, and
with it the shape of what comes after.

Inference alone does not get there (a Reshape reads what a Gather picks of a Shape), nor does folding alone; in turns they take as
many rounds as the model has layers. One walk over 2000 nodes takes half a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np
import onnx
import onnx_ir as ir
from onnx import defs

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core import budget
from qdq_passes.core.dimensions import sum_of
from qdq_passes.graph.evaluate.exact import exact
from qdq_passes.graph.evaluate.rare import LARGEST_INPUT, RANDOM, Compute, RareEvaluator
from qdq_passes.graph.evaluate.sizes import (
    Parts,
    Size,
    expanded,
    flattened,
    is_made_up,
    partly_known,
    reshaped,
)
from qdq_passes.graph.foreign import to_proto
from qdq_passes.graph.operators.qdq_ops import imports_at, is_quantization
from qdq_passes.graph.shapes.contrib_shapes import contrib_types
from qdq_passes.graph.shapes.guards import guarded_schema
from qdq_passes.graph.shapes.propagation import FAILURES, SHOWN_BYTES
from qdq_passes.graph.uses import GraphLike, constant_array, has_body, in_order, is_constant, is_standard, values_read
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.missing import is_missing

#: Elements of a result up to which it is computed: a mask [4096, 4096].
LARGEST_RESULT = 1 << 24
#: Bytes of results that are held at once, whatever the model; what would come after is not computed.
LARGEST_HELD = 1 << 28
#: Operators the sizes of whose output are those that they are told, or products of those that they have.
_OF_SIZES = ("ConstantOfShape", "Expand", "Flatten", "Range", "Reshape")
#: Operators whose result may be larger than what its operands broadcast to.
_REPEATING = frozenset({"Expand", "OneHot", "Pad", "Resize", "Tile", "Upsample"})


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What `walk` computes, and what it believes.

    Args:
        weights: whether initializers larger than `LARGEST_INPUT` are constants to compute with.
        rounding: whether arithmetic of floats that may round is computed, by ``compute`` or else by onnx's reference.
        compute: a runtime.
        declared: whether sizes that the file declares hold; else they follow from the inputs alone.
        barred: nodes that stay as they are.
    """

    weights: bool = False
    rounding: bool = False
    compute: Compute | None = None
    declared: bool = False
    barred: frozenset[ir.Node] = frozenset()


STATIC = Scope()


@dataclass
class StaticWalk:
    """What `walk` found.

    Args:
        types: type and shape of each value, as far as known.
        arrays: constants that nodes which are not computed read.
        computed: nodes all of whose outputs are constants.
        nodes: the nodes of the graph, producers first.
        parts: values that hold sizes of which some are not known.
    """

    types: dict[ir.Value, onnx.TypeProto] = field(default_factory=dict)
    arrays: dict[ir.Value, Array] = field(default_factory=dict)
    computed: set[ir.Node] = field(default_factory=set)
    nodes: list[ir.Node] = field(default_factory=list)
    parts: dict[ir.Value, Parts] = field(default_factory=dict)

    def sizes(self, value: ir.Value) -> list[Size] | None:
        """Sizes of ``value`` as far as known; None where not even their number is."""
        proto = self.types.get(value)
        if proto is None or not proto.HasField("tensor_type") or not proto.tensor_type.HasField("shape"):
            return None
        return [
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in proto.tensor_type.shape.dim
        ]

    def shape(self, value: ir.Value) -> list[int] | None:
        """Sizes of ``value``; None unless all are known."""
        sizes = self.sizes(value)
        numbers = None if sizes is None else [size for size in sizes if isinstance(size, int)]
        return numbers if sizes is not None and numbers is not None and len(numbers) == len(sizes) else None

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """Element type of ``value``; None where unknown or no tensor."""
        proto = self.types.get(value)
        return None if proto is None or not proto.tensor_type.elem_type else ir.DataType(proto.tensor_type.elem_type)


def walk(
    model: ir.Model,
    shapes: Mapping[ir.Value, Sequence[int | None]],
    *,
    graph: GraphLike | None = None,
    scope: Scope = STATIC,
) -> StaticWalk:
    """Walk ``graph`` of ``model`` (by default the main graph); its inputs have ``shapes``, else those declared. Nothing changes.

    Nodes of bodies are not looked into. Q/DQ nodes, random numbers and, unless ``scope`` says so, arithmetic of floats that may
    round are never computed.
    """
    walker = _Walker(model, chosen := model.graph if graph is None else graph, scope)
    for value in chosen.inputs:
        dims = shapes.get(value, list(value.shape) if value.shape is not None else None)
        if value.dtype is not None:
            walker.found.types[value] = _type(value.dtype, dims)
    walker.run()
    return walker.found


class _Walker:
    def __init__(self, model: ir.Model, graph: GraphLike, scope: Scope) -> None:
        self.graph, self.scope = graph, scope
        self.found = StaticWalk(nodes=in_order(graph))
        is_body = isinstance(graph, ir.Graph) and graph is not model.graph and bool(self.found.nodes)
        imports = imports_at(model, self.found.nodes[0]) if is_body else graph.opset_imports
        self._versions = {**model.opset_imports, **imports}
        self._imports = [onnx.helper.make_opsetid(domain, version) for domain, version in self._versions.items()]
        self._opset = self._versions.get("", self._versions.get("ai.onnx", 1))
        self._schemas: dict[tuple[str, str], defs.OpSchema | None] = {}
        self._rare = RareEvaluator(self._versions, scope.compute, rounds=scope.rounding)
        self._reads = {node: list(dict.fromkeys(values_read(node))) for node in self.found.nodes}
        self._bytes = 0  # of arrays
        self._left: dict[ir.Value, int] = {}
        for values in self._reads.values():
            for value in values:
                self._left[value] = self._left.get(value, 0) + 1

    def run(self) -> None:
        """Node after node."""
        needed: set[ir.Value] = {value for value in self.graph.outputs if value is not None}
        for node in self.found.nodes:
            for value in self._reads[node]:
                self._read(value)
            arrays = self._computed(node)
            if arrays is not None:
                self.found.computed.add(node)
                for value, array in zip(node.outputs, arrays, strict=False):
                    self._put(value, array)
            else:
                needed.update(self._reads[node])
                self._infer(node)
            for value in self._reads[node]:
                self._left[value] -= 1
                if not self._left[value] and value not in needed:
                    self._bytes -= self.found.arrays.pop(value, np.zeros(0)).nbytes
        produced = {value for node in self.found.computed for value in node.outputs}
        self.found.arrays = {v: array for v, array in self.found.arrays.items() if v in needed and v in produced}

    def _read(self, value: ir.Value) -> None:
        """Type of an initializer or Constant; its array as well where it is small."""
        if value in self.found.types:
            return
        if not is_constant(value):
            if self.scope.declared and (known := _declared(value)) is not None:
                self.found.types[value] = known
            return
        tensor = value.const_value
        if tensor is not None:
            self.found.types[value] = _type(tensor.dtype, [int(size) for size in tensor.shape.numpy()])
            if tensor.size > LARGEST_INPUT or tensor.dtype == ir.DataType.STRING:
                return
        array = constant_array(value)
        if array is not None and (array.size <= LARGEST_INPUT or tensor is None) and array.dtype.kind != "O":
            self._put(value, array, self.found.types.get(value))

    def _put(self, value: ir.Value, array: Array, known: onnx.TypeProto | None = None) -> None:
        self._bytes += array.nbytes
        self.found.arrays[value] = array
        self.found.types[value] = known or _type(ir.DataType.from_numpy(array.dtype), array.shape)

    def _computed(self, node: ir.Node) -> list[Array] | None:
        """The outputs of ``node`` where they are constant and come out exact."""
        arrays = self.found.arrays
        if is_standard(node, "Shape", "Size"):
            return self._shape_of(node)
        if is_standard(node, "Constant"):
            array = constant_array(node.outputs[0])
            return None if array is None or array.dtype.kind == "O" else [array]
        if self._is_kept(node) or not all(value is None or self._is_known(value) for value in node.inputs):
            return self._picked(node)
        large = [v for v in node.inputs if v is not None and v not in arrays]
        arrays.update({value: array for value in large if (array := constant_array(value)) is not None})
        found = self._of_constants(node)
        for value in large:
            arrays.pop(value, None)
        return found

    def _of_constants(self, node: ir.Node) -> list[Array] | None:
        if self._bytes > budget.allowed(LARGEST_HELD) or not self._fits(node):
            return None
        inputs = [None if value is None else self.found.arrays.get(value) for value in node.inputs]
        found = exact(node, inputs, self._opset)
        if found is None:
            self._infer(node)
            found = self._rare.outputs(node, self.found.arrays, [self.found.dtype(value) for value in node.outputs])
        return found

    def _is_known(self, value: ir.Value) -> bool:
        """Whether ``value`` is a constant that has been computed, or a weight that may be read."""
        if value in self.found.arrays:
            return True
        tensor = value.const_value
        if tensor is None or tensor.dtype == ir.DataType.STRING or is_missing(tensor):
            return False
        return self.scope.weights and is_constant(value)

    def _is_kept(self, node: ir.Node) -> bool:
        """Whether ``node`` stays whatever its inputs are."""
        trains = is_standard(node, "Dropout") and len(node.inputs) > 2 and node.inputs[2] is not None
        foreign = any(attribute.is_ref() for attribute in node.attributes.values())
        kept = node in self.scope.barred or node.op_type in RANDOM or has_body(node)
        quantizes = is_quantization(node) or is_standard(node, "DynamicQuantizeLinear")
        return kept or quantizes or trains or foreign or not any(value is not None for value in node.inputs)

    def _picked(self, node: ir.Node) -> list[Array] | None:
        """What ``node`` picks of a shape of which not all sizes are known, where it picks known ones."""
        if not self.scope.declared or len(node.outputs) != 1 or node in self.scope.barred:
            return None
        found = partly_known(node, self.found.parts, self.found.arrays)
        if isinstance(found, Parts):
            self.found.parts[node.outputs[0]] = found
            return None
        return None if found is None else [found]

    def _shape_of(self, node: ir.Node) -> list[Array] | None:
        source = node.inputs[0] if node.inputs else None
        shape = None if source is None else self.found.shape(source)
        if shape is None and source is not None and is_standard(node, "Shape") and self.scope.declared:
            return self._partial_shape(node, source)
        if shape is None or node in self.scope.barred:
            return None
        if node.op_type == "Size":
            return [np.array(np.prod(shape, dtype=np.int64), np.int64)]
        first, last = (node.attributes[k].as_int() if k in node.attributes else None for k in ("start", "end"))
        return [np.array(shape[first:last], np.int64)]

    def _partial_shape(self, node: ir.Node, source: ir.Value) -> list[Array] | None:
        """The sizes that ``node``, a Shape, gives of ``source``, where those are known; noted down where some are."""
        dims = self.found.sizes(source)
        if dims is None:
            return None
        first, last = (node.attributes[k].as_int() if k in node.attributes else None for k in ("start", "end"))
        dims = dims[first:last]
        numbers = [size for size in dims if isinstance(size, int)]
        if len(numbers) == len(dims):
            return [np.array(numbers, np.int64)]
        self.found.parts[node.outputs[0]] = Parts(dims, (len(dims),))
        return None

    def _fits(self, node: ir.Node) -> bool:
        """Whether the result is small enough to compute, told before it is computed."""
        arrays = self.found.arrays
        if is_standard(node, "ConstantOfShape"):
            return self._count(arrays[node.inputs[0]]) <= LARGEST_RESULT if node.inputs[0] is not None else False
        if is_standard(node, "Range"):
            start, limit, delta = (float(arrays[v].reshape(())) for v in node.inputs if v is not None)
            return delta != 0 and (limit - start) / delta <= LARGEST_RESULT
        sizes = [arrays[value].size for value in node.inputs if value is not None]
        if not is_standard(node, *_REPEATING) and self._count(sizes) <= LARGEST_RESULT:  # no broadcast gives more
            return True
        self._infer(node)
        shapes = [self.found.shape(value) for value in node.outputs]
        is_known = not is_standard(node, *_REPEATING)  # else what is not known may be of any size
        return all(is_known if shape is None else self._count(shape) <= LARGEST_RESULT for shape in shapes)

    @staticmethod
    def _count(shape: Sequence[int] | Array) -> int:
        return int(np.prod(np.asarray(shape, np.float64)))

    def _infer(self, node: ir.Node) -> None:
        """Types and shapes of the outputs of ``node`` by onnx, or by our own functions of contributed operators."""
        if self.scope.declared:
            self.found.types.update({v: known for v in node.outputs if (known := _declared(v)) is not None})
            if all(self.found.shape(value) is not None for value in node.outputs if value.name):
                return
        schema = self._schema(node)
        inputs = self._reads[node] if has_body(node) else [value for value in node.inputs if value is not None]
        if schema is None:
            self.found.types.update(contrib_types(node, self.found.types, self.found.arrays))
            return
        if any(value not in self.found.types for value in inputs):
            return
        shown = {
            value.name or "": onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape))
            for value in inputs
            if (array := self.found.arrays.get(value)) is not None and array.nbytes <= SHOWN_BYTES
        }
        types = {value.name or "": self.found.types[value] for value in inputs}
        try:
            found = onnx.shape_inference.infer_node_outputs(
                schema, to_proto(node, shown_only=True), types, shown, opset_imports=self._imports
            )
        except FAILURES:
            return
        for value in node.outputs:
            if value.name in found and self.found.shape(value) is None:
                self.found.types[value] = _joined(self.found.types.get(value), found[value.name])
        self._infer_symbolic(node)

    def _infer_symbolic(self, node: ir.Node) -> None:
        """Sizes of the output of ``node`` that hang on symbolic ones, which onnx does not compute."""
        if not is_standard(node, *_OF_SIZES) or self.found.shape(node.outputs[0]) is not None:
            return
        source, output = node.inputs[0], node.outputs[0]
        dtype = self.found.dtype(output)
        if source is None or dtype is None or not self.scope.declared:
            return
        sizes, target = self.found.sizes(source), self._held(source if len(node.inputs) < 2 else node.inputs[1])
        found: list[Size] | None = None
        if node.op_type == "Flatten":
            axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 1
            found = None if sizes is None else flattened(sizes, axis % len(sizes) if axis < 0 else axis)
        elif target is None:
            return
        elif node.op_type == "Reshape":
            zero = node.attributes.get("allowzero")
            found = reshaped(sizes, target, allow_zero=zero is not None and bool(zero.as_int()))
        elif node.op_type == "Range":
            start, step = self._held(source), self._held(node.inputs[2])
            found = target if (start, step) == ([0], [1]) and dtype == ir.DataType.INT64 else None
        else:
            found = target if node.op_type == "ConstantOfShape" else None if sizes is None else expanded(sizes, target)
        if found is not None:
            self.found.types[output] = _joined(self.found.types.get(output), _type(dtype, found))

    def _held(self, value: ir.Value | None) -> list[Size] | None:
        """The sizes that ``value`` holds, where it holds sizes or small constants."""
        if value in self.found.parts:
            return list(self.found.parts[value].sizes)
        array = None if value is None else self.found.arrays.get(value)
        return None if array is None or array.size > LARGEST_INPUT else [int(i) for i in array.reshape(-1)]

    def _schema(self, node: ir.Node) -> defs.OpSchema | None:
        key = (node.domain, node.op_type)
        if key not in self._schemas:
            version = self._versions.get(node.domain, 1)
            known = defs.has(node.op_type, domain=node.domain, max_inclusive_version=version)
            self._schemas[key] = guarded_schema(defs.get_schema(node.op_type, version, node.domain)) if known else None
        return self._schemas[key]


def _type(dtype: ir.DataType, dims: Sequence[object] | None) -> onnx.TypeProto:
    known = None if dims is None else [_size(d) for d in dims]
    return onnx.helper.make_tensor_type_proto(int(dtype), known)


def _size(dim: object) -> Size:
    """A dimension as it is written: a number, a name or an expression, in its shortest form."""
    if isinstance(dim, int):
        return int(dim)
    name = dim if isinstance(dim, str) else getattr(dim, "value", None)
    return sum_of(name) if isinstance(name, str) and name and not is_made_up(name) else None


def _declared(value: ir.Value) -> onnx.TypeProto | None:
    """The type of ``value`` as the file has it; None where it is no tensor or not told."""
    if not isinstance(value.type, ir.TensorType):
        return None
    return _type(value.type.dtype, list(value.shape) if value.shape is not None else None)


def _joined(known: onnx.TypeProto | None, found: onnx.TypeProto) -> onnx.TypeProto:
    """``found`` with what ``known`` says more precisely: a number before a name, a name before nothing."""
    if known is None or not known.tensor_type.HasField("shape") or not found.tensor_type.HasField("shape"):
        return found
    before, after = known.tensor_type.shape.dim, found.tensor_type.shape.dim
    if len(before) == len(after):
        for mine, theirs in zip(before, after, strict=True):
            if mine.HasField("dim_value") or (mine.dim_param and not theirs.HasField("dim_value")):
                theirs.CopyFrom(mine)
    return found

"""One node at a time: its outputs of arrays by onnx's reference implementation, its output shapes by onnx's shape inference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

import ml_dtypes  # noqa: F401 - bfloat16 arrays of numpy
import numpy as np
import onnx
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.foreign import to_proto
from qdq_passes.graph.operators.kinds import kind_of
from qdq_passes.graph.shapes.contrib_shapes import contrib_types
from qdq_passes.graph.shapes.guards import guarded_schema
from qdq_passes.graph.shapes.propagation import FAILURES
from qdq_passes.graph.uses import values_read
from qdq_passes.numerics.arrays import Array

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator

#: Operators that write into their first input: its shape is theirs, whatever they write.
_INTO_FIRST = frozenset({"ScatterElements", "ScatterND", "TensorScatter"})
#: Elements of an operand up to which shape inference may look at it: shapes, axes, bounds.
SHOWN = 64


@dataclass(frozen=True)
class Spec:
    """What is known of a value without its elements.

    Args:
        dtype: element type, None when unknown.
        shape: its sizes.
    """

    dtype: ir.DataType | None
    shape: tuple[int, ...]


@dataclass
class NodeEvaluator:
    """Evaluates nodes; what it builds for a node is kept for the next time.

    Args:
        opset: version of the default operator set that the nodes are written for.
    """

    opset: int
    _built: dict[ir.Node, tuple[ReferenceEvaluator, list[ir.Value], list[str]]] = field(default_factory=dict)
    _protos: dict[ir.Node, onnx.NodeProto] = field(default_factory=dict)

    def arrays(self, node: ir.Node, known: Mapping[ir.Value, Array]) -> list[Array] | str:
        """The outputs of ``node``; in words why there are none, where onnx has no such operator or it fails on what is known."""
        try:
            evaluator, sources, names = self._evaluator(node)
            with np.errstate(all="ignore"):
                found = evaluator.run(None, {value.name or "": known[value] for value in sources})
        except Exception as error:  # noqa: BLE001 - numpy's and the operators' own errors alike: the shapes do not fit
            return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        arrays = dict(zip(names, found, strict=True))
        return [np.asarray(arrays[v.name]) if v.name in arrays else np.zeros(0) for v in node.outputs]

    def _evaluator(self, node: ir.Node) -> tuple[ReferenceEvaluator, list[ir.Value], list[str]]:
        if node not in self._built:
            from onnx.reference import ReferenceEvaluator

            if node.domain not in ("", "ai.onnx"):
                raise NotImplementedError(f"onnx has no {node.domain}::{node.op_type}")
            sources = list(dict.fromkeys(values_read(node)))
            names = [value.name for value in node.outputs if value.name]
            graph = onnx.GraphProto(name="node", node=[self._proto(node)])
            graph.input.extend(onnx.ValueInfoProto(name=value.name) for value in sources)
            graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
            made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", self.opset)])
            self._built[node] = ReferenceEvaluator(made), sources, names
        return self._built[node]

    def _proto(self, node: ir.Node) -> onnx.NodeProto:
        if node not in self._protos:
            self._protos[node] = to_proto(node)
        return self._protos[node]

    def specs(
        self, node: ir.Node, known: Mapping[ir.Value, Spec], arrays: Mapping[ir.Value, Array]
    ) -> list[Spec | None]:
        """What is known of the outputs of ``node``, whose inputs have the ``known`` shapes and, some of them, ``arrays``."""
        nothing: list[Spec | None] = [None] * len(node.outputs)
        inputs = [value for value in node.inputs if value is not None]
        if node.domain not in ("", "ai.onnx") or not onnx.defs.has(node.op_type, max_inclusive_version=self.opset):
            types_of = {value: _type(known[value]) for value in inputs if value in known}
            contributed = contrib_types(node, types_of, arrays)
            return [_spec(contributed.get(value)) for value in node.outputs]
        if kind_of(node) in _INTO_FIRST and inputs[0] in known:
            return [known[inputs[0]]]
        if any(value not in known for value in inputs):
            return nothing
        types = {value.name or "": _type(known[value]) for value in inputs}
        data = {
            value.name or "": onnx.numpy_helper.from_array(np.ascontiguousarray(arrays[value]))
            for value in inputs
            if value in arrays and arrays[value].size <= SHOWN
        }
        schema = guarded_schema(onnx.defs.get_schema(node.op_type, self.opset))
        try:
            found = onnx.shape_inference.infer_node_outputs(
                schema, self._proto(node), types, data, opset_imports=[onnx.helper.make_opsetid("", self.opset)]
            )
        except FAILURES:
            return nothing
        return [_spec(found.get(value.name or "")) for value in node.outputs]


def _type(spec: Spec) -> onnx.TypeProto:
    dtype = spec.dtype if spec.dtype is not None else ir.DataType.FLOAT
    return onnx.helper.make_tensor_type_proto(int(dtype), spec.shape)


def _spec(proto: onnx.TypeProto | None) -> Spec | None:
    if proto is None or not proto.HasField("tensor_type") or not proto.tensor_type.HasField("shape"):
        return None
    dims = proto.tensor_type.shape.dim
    if not all(dim.HasField("dim_value") for dim in dims):
        return None
    return Spec(ir.DataType(proto.tensor_type.elem_type), tuple(dim.dim_value for dim in dims))

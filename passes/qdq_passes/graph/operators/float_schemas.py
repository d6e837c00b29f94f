"""Which inputs and outputs of an operator may be of another float type, read from its ONNX schema of the model's opset.

An operator's floats hang together by the type variables of its schema: T of a MatMul binds both inputs and the output, the scales
of a Resize are float32 whatever T is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx.defs
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.shapes.contrib_shapes import OF_ONE_FLOAT_TYPE
from qdq_passes.graph.uses import FLOAT_TYPES, has_body

#: Attributes that say the type of an output.
_SAYS_TYPE = frozenset({"dtype", "output_datatype", "output_dtype", "to"})
_BY_ATTRIBUTE = frozenset({"Constant", "ConstantOfShape"})


@dataclass(frozen=True)
class Retyped:
    """What of a node becomes another type.

    Args:
        inputs: indices of inputs.
        outputs: indices of outputs.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def retyped(
    node: ir.Node, dtype: ir.DataType, opset: int, types: Mapping[ir.Value, ir.DataType | None]
) -> Retyped | str:
    """The floats of ``node`` that become ``dtype``; a text says why none do.

    Args:
        node: the node.
        dtype: a float type.
        opset: version of the node's domain.
        types: element types of its inputs and outputs.
    """
    if has_body(node):
        return "has a body"
    if any(
        isinstance(v.type, ir.SequenceType | ir.OptionalType) for v in (*node.inputs, *node.outputs) if v is not None
    ):
        return "works on sequences"
    inputs = {i: types.get(v) for i, v in enumerate(node.inputs) if v is not None}
    outputs = {i: types.get(v) for i, v in enumerate(node.outputs) if v.name}
    if None in inputs.values() or None in outputs.values():
        return "the type of a tensor that it reads or writes is unknown; run infer-shapes first"
    if ir.DataType.DOUBLE in (*inputs.values(), *outputs.values()):
        return "computes on float64"
    reads, writes = (tuple(i for i, t in each.items() if t in FLOAT_TYPES and t != dtype) for each in (inputs, outputs))
    if not reads or not writes:
        return "computes on no floats of another type"
    if node.domain == "com.microsoft" and node.op_type in OF_ONE_FLOAT_TYPE and dtype == ir.DataType.FLOAT16:
        return Retyped(reads, writes)
    if node.op_type in _BY_ATTRIBUTE:
        return "an attribute says its type"
    return _by_schema(node, dtype, opset, reads, writes)


def _by_schema(
    node: ir.Node, dtype: ir.DataType, opset: int, inputs: Sequence[int], outputs: Sequence[int]
) -> Retyped | str:
    domain = "" if node.domain == "ai.onnx" else node.domain
    if not onnx.defs.has(node.op_type, opset, domain):
        return f"no schema tells which types {domain}::{node.op_type} takes".replace(" ::", " ")
    schema = onnx.defs.get_schema(node.op_type, opset, domain)
    if not _SAYS_TYPE.isdisjoint(schema.attributes):  # left out, it has a default
        return "an attribute says its type"
    wanted = f"tensor({dtype.name.lower()})"
    free = {c.type_param_str for c in schema.type_constraints if wanted in c.allowed_type_strs}
    ins = tuple(i for i in inputs if _formal(schema.inputs, i) in free)
    outs = tuple(i for i in outputs if _formal(schema.outputs, i) in free)
    if 0 in outputs and 0 not in outs:
        return f"{node.op_type} of opset {opset} takes no {dtype.name.lower()}"
    return Retyped(ins, outs)


def _formal(formals: Sequence[onnx.defs.OpSchema.FormalParameter], index: int) -> str:
    """Type text of formal parameter ``index``; the last may stand for any number."""
    return str(formals[min(index, len(formals) - 1)].type_str) if formals else ""

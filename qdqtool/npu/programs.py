"""Programs: nodes of a lowered model as a model of their own, and the EPContext node that stands for them.

A program is plain ONNX: opset of the model, ai.qdqtool, constants as initializers, all of them inside; its inputs and outputs
have the names of those of the node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.edit import Namer, drop_unread, graph_of, inherit, move_annotations, remove
from qdq_passes.graph.uses import label
from qdq_passes.npu.program import DOMAIN, VERSION

from qdqtool.io.models.context_files import CACHE
from qdqtool.io.models.save import serialize, to_bytes
from qdqtool.io.models.versions import IR_VERSION
from qdqtool.npu.payload import Header, write_payload
from qdqtool.runtime.provider import PROVIDER

CONTEXT_DOMAIN, CONTEXT = "com.microsoft", "EPContext"


def program_of(model: ir.Model, nodes: Sequence[ir.Node], name: str) -> ir.Model:
    """A model of ``nodes``, which are in order and stand in the main graph of ``model``; both share tensors, nothing else.

    Raises:
        UnsupportedError: a node has no kernel.
    """
    from qdq_passes.npu.program.operators import why_no_kernel

    inside = set(nodes)
    inputs = list(dict.fromkeys(v for node in nodes for v in node.inputs if v is not None and _is_fed(v, inside)))
    outputs = [v for node in nodes for v in node.outputs if is_read_outside(v, inside)]
    twins = {value: _twin(value) for value in inputs}
    constants: dict[ir.Value, ir.Value] = {}
    made = []
    for node in nodes:
        why = why_no_kernel(node)
        if why is not None:
            raise UnsupportedError(f"cannot be part of a program: {why}", where=label(node))
        for value in node.inputs:
            if value is not None and value not in twins:
                twins[value] = constants[value] = _constant(value)
        for value in node.outputs:
            twins[value] = _twin(value)
        copy = ir.Node(
            node.domain, node.op_type, [None if v is None else twins[v] for v in node.inputs], node.attributes.values(),
            outputs=[twins[v] for v in node.outputs], name=node.name,
        )  # fmt: skip
        made.append(inherit(copy, [node]))
    graph = ir.Graph(
        [twins[v] for v in inputs], [twins[v] for v in outputs], nodes=made, initializers=list(constants.values()),
        opset_imports={"": model.opset_imports.get("", 1), DOMAIN: VERSION}, name=name,
    )  # fmt: skip
    return ir.Model(graph, ir_version=min(model.ir_version or IR_VERSION, IR_VERSION), producer_name="qdqtool")


def payload_of(program: ir.Model, header: Header) -> bytes:
    """The payload of ``program``."""
    return write_payload(header, to_bytes(serialize(program)))


def is_context(node: ir.Node) -> bool:
    """Whether ``node`` holds what a provider has compiled, of whatever provider."""
    return (node.domain, node.op_type) == (CONTEXT_DOMAIN, CONTEXT)


def program_number(context: ir.Node) -> int:
    """The partition that the EPContext node ``context``, which `put_context` made, stands for."""
    return int(context.attributes["partition_name"].as_string().rpartition("_")[2])


def put_context(nodes: Sequence[ir.Node], program: ir.Model, payload: bytes, namer: Namer) -> ir.Node:
    """Put an EPContext node with ``payload`` in the place of ``nodes``, which ``program`` was made of.

    One whose program reads constants alone, all of which it holds, reads the smallest: onnxruntime 1.23 refuses a node
    without inputs."""
    graph, values = graph_of(nodes[0]), {value.name: value for node in nodes for value in node.outputs}
    read = {value.name: value for node in nodes for value in node.inputs if value is not None}
    name = program.graph.name or CONTEXT
    outputs = [_twin(values[output.name]) for output in program.graph.outputs]
    attributes = [
        ir.AttrInt64("embed_mode", 1),
        ir.AttrInt64("main_context", 1),
        ir.Attr(CACHE, ir.AttributeType.STRING, payload),
        ir.AttrString("source", PROVIDER),
        ir.AttrString("partition_name", name),
    ]
    inputs = [read[value.name] for value in program.graph.inputs] or _smallest(read.values())
    context = ir.Node(CONTEXT_DOMAIN, CONTEXT, inputs, attributes, outputs=outputs, name=namer.fresh(name))
    graph.insert_after(nodes[-1], context)
    for new in outputs:
        old = values[new.name]
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        move_annotations(old, new)
    constants = [value for node in nodes for value in node.inputs]
    remove(list(reversed(nodes)), "part of a program")
    drop_unread(constants)
    return context


def is_read_outside(value: ir.Value, inside: Iterable[ir.Node]) -> bool:
    """Whether a node that is not ``inside`` reads ``value``, or the graph writes it."""
    return value.is_graph_output() or any(use.node not in inside for use in value.uses())


def _is_fed(value: ir.Value, inside: set[ir.Node]) -> bool:
    """Whether ``value`` comes from outside and is no constant."""
    if value.is_initializer() and not value.is_graph_input():
        return False
    return value.producer() is None or value.producer() not in inside


def _smallest(values: Iterable[ir.Value]) -> list[ir.Value]:
    """Of the constants among ``values`` that of fewest bytes, the first of those by name."""
    sizes = [
        (v.const_value.nbytes, v.name or "", v) for v in values if v.is_initializer() and v.const_value is not None
    ]
    return [value for *_, value in sorted(sizes, key=lambda one: one[:2])[:1]]


def _twin(value: ir.Value) -> ir.Value:
    shape = value.shape.copy() if value.shape is not None else None
    return ir.Value(name=value.name, type=value.type, shape=shape)


def _constant(value: ir.Value) -> ir.Value:
    """An initializer with the data of ``value``, read from its file where they lie in one."""
    tensor = value.const_value
    assert tensor is not None
    if isinstance(tensor, ir.ExternalTensor):
        tensor = ir.Tensor(tensor.numpy(), name=value.name)
    return ir.Value(
        name=value.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
    )
